"""The highest layer: command-line flags, made from the tree. Own parser: no abbreviations, all mistakes at once, lists of several values.

Takes `--flag value`, `--flag=value`, `--list a b --list c`, and `--switch`, `--no-switch`, `--switch=false`. Called by `smg.config.load`.
"""

import functools
import re
from collections import deque
from collections.abc import Sequence

from smg.config.fields import Field, fields
from smg.config.original import ORIGINAL_FLAGS
from smg.config.settings import Assignment
from smg.registry import nearest

__all__ = ["FlagReader", "flag_table"]

NEGATIVE = re.compile(r"-[0-9.]+")


@functools.cache
def flag_table() -> dict[str, Field]:
    """Gives every flag of the tree with its field."""
    return {flag: field for field in fields() for flag in field.flags}


class FlagReader:
    """Reads one command line. Afterwards `files` holds what `--config` named and `help` whether it was asked for."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.files: list[str] = []
        self.help = False
        self.mistakes: list[str] = []
        self._assignments: dict[str, Assignment] = {}
        self._rest = deque(arguments)
        while self._rest:
            self._read(self._rest.popleft())

    def assignments(self) -> list[Assignment]:
        """Gives one assignment a field: the last value, or a list's values joined."""
        return list(self._assignments.values())

    def _read(self, word: str) -> None:
        flag, equals, inline = word.partition("=")
        given = inline if equals else None
        if word in ("-h", "--help"):
            self.help = True
        elif not word.startswith("-") or word == "-":
            self.mistakes.append(f"{word}: unexpected argument")
        elif flag == "--config":
            self.files += self._values(flag, given, many=False)
        elif flag in flag_table():
            self._take(flag, flag_table()[flag], given)
        elif (field := flag_table().get("--" + flag.removeprefix("--no-"))) and field.kind == "bool" and not equals:
            self._assign(flag, field, False)
        else:
            self._refuse(flag)

    def _take(self, flag: str, field: Field, given: str | None) -> None:
        if field.kind == "bool":
            self._assign(flag, field, True if given is None else given)
            return
        values = self._values(flag, given, many=field.kind == "list")
        if field.kind != "list":
            for value in values:
                self._assign(flag, field, value)
        elif values:
            before = self._assignments.get(field.path)
            earlier = before.raw if before is not None and isinstance(before.raw, list) else []
            self._assign(flag, field, [*earlier, *(value for value in values if value)])

    def _assign(self, flag: str, field: Field, raw: bool | str | list[str]) -> None:
        self._assignments[field.path] = Assignment(field=field, raw=raw, origin=flag, text=True)

    def _values(self, flag: str, given: str | None, *, many: bool) -> list[str]:
        if given is not None:
            return [given]
        values = self._following(1 << 30 if many else 1)
        if not values:
            self.mistakes.append(f"{flag}: needs a value")
        return values

    def _following(self, most: int) -> list[str]:
        values: list[str] = []
        while self._rest and len(values) < most and (not self._rest[0].startswith("-") or NEGATIVE.fullmatch(self._rest[0])):
            values.append(self._rest.popleft())
        return values

    def _refuse(self, flag: str) -> None:
        """Notes a flag that the tree lacks, and drops its values, whose number is unknown."""
        self._following(1 << 30)
        if ORIGINAL_FLAGS.difference(flag_table()).intersection((flag, flag.replace("--no-", "--", 1))):
            self.mistakes.append(f"{flag} is not supported by this version")
            return
        known = [*flag_table(), *("--no-" + name[2:] for name, field in flag_table().items() if field.kind == "bool"), "--config", "--help"]
        self.mistakes.append(f"{flag}: unknown flag{nearest(flag, known)}")
