"""The type of parsed JSON, for the few places that must hand a client's own object on unread (templates, schemas)."""

from typing import TypeAlias

__all__ = ["Json", "JsonObject"]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = "dict[str, Json]"
