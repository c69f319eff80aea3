"""A forced tool call in the family's own format: xgrammar's structural tags, which vLLM and SGLang take as a constraint.

In: the family, the tools' schemas, and whether one tool is named or several calls may come. Out: the JSON of the tags; None for families
whose format tags cannot say, which are held to a plain schema instead. What the engine writes is read by the family's own parser.
Source: xgrammar's documentation of structural tags, their form since 0.1.25 (`format`, not `structures`). Called by `smg.pipeline.forced`.

Every format is closed: nothing but calls, after one block of thinking where a family thinks in the channels in which it calls: there no
engine can hold a constraint back until thinking ends. Versions before 0.2 refuse an empty separator, a list of tags inside a sequence
anywhere but at its end, and an `or` of which only some choices end by themselves; so these formats have none.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from smg.parser.tool.spec import TOOLS
from smg.types.json import Json, JsonObject

__all__ = ["forced_tags"]

# From names and schemas, and whether there may be only one call.
Tags: TypeAlias = Callable[[dict[str, JsonObject], bool], JsonObject]


def forced_tags(family: str, schemas: dict[str, JsonObject], *, named: str | None = None, parallel: bool = True) -> str | None:
    """Gives the JSON of structural tags that hold an engine to at least one call; `named`: to one call of that tool."""
    make = next((make for name, make in FAMILIES.items() if family in TOOLS and TOOLS.get(family) is TOOLS.get(name)), None)
    if make is None:
        return None
    wanted = {named: schemas[named]} if named else schemas
    return json.dumps({"type": "structural_tag", "format": make(wanted, bool(named) or not parallel)}, ensure_ascii=False)


def _schema(schema: JsonObject) -> JsonObject:
    return {"type": "json_schema", "json_schema": schema or {"type": "object"}}


def _text(value: str) -> JsonObject:
    return {"type": "const_string", "value": value}


def _like(pattern: str) -> JsonObject:
    return {"type": "regex", "pattern": pattern}


def _row(*elements: Json) -> JsonObject:
    return {"type": "sequence", "elements": list(elements)}


def _either(choices: Iterable[JsonObject]) -> JsonObject:
    elements: list[Json] = list(choices)
    return {"type": "or", "elements": elements}


def _tag(begin: str, content: JsonObject, end: str) -> JsonObject:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _calls(tags: Iterable[JsonObject], *, separator: str, once: bool) -> JsonObject:
    listed: list[Json] = list(tags)
    return {"type": "tags_with_separator", "tags": listed, "separator": separator, "at_least_one": True, "stop_after_first": once}


def _thought_or_not(begin: str, end: str, calls: JsonObject) -> JsonObject:
    return _either([calls, _row(_tag(begin, {"type": "any_text"}, end), calls)])


def _harmony(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    """One call always: its end, <|call|>, is a stop token, which tags cannot hold. The space before <|constrain|> comes and goes."""
    heads = ((rf"<\|channel\|>commentary to=functions\.{re.escape(name)} ?<\|constrain\|>json<\|message\|>", name) for name in schemas)
    calls = _either(_row(_like(head), _schema(schemas[name])) for head, name in heads)
    return _thought_or_not("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", calls)


def _inkling(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    """The prompt has opened the first block; the tool's name stands before the mark, or does not."""

    def tags() -> Iterable[JsonObject]:
        for name, schema in schemas.items():
            head = _like(rf'\{{"name": ?"{re.escape(name)}", ?"args": ?')
            for before in ("", name):
                yield _tag(f"{before}<|content_invoke_tool_json|>", _row(head, _schema(schema), _text("}")), "<|end_message|>")

    calls = _calls(tags(), separator="<|message_model|>", once=once)
    return _thought_or_not("<|content_thinking|>", "<|end_message|><|message_model|>", calls)


def _kimi(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    """The call's number is part of its head."""
    begin, argument = "<|tool_call_begin|>", _text("<|tool_call_argument_begin|>")
    tags = (
        _tag(f"functions.{name}:", _row(_like("[0-9]+"), argument, _schema(schema)), "<|tool_call_end|>")
        for name, schema in schemas.items()
    )
    return _tag("<|tool_calls_section_begin|>" + begin, _calls(tags, separator=begin, once=once), "<|tool_calls_section_end|>")


def _mistral(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    """One list, in which the calls are; or, since tokenizer version 11, a mark for each call."""
    mark = "[TOOL_CALLS]"
    listed = [_tag(f'{{"name": {json.dumps(name)}, "arguments": ', _schema(schema), "}") for name, schema in schemas.items()]
    marked = (_tag(f"{name}[ARGS]", _schema(schema), "") for name, schema in schemas.items())
    lists = (_tag(begin, _calls(listed, separator=", ", once=once), "]") for begin in (" [", "["))
    forms = (_calls(lists, separator=mark, once=True), _calls(marked, separator=mark, once=once))
    return _row(_text(mark), _either(forms))


FAMILIES: dict[str, Tags] = {"openai": _harmony, "inkling": _inkling, "kimik2": _kimi, "mistral": _mistral}
