"""Forced tool calls: a `tool_choice` that leaves the model no other way becomes a constraint for the engine, and says who reads the output.

Where engine and family can, the family's own format as structural tags, which the family's own parser reads. Else a schema. `required`: a
list of calls, each a known tool with arguments that fit its schema; a named tool: its bare arguments. Families that write in channels
(Harmony, Inkling) are then left free, as no JSON schema can describe their format. Called by `smg.pipeline.parsing` and `smg.pipeline.run`.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from smg.engine import ENGINES
from smg.errors import InvalidValue
from smg.parser import TOOLS, forced_tags, schemas_of
from smg.types.job import ChatInput, Constraint
from smg.types.json import Json, JsonObject

__all__ = ["Forced", "forced_call", "is_forced", "take_tags"]

DEFINITIONS = ("$defs", "definitions")
# Their default backend takes tags, in xgrammar's form since 0.1.25 (`format`): vLLM's v1/structured_output/backend_xgrammar.py, SGLang's
# srt/constrained/xgrammar_backend.py. TensorRT-LLM takes none before an operator chooses a backend, and of TokenSpeed nothing is published.
TAG_RUNTIMES = frozenset({"sglang", "vllm"})


class Forced(Struct, frozen=True, kw_only=True):
    """What replaces the family's own way. `named`: the tool whose bare arguments the output is."""

    constraint: Constraint
    tool: str
    named: str | None = None


def is_forced(chat: ChatInput) -> bool:
    """True when the model must call."""
    return chat.tool_choice not in ("auto", "none") and bool(chat.tools)


def take_tags(runtimes: Iterable[str]) -> bool:
    """True when engines of each of these runtimes take structural tags."""
    return all(name in TAG_RUNTIMES and "structural_tag" in ENGINES.get(name).features.constraints for name in runtimes)


def forced_call(chat: ChatInput, *, tool_parser: str | None, tags: bool = False) -> Forced | None:
    """Gives None where the model is free to call or not. `tags`: whichever engine will run the request takes structural tags.

    Raises InvalidValue when the tools' schemas contradict each other.
    """
    if not is_forced(chat):
        return None
    schemas = schemas_of(chat.tools)
    named = None if chat.tool_choice == "required" else chat.tool_choice
    if tool_parser is not None:
        own = forced_tags(tool_parser, schemas, named=named, parallel=chat.parallel_tool_calls) if tags else None
        if own is not None:
            return Forced(constraint=Constraint(kind="structural_tag", value=own, param="tool_choice"), tool=tool_parser)
        if TOOLS.get(tool_parser).channels:
            return None
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
