"""What the layers of configuration say, gathered: each puts its values in, later ones win, and every mistake of every layer is kept."""

from collections.abc import Mapping

from msgspec import Struct

from smg.config.fields import Field, Raw, Value, convert, fields, sections
from smg.config.tree import Config

__all__ = ["Assignment", "Settings"]


class Assignment(Struct, frozen=True, kw_only=True):
    """One value for one field. `origin`: the flag, variable or file; `text`: raw is text that may stand for a number or a boolean."""

    field: Field
    raw: Raw
    origin: str
    text: bool


class Settings:
    """Collects assignments in rising precedence. `origins` says by path where each value that is not a default came from."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        self.origins: dict[str, str] = {}
        self._values: dict[str, Value] = {}
        self._broken: set[str] = set()

    def put(self, assignment: Assignment) -> None:
        """Takes one value, or notes why it cannot."""
        path = assignment.field.path
        try:
            value = convert(assignment.field, assignment.raw, text=assignment.text)
        except ValueError as error:
            self.mistakes.append(f"{path} ({assignment.origin}): {error}")
            self._broken.add(path)
            return
        self._values[path] = value
        self.origins[path] = assignment.origin

    def broken(self, paths: tuple[str, ...]) -> bool:
        """True when one of the fields has a mistake already, so that checks which read it would only add noise."""
        return not self._broken.isdisjoint(paths)

    def config(self) -> Config:
        """Gives the tree, with defaults where nothing was said or what was said is wrong."""
        values: dict[str, dict[str, Value]] = {name: {} for name in sections()}
        for field in fields():
            if field.path in self._values:
                values[field.section][field.name] = self._values[field.path]
        return _build(values)


def _build(values: Mapping[str, Mapping[str, Value]]) -> Config:
    made = {name: cls(**values[name]) for name, cls in sections().items()}
    return Config(**made)  # type: ignore[arg-type]  # each value has the class that the tree names for it
