"""Forced tool calls: a `tool_choice` that leaves the model no other way becomes a constraint for the engine, and says who reads the output.

`required`: a list of calls, each a known tool with arguments that fit its schema; a named tool: its bare arguments. Families that
write in channels (Harmony, Inkling) keep their own format, which no JSON schema can describe. Called by `smg.pipeline.run`.
"""

import msgspec
from msgspec import Struct

from smg.errors import InvalidValue
from smg.parser import TOOLS, schemas_of
from smg.types.job import ChatInput, Constraint
from smg.types.json import Json, JsonObject

__all__ = ["Forced", "forced_call"]

DEFINITIONS = ("$defs", "definitions")


class Forced(Struct, frozen=True, kw_only=True):
    """What replaces the family's own way. `named`: the tool whose bare arguments the output is."""

    constraint: Constraint
    tool: str
    named: str | None = None


def forced_call(chat: ChatInput, *, tool_parser: str | None) -> Forced | None:
    """Gives None where the model is free to call or not. Raises InvalidValue when the tools' schemas contradict each other."""
    if chat.tool_choice in ("auto", "none") or not chat.tools:
        return None
    if tool_parser is not None and TOOLS.get(tool_parser).channels:
        return None
    schemas = schemas_of(chat.tools)
    named = None if chat.tool_choice == "required" else chat.tool_choice
    schema: JsonObject = schemas[named] if named else _any_call(schemas, parallel=chat.parallel_tool_calls)
    constraint = Constraint(kind="json_schema", value=msgspec.json.encode(schema or {"type": "object"}).decode(), param="tool_choice")
    return Forced(constraint=constraint, tool=tool_parser or "json" if named else "json", named=named)


def _any_call(schemas: dict[str, JsonObject], *, parallel: bool) -> JsonObject:
    shared: JsonObject = {}
    calls: list[Json] = []
    for name, schema in schemas.items():
        own = dict(schema)
        for key in DEFINITIONS:
            _merge(shared, key, own.pop(key, None))
        arguments: JsonObject = own or {"type": "object"}
        properties: JsonObject = {"name": {"type": "string", "enum": [name]}, "parameters": arguments}
        calls.append({"type": "object", "properties": properties, "required": ["name", "parameters"], "additionalProperties": False})
    listed: JsonObject = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        listed["maxItems"] = 1
    return listed | shared


def _merge(shared: JsonObject, key: str, definitions: Json) -> None:
    """References in the tools' schemas point to the root, so that definitions of all tools must live there together."""
    if not isinstance(definitions, dict):
        return
    known = shared.setdefault(key, {})
    assert isinstance(known, dict)
    for name, definition in definitions.items():
        if known.setdefault(name, definition) != definition:
            raise InvalidValue(f"the tools define {key}.{name} in different ways", param="tools")
