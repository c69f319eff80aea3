"""The tree as a flat list of fields, for everything generated from it: flags, environment names, help, reference, conversion of values."""

import functools
import re
import typing
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, inspect

from smg.config.choices import choices_of
from smg.config.tree import Config
from smg.registry import nearest

__all__ = ["Field", "Kind", "Raw", "Value", "convert", "fields", "sections"]

Kind: TypeAlias = Literal["bool", "int", "float", "text", "list"]
Value: TypeAlias = bool | int | float | str | tuple[str, ...]
Raw: TypeAlias = object  # what a TOML file, an environment variable or a flag holds before it is checked

WORDS = {"str": "text", "array": "list", "bool": "true or false", "int": "whole number", "float": "number", "object": "table"}
KINDS: dict[type[inspect.Type], Kind] = {
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "text",
    inspect.LiteralType: "text",
    inspect.VarTupleType: "list",
}


class Field(Struct, frozen=True, kw_only=True):
    """One setting. `choices`: the name of a registry, or the allowed texts themselves; `secret`: its value is never printed."""

    section: str
    name: str
    kind: Kind
    default: Value
    description: str
    flags: tuple[str, ...]
    choices: str | tuple[str, ...] | None
    secret: bool

    @property
    def path(self) -> str:
        """Dotted, as mistakes name it."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"SMG_{self.section}_{self.name}".upper()

    def allowed(self) -> list[str]:
        """Gives the texts that may stand here; empty when any may. Asks the registry, so it may import a package."""
        if self.choices is None:
            return []
        return choices_of(self.choices) if isinstance(self.choices, str) else list(self.choices)


@functools.cache
def sections() -> dict[str, type[Struct]]:
    """Gives the sections of the tree in its order, by name."""
    return typing.get_type_hints(Config)


@functools.cache
def fields() -> tuple[Field, ...]:
    """Gives every field of the tree in its order."""
    return tuple(_field(section, field) for section, cls in sections().items() for field in _struct(cls).fields)


def convert(field: Field, raw: Raw, *, text: bool) -> Value:
    """Gives the value of a field. `text`: raw is from a flag or variable, so "1" may become a number. ValueError says what is wrong."""
    try:
        value: Value = msgspec.convert(raw, _annotations(field.section)[field.name], strict=not text)
    except msgspec.ValidationError as error:
        allowed = field.allowed()
        if allowed and isinstance(raw, str):
            raise ValueError(_not_allowed(field, raw, allowed)) from None
        raise ValueError(_plain(error, field, raw)) from None
    if isinstance(value, float) and abs(value) == float("inf"):
        raise ValueError("expected a finite number")
    if isinstance(field.choices, str) and value != field.default and isinstance(value, str):
        allowed = field.allowed()
        if allowed and value not in allowed:
            raise ValueError(_not_allowed(field, value, allowed))
    return value


def _not_allowed(field: Field, raw: str, allowed: list[str]) -> str:
    return f"{raw!r} is not one of {', '.join(allowed)}{nearest(raw, allowed)}"


def _plain(error: msgspec.ValidationError, field: Field, raw: Raw) -> str:
    """msgspec's message in words of ours, with the value unless it is a secret."""
    message = re.sub(r" - at `\$\[(\d+)\]`", r" (item \1)", str(error))
    message = re.sub(r"`([^`]*)`", lambda match: WORDS.get(match[1], match[1]), message)
    message = message[:1].lower() + message[1:]
    return message if field.secret or not isinstance(raw, (str, int, float)) else f"{message.split(', got ')[0]}, got {raw!r}"


def _struct(cls: type[Struct]) -> inspect.StructType:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return info


@functools.cache
def _annotations(section: str) -> dict[str, object]:
    return typing.get_type_hints(sections()[section], include_extras=True)


def _field(section: str, field: inspect.Field) -> Field:
    metadata = field.type
    assert isinstance(metadata, inspect.Metadata)
    extra = metadata.extra or {}
    choices = extra.get("choices")
    if isinstance(metadata.type, inspect.LiteralType):  # whose `values` are sorted; the order of the tree is wanted
        choices = typing.get_args(typing.get_args(_annotations(section)[field.name])[0])
    return Field(
        section=section,
        name=field.name,
        kind=KINDS[type(metadata.type)],
        default=field.default,
        description=(metadata.extra_json_schema or {})["description"],
        flags=tuple(extra.get("flag", ["--" + field.name.replace("_", "-")])),
        choices=choices,
        secret=bool(extra.get("secret")),
    )
