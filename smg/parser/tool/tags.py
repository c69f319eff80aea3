"""A forced tool call in the family's own format: xgrammar's structural tags, which the engines but MLX take as a constraint.

In: the family, the tools' schemas, and whether one tool is named or several calls may come. Out: the JSON of the tags; None for families
whose format tags cannot say, which are held to a plain schema instead. What the engine writes is read by the family's own parser.
Source: xgrammar's documentation of structural tags; the tags are those that the original sends. Called by `smg.pipeline.forced`.
"""

import json
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


def _triggered(triggers: Iterable[str], tags: Iterable[tuple[str, Json, str]], *, once: bool) -> JsonObject:
    listed: list[Json] = [{"begin": begin, "content": content, "end": end} for begin, content, end in tags]
    return {"type": "triggered_tags", "triggers": list(triggers), "tags": listed, "at_least_one": True, "stop_after_first": once}


def _harmony(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    triggers = ("<|channel|>commentary", "<|start|>assistant<|channel|>commentary")
    heads = [(f"{trigger} to=functions.{name}<|constrain|>json<|message|>", name) for trigger in triggers for name in schemas]
    return _triggered(triggers, ((head, _schema(schemas[name]), "") for head, name in heads), once=once)


def _inkling(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    trigger = "<|content_invoke_tool_json|>"
    tags = ((f'{trigger}{{"name": {json.dumps(name)}, "args": ', _schema(schema), "}<|end_message|>") for name, schema in schemas.items())
    return _triggered((trigger,), tags, once=once)


def _kimi(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    """The call's number is part of its head, and only the first call opens the section."""
    section, call = "<|tool_calls_section_begin|>", "<|tool_call_begin|>"

    def content(schema: JsonObject) -> Json:
        number: JsonObject = {"type": "regex", "pattern": "[0-9]+"}
        return {
            "type": "sequence",
            "elements": [number, {"type": "const_string", "value": "<|tool_call_argument_begin|>"}, _schema(schema)],
        }

    tags = (
        (f"{begin}functions.{name}:", content(schema), "<|tool_call_end|>")
        for begin in (section + call, call)
        for name, schema in schemas.items()
    )
    return _triggered((section, call), tags, once=once)


def _mistral(schemas: dict[str, JsonObject], once: bool) -> JsonObject:
    """One list, in which the calls are."""
    calls: list[Json] = [
        {"begin": f'{{"name": {json.dumps(name)}, "arguments": ', "content": _schema(schema), "end": "}"}
        for name, schema in schemas.items()
    ]
    inside: Json = {"type": "tags_with_separator", "tags": calls, "separator": ", ", "at_least_one": True, "stop_after_first": once}
    return _triggered(("[TOOL_CALLS]",), (("[TOOL_CALLS] [", inside, "]"),), once=True)


FAMILIES: dict[str, Tags] = {"openai": _harmony, "inkling": _inkling, "kimik2": _kimi, "mistral": _mistral}
