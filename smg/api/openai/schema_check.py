"""A client's JSON schema, made into a check of a finished output. Schemas are hostile: what a check may cost is bounded before it runs.

jsonschema-rs holds the interpreter while it works, so that no thread and no deadline would help. Therefore: nothing is fetched; patterns
run in an engine of linear time, which knows no look-around and no back-references; and the places of the schema, each counted as often as
references reach it, times the values of the output have a limit. A reference that comes back to itself counts once: the library remembers
what it found for such a one. Built by `validate.py`.
"""

from typing import cast

import msgspec

from smg.api.decode import no_json
from smg.errors import InvalidValue
from smg.types.json import Json, JsonObject

__all__ = ["SchemaCheck"]

PLACES_MAX = 10_000
PATTERNS_MAX = 100
PATTERN_BYTES = 1 << 20  # of one compiled pattern
WORK_MAX = 2_000_000  # places x values: some 0.1 µs each
TOLD_WORK_MAX = 5_000  # up to here the fault is looked for a second time, to say where it is; some 10 µs each
TOLD_CHARACTERS = 200
BASES = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor"})


class SchemaCheck:
    """One schema. Raises InvalidValue, naming `param`, for a schema that is none, or that cannot be checked within bounds."""

    def __init__(self, schema: JsonObject, *, param: str) -> None:
        counter = _Places(schema, param)
        try:
            self._places = counter.count(schema, root=True)
        except RecursionError as error:
            raise InvalidValue(f"{param} is nested too deeply to be validated", param=param) from error
        if self._places > PLACES_MAX or counter.patterns > PATTERNS_MAX:
            raise InvalidValue(f"{param} is too large to be validated", param=param)
        self._recursive = counter.recursive
        import jsonschema_rs  # five megabytes that most workers never need

        options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
        try:
            self._validator = jsonschema_rs.validator_for(schema, pattern_options=options, offline=True)
        except ValueError as error:
            raise InvalidValue(f"{param} cannot be used to validate: {_told(error)}", param=param) from error

    def work(self, text: str) -> int:
        """Gives an upper bound of the steps that checking `text` takes."""
        return self._places * (text.count(",") + text.count("{") + text.count("[") + 1)

    def fault(self, text: str) -> str | None:
        """Gives what is wrong with the JSON text, or None."""
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            return no_json(error)
        except RecursionError:
            return "it is nested too deeply"
        work = self.work(text)
        if work > WORK_MAX:
            return "it is too large to be checked against this schema"
        try:
            fits = self._validator.is_valid(value)
        except ValueError as error:
            return f"it cannot be checked: {_told(error)}"
        if fits:
            return None
        return self._place(value) if work <= TOLD_WORK_MAX and not self._recursive else "it does not fit the schema"

    def _place(self, value: object) -> str:
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return "it does not fit the schema"
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path).lstrip(".")
        return f"{path}: {_told(error)}" if path else _told(error)


class _Places:
    """Counts a schema's places, and looks for what the count cannot follow."""

    def __init__(self, root: JsonObject, param: str) -> None:
        self.patterns = 0
        self.recursive = False
        self._root = root
        self._param = param
        self._known: dict[int, int | None] = {}  # None: being counted

    def count(self, node: Json, *, root: bool = False) -> int:
        if not isinstance(node, dict | list):
            return 0
        known = self._known.get(id(node), 0)
        if known is None:
            self.recursive = True
            return 1
        if known:
            return known
        self._known[id(node)] = None
        total = 1 + (sum(map(self.count, node)) if isinstance(node, list) else self._of_object(node, root))
        self._known[id(node)] = total
        return total

    def _of_object(self, node: JsonObject, root: bool) -> int:
        total = 0
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                total += self.count(self._target(value))
            elif key in BASES and isinstance(value, str | bool) and not (root and key == "$id"):
                raise InvalidValue(f"{self._param} uses {key}, which cannot be validated", param=self._param)
            elif key == "pattern" and isinstance(value, str):
                self.patterns += 1
            else:
                self.patterns += len(value) if key == "patternProperties" and isinstance(value, dict) else 0
                total += self.count(value)
        return total

    def _target(self, reference: str) -> Json:
        if reference != "#" and not reference.startswith("#/"):
            raise InvalidValue(f"{self._param} refers to {reference[:80]!r}; only places in itself can be validated", param=self._param)
        place: Json = self._root
        for step in reference[2:].split("/") if reference != "#" else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list) and step.isdecimal() and int(step) < len(place):
                place = place[int(step)]
            else:
                place = place.get(step) if isinstance(place, dict) else None
        if not isinstance(place, dict | bool):
            raise InvalidValue(f"{self._param} refers to {reference[:80]!r}, which is not there", param=self._param)
        return place


def _told(error: ValueError) -> str:
    text = cast(str, getattr(error, "message", None) or str(error))
    return text if len(text) <= TOLD_CHARACTERS else f"{text[:TOLD_CHARACTERS]}…"
