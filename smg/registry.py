"""The one way plug-ins are found: a `Registry` maps a name to what a file registered under it. Used by policies, parsers and engines."""

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Registry", "nearest"]

T = TypeVar("T")


def nearest(name: str, known: list[str]) -> str:
    """Gives ` (did you mean X?)` for the closest known name, or an empty string when none is close."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


class Registry(Generic[T]):
    """Names of one kind of plug-in, in the order of registration. `kind` is the word used in error messages."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._members: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[T], T]:
        """Decorator: files the decorated object under `name`. A name or alias may be taken once."""

        def put(member: T) -> T:
            for key in (name, *aliases):
                if key in self._members or key in self._aliases:
                    raise ValueError(f"{self.kind} {key!r} is registered twice")
            self._members[name] = member
            self._aliases.update(dict.fromkeys(aliases, name))
            return member

        return put

    def get(self, name: str) -> T:
        """Gives the member; KeyError, with the nearest name in its text, when there is none."""
        member = self._members.get(self._aliases.get(name, name))
        if member is None:
            raise KeyError(f"unknown {self.kind} {name!r}{nearest(name, self.names(aliases=True))}")
        return member

    def names(self, *, aliases: bool = False) -> list[str]:
        """Gives the registered names, with their aliases when asked."""
        return [*self._members, *self._aliases] if aliases else list(self._members)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return iter(self._members.items())

    def __contains__(self, name: str) -> bool:
        return name in self._members or name in self._aliases
