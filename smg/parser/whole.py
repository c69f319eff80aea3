"""Parses one whole output: what `/parse/function_call`, `/parse/reasoning` and `smg parse` do. The same parsers as those of a stream."""

import secrets
from collections.abc import Callable, Iterator
from typing import cast

from msgspec import Struct

from smg.parser.base import Call, CallArguments, Piece, Text, Thought
from smg.parser.build import build, wrote_thoughts
from smg.parser.tool.spec import TOOLS
from smg.types.event import Content, Event, Finished, FinishReason, Reasoning, ToolArguments, ToolCall
from smg.types.json import JsonObject

__all__ = ["ParseCase", "Parsed", "ParsedCall", "events", "parse"]

# What models write whose family nobody named.
COMMON_TOOL_PARSER = "hermes"


class ParseCase(Struct, frozen=True, kw_only=True):
    """One output to parse: a line of the --jsonl file. `raw` is the text, `deltas` the same in pieces. Other keys are ignored.

    `prompt_opened_reasoning` None: the output tells, by a closing mark before any opening one.
    """

    id: object = None
    raw: str | None = None
    deltas: tuple[str, ...] | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    prompt_opened_reasoning: bool | None = None
    tools: tuple[dict[str, object], ...] | None = None
    finish_reason: FinishReason | None = None


class ParsedCall(Struct, kw_only=True):
    """One call of the result."""

    index: int
    id: str
    name: str
    arguments: str = ""


class Parsed(Struct, kw_only=True):
    """The result, as it is printed."""

    content: str | None
    reasoning: str | None
    tool_calls: list[ParsedCall]
    finish_reason: str


def parse(case: ParseCase, *, show: Callable[[Event], None] | None = None, any_tool: bool = False) -> Parsed:
    """Gives the result of one case; `show` is called with each event. `any_tool`: see `build`. Raises KeyError for an unknown parser."""
    result = Parsed(content=None, reasoning=None, tool_calls=[], finish_reason="stop")
    texts: list[str] = []
    thoughts: list[str] = []
    arguments: list[list[str]] = []
    for event in events(case, any_tool=any_tool):
        if show is not None:
            show(event)
        match event:
            case Content(text=text):
                texts.append(text)
            case Reasoning(text=text):
                thoughts.append(text)
            case ToolCall(index=index, id=call_id, name=name):
                result.tool_calls.append(ParsedCall(index=index, id=call_id, name=name))
                arguments.append([])
            case ToolArguments(index=index, text=text):
                arguments[index].append(text)
            case Finished(reason=reason):
                result.finish_reason = reason
    result.content = "".join(texts) or None
    result.reasoning = "".join(thoughts) or None
    for call, pieces in zip(result.tool_calls, arguments, strict=True):
        call.arguments = "".join(pieces)
    return result


def events(case: ParseCase, *, any_tool: bool = False) -> Iterator[Event]:
    """Gives the events of one case in order; the last is `Finished`."""
    tools = cast("tuple[JsonObject, ...]", case.tools or ())
    tool = case.tool_parser or (COMMON_TOOL_PARSER if tools else None)
    reasoning = case.reasoning_parser or (TOOLS.get(tool).thinks if tool and tool in TOOLS else None) or None
    deltas = case.deltas if case.deltas is not None else (case.raw or "",)
    in_think = case.prompt_opened_reasoning
    if in_think is None:
        in_think = wrote_thoughts("".join(deltas), reasoning)
    parser = build(reasoning=reasoning, tool=tool, tools=tools, in_think=in_think, any_tool=any_tool)
    called = False
    for delta in deltas:
        for piece in parser.feed(delta) if parser is not None else [Text(delta)] if delta else []:
            called = called or isinstance(piece, Call)
            yield _event(piece)
    for piece in parser.finish() if parser is not None else ():
        called = called or isinstance(piece, Call)
        yield _event(piece)
    reason = case.finish_reason or "stop"
    yield Finished(0, "tool_calls" if reason == "stop" and called else reason)


def _event(piece: Piece) -> Event:
    match piece:
        case Text(text):
            return Content(0, text)
        case Thought(text):
            return Reasoning(0, text)
        case Call(index, name, call_id):
            return ToolCall(0, index, call_id or f"call_{secrets.token_hex(12)}", name)
        case CallArguments(index, text):
            return ToolArguments(0, index, text)
