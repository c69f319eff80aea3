"""response_format and the engines' own grammar fields → one `Constraint`. Called by chat.py and completions.py."""

import msgspec

from smg.errors import InvalidValue
from smg.types.job import Constraint
from smg.types.openai.common import GenerationFields, JsonSchemaFormat

__all__ = ["constraint"]

FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def constraint(request: GenerationFields) -> Constraint | None:
    """Gives the one constraint that was asked for, or None. Two of them are refused: no engine can hold both."""
    found = {name: value for name, value in _asked(request) if value is not None}
    if len(found) > 1:
        names = sorted(found)
        raise InvalidValue(f"only one of {' and '.join(names)} may be given", param=names[0])
    return next(iter(found.values()), None)


def _asked(request: GenerationFields) -> list[tuple[str, Constraint | None]]:
    asked = [
        ("response_format", _response_format(request.response_format)),
        ("regex", _plain("regex", request.regex)),
        ("ebnf", _plain("grammar", request.ebnf)),
        ("json_schema", _schema(request.json_schema, at="json_schema")),
        ("structural_tag", _tag(request.structural_tag)),
        ("guided_json", _schema(request.guided_json, at="guided_json")),
        ("guided_regex", _plain("regex", request.guided_regex)),
        ("guided_choice", _choice(request.guided_choice, at="guided_choice")),
        ("guided_grammar", _plain("grammar", request.guided_grammar)),
    ]
    if (outputs := request.structured_outputs) is not None:
        asked += [
            ("structured_outputs.json", _schema(outputs.json, at="structured_outputs.json")),
            ("structured_outputs.regex", _plain("regex", outputs.regex)),
            ("structured_outputs.choice", _choice(outputs.choice, at="structured_outputs.choice")),
            ("structured_outputs.grammar", _plain("grammar", outputs.grammar)),
            ("structured_outputs.json_object", Constraint(kind="json_object") if outputs.json_object else None),
            ("structured_outputs.structural_tag", _tag(outputs.structural_tag)),
        ]
    return asked


def _response_format(wanted: JsonSchemaFormat | None) -> Constraint | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Constraint(kind="json_object")
    if wanted.type == "structural_tag":
        given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
        return Constraint(kind="structural_tag", value=msgspec.json.encode(given).decode())
    if wanted.type != "json_schema":
        raise InvalidValue(f"response_format.type must be one of {', '.join(FORMATS)}", param="response_format.type")
    if wanted.json_schema is None:
        raise InvalidValue("response_format.json_schema is required with type json_schema", param="response_format.json_schema")
    return _schema(wanted.json_schema.schema or {}, at="response_format.json_schema.schema")


def _plain(kind: str, value: str | None) -> Constraint | None:
    return Constraint(kind=kind, value=value) if value else None  # type: ignore[arg-type]  # callers pass literals


def _schema(value: str | dict[str, object] | None, *, at: str) -> Constraint | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            msgspec.json.decode(value, type=dict)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidValue(f"{at} must be a JSON schema", param=at) from error
        return Constraint(kind="json_schema", value=value)
    return Constraint(kind="json_schema", value=msgspec.json.encode(value).decode())


def _tag(value: str | dict[str, object] | None) -> Constraint | None:
    if not value:
        return None
    return Constraint(kind="structural_tag", value=value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _choice(values: list[str] | None, *, at: str) -> Constraint | None:
    if values is None:
        return None
    if not values or "" in values:
        raise InvalidValue(f"{at} must be a list of texts that are not empty", param=at)
    return Constraint(kind="choice", value=msgspec.json.encode(values).decode())
