"""What a tool's schema says of a parameter's type, and model text made into JSON by it. Used by the grammars whose values have no type."""

import json

from smg.parser.tool.grammar.literal import literal_as_json
from smg.parser.tool.grammar.value import NUMBER
from smg.types.json import Json, JsonObject

__all__ = ["STRING", "as_json", "inner_of", "kinds_in", "kinds_of"]

STRING = frozenset({"string"})
DEPTH = 8
LITERAL_MAX = 32_768  # characters; a longer value that is no JSON stays text, so that one step stays short


def kinds_of(schema: JsonObject, name: str) -> frozenset[str]:
    """Gives the JSON types that `schema`, an object's, allows for a property; only text when it says nothing (known-bugs B12)."""
    properties = schema.get("properties")
    declared = properties.get(name) if isinstance(properties, dict) else None
    return (kinds_in(declared, schema) if isinstance(declared, dict) else frozenset()) or STRING


def kinds_in(schema: JsonObject, root: JsonObject) -> frozenset[str]:
    """Gives the JSON types that a value's own schema allows; empty when it says nothing."""
    return frozenset(_kinds(schema, root, DEPTH, set()))


def inner_of(schema: JsonObject, key: str, root: JsonObject) -> JsonObject:
    """Gives the schema of a value inside another: of an object's property, or with an empty key of a list's items; {} where none is."""
    for option in _options(schema, root, DEPTH, set()):
        if not key:
            items = option.get("items")
            if isinstance(items, dict):
                return items
            continue
        properties = option.get("properties")
        found = properties.get(key) if isinstance(properties, dict) else None
        found = option.get("additionalProperties") if found is None else found
        if isinstance(found, dict):
            return found
    return {}


def _options(schema: Json, root: JsonObject, depth: int, seen: set[int]) -> list[JsonObject]:
    """The schema, and what it refers to or chooses from, each once: schemas are the client's, and may lead in circles."""
    if not isinstance(schema, dict) or depth <= 0 or id(schema) in seen:
        return []
    seen.add(id(schema))
    found = [schema]
    for inner in _choices(schema, root):
        found += _options(inner, root, depth - 1, seen)
    return found


def _choices(schema: JsonObject, root: JsonObject) -> list[Json]:
    found: list[Json] = []
    for word in ("anyOf", "oneOf", "allOf"):
        options = schema.get(word)
        found += options if isinstance(options, list) else []
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found.append(_resolve(reference, root))
    return found


def _kinds(schema: Json, root: JsonObject, depth: int, seen: set[int]) -> set[str]:
    if not isinstance(schema, dict) or depth <= 0 or id(schema) in seen:
        return set()
    seen.add(id(schema))
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {item for item in kind if isinstance(item, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {_kind_of(value) for value in values}
    found: set[str] = set()
    for inner in _choices(schema, root):
        found |= _kinds(inner, root, depth - 1, seen)
    if not found and "properties" in schema:
        return {"object"}
    return {"array"} if not found and "items" in schema else found


def _resolve(reference: str, root: JsonObject) -> Json:
    place: Json = root
    for key in reference[2:].split("/"):
        place = place.get(key) if isinstance(place, dict) else None
    return place


def _kind_of(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "array"}.get(type(value), "object")


def as_json(text: str, kinds: frozenset[str]) -> str:
    """Gives the JSON of a value written as plain text. What fits no allowed type stays text: the call is not lost (known-bugs B10)."""
    plain = text.strip()
    word = plain.lower()
    if "null" in kinds and word in ("null", "none"):
        return "null"
    if "boolean" in kinds and word in ("true", "false"):
        return word
    if kinds & {"integer", "number"} and NUMBER.fullmatch(plain):
        return plain
    if kinds & {"object", "array"} and plain[:1] in ("{", "["):
        literal = plain if _valid(plain) else literal_as_json(plain) if len(plain) < LITERAL_MAX else None
        if literal is not None:
            return literal
    if "any" in kinds and _valid(plain):
        return plain
    return json.dumps(text, ensure_ascii=False)


def _valid(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
