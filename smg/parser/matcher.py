"""Finds protocol marks in text that comes in pieces; every splitter and grammar looks through one of these.

Holds back only what may still become a mark. One pass, constant work a character: what is held is never longer than the longest mark.
"""

import functools
import re
from typing import NamedTuple

__all__ = ["Matcher"]


class Tables(NamedTuple):
    """What is made once for a set of marks, not once a request."""

    marks: frozenset[str]
    every: tuple[str, ...]
    prefixes: frozenset[str]
    longest: int
    first: re.Pattern[str] | None


@functools.lru_cache(maxsize=1024)
def _tables(given: tuple[str, ...]) -> Tables:
    marks = frozenset(given)
    prefixes = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
    clash = [mark for mark in marks if any(mark in other[:-1] for other in marks if other != mark)]
    if clash:
        raise ValueError(f"a mark that begins or lies inside another: {sorted(clash)}")
    firsts = "".join(sorted({mark[0] for mark in marks}))
    first = re.compile(f"[{re.escape(firsts)}]") if firsts else None
    return Tables(marks, tuple(marks), prefixes, max(map(len, marks), default=0), first)


class Matcher:
    """Looks for the earliest of `marks`, none of which may begin another or lie inside one. See design.md section 4, rule 1."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        self.pending = ""
        self.marks, self._every, self._prefixes, self._longest, self._first = _tables(marks)

    def scan(self, text: str, at: int, stop: int) -> tuple[str, str | None, int]:
        """Reads `text[at:stop]` up to the end of the first mark. Gives the text before it, the mark or None, and where it stopped."""
        if self._first is None:
            return text[at:stop], None, stop
        end, shift = stop, 0
        if self.pending:
            shift = at - len(self.pending)
            text, at, end = self.pending + text[at:stop], 0, stop - shift
            self.pending = ""
        begin = at
        while (found := self._first.search(text, at, end)) is not None:
            at = found.start()
            if text.startswith(self._every, at, end):
                mark = next(mark for mark in self._every if text.startswith(mark, at, end))
                return text[begin:at], mark, at + len(mark) + shift
            if end - at < self._longest and text[at:end] in self._prefixes:
                self.pending = text[at:end]
                return text[begin:at], None, stop
            at += 1
        return text[begin:end], None, stop

    def take(self) -> str:
        """Gives what is held back, and holds it no longer: the output has ended, or another reader goes on."""
        held, self.pending = self.pending, ""
        return held
