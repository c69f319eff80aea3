"""`POST /parse/function_call` and `/parse/reasoning`: a finished output, read by a parser that the caller names. No engine is asked.

The shapes are the original's, errors too: `{"error": text, "success": false}`. What it would lose is kept: text after the calls, their ids.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
from msgspec import Struct

from smg.api.base import Reply, Request, Services
from smg.api.decode import check_depth, decode, parsed
from smg.api.errors import DIALECTS, Dialect
from smg.api.sse import event
from smg.errors import InvalidValue, SmgError
from smg.parser import REASONING, TOOLS, ParseCase, parse, wrote_thoughts
from smg.types.openai.common import RawObject

__all__ = ["parse_function_call", "parse_reasoning"]

# A text above this size is parsed beside the event loop.
INLINE_CHARACTERS = 4096
MAX_TOOLS = 4096
PASSTHROUGH = ("passthrough", "none")


class FunctionCallText(Struct, frozen=True, kw_only=True):
    """`tools` empty or absent: every name is a tool's."""

    text: str
    tool_call_parser: str
    tools: list[RawObject] | None = None


class ReasoningText(Struct, frozen=True, kw_only=True):
    """`in_reasoning`: whether the prompt opened the thinking block; absent, the text and the family tell."""

    text: str
    reasoning_parser: str
    in_reasoning: bool | None = None


class ParseDialect(Dialect):
    """The original's own shape for these two paths."""

    def body(self, error: SmgError) -> bytes:
        return msgspec.json.encode({"error": error.message, "success": False})

    def stream(self, error: SmgError) -> bytes:
        return event(self.body(error))


DIALECTS.register("parse")(ParseDialect())

FUNCTION_CALL = msgspec.json.Decoder(FunctionCallText)
REASONING_TEXT = msgspec.json.Decoder(ReasoningText)


async def parse_function_call(http: Request, services: Services) -> Reply:
    """Gives `remaining_text`, `tool_calls` and `success`. Raises InvalidValue for a parser that is not registered."""
    body = await http.body()
    asked = await parsed(body, lambda data: decode(data, FUNCTION_CALL))
    tools = asked.tools or []
    check_depth(tools, body=body, at="tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidValue(f"tools may have at most {MAX_TOOLS} entries", param="tools")
    if asked.tool_call_parser not in TOOLS and asked.tool_call_parser not in PASSTHROUGH:
        raise InvalidValue(f"Unknown tool parser: {asked.tool_call_parser[:80]}", param="tool_call_parser")
    case = ParseCase(
        raw=asked.text, tool_parser=asked.tool_call_parser, reasoning_parser="none", tools=cast(tuple[dict[str, object], ...], tuple(tools))
    )
    return await _answered(asked.text, lambda: _calls(case))


async def parse_reasoning(http: Request, services: Services) -> Reply:
    """Gives `normal_text`, `reasoning_text` and `success`. Raises InvalidValue for a parser that is not registered."""
    asked = await parsed(await http.body(), lambda data: decode(data, REASONING_TEXT))
    if asked.reasoning_parser not in REASONING and asked.reasoning_parser not in PASSTHROUGH:
        raise InvalidValue(f"Unknown reasoning parser: {asked.reasoning_parser[:80]}", param="reasoning_parser")
    return await _answered(asked.text, lambda: _thoughts(asked))


async def _answered(text: str, work: Callable[[], bytes]) -> Reply:
    return Reply(body=work() if len(text) <= INLINE_CHARACTERS else await asyncio.to_thread(work))


def _calls(case: ParseCase) -> bytes:
    found = parse(case, any_tool=not case.tools)
    calls = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in found.tool_calls]
    return msgspec.json.encode({"remaining_text": found.content or "", "tool_calls": calls, "success": True})


def _thoughts(asked: ReasoningText) -> bytes:
    name = asked.reasoning_parser
    begun = asked.in_reasoning
    if begun is None and name in REASONING:
        spec = REASONING.get(name)
        begun = wrote_thoughts(asked.text, name) or (spec.assumed and not any(mark in asked.text for mark in spec.starts))
    found = parse(ParseCase(raw=asked.text, reasoning_parser=name, prompt_opened_reasoning=bool(begun)))
    return msgspec.json.encode({"normal_text": found.content or "", "reasoning_text": found.reasoning or "", "success": True})
