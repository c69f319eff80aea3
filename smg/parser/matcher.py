"""Finds protocol marks in text that comes in pieces; every splitter and grammar looks through one of these.

Holds back only what may still become a mark. One pass, constant work a character: what is held is never longer than the longest mark.
"""

import functools
import re

__all__ = ["Matcher"]


@functools.lru_cache(maxsize=1024)
def _tables(marks: frozenset[str]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Proper prefixes of the marks, and what finds a character that begins one; made once a set of marks, not once a request."""
    prefixes = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
    clash = [mark for mark in marks if any(mark in other[:-1] for other in marks if other != mark)]
    if clash:
        raise ValueError(f"a mark that begins or lies inside another: {sorted(clash)}")
    firsts = "".join(sorted({mark[0] for mark in marks}))
    return prefixes, re.compile(f"[{re.escape(firsts)}]") if firsts else None


class Matcher:
    """Looks for the earliest of `marks`, none of which may begin another or lie inside one. See design.md section 4, rule 1."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        self.marks = frozenset(marks)
        self.pending = ""
        self._prefixes, self._first = _tables(self.marks)

    def scan(self, text: str, at: int, stop: int) -> tuple[str, str | None, int]:
        """Reads `text[at:stop]` up to the end of the first mark. Gives the text before it, the mark or None, and where it stopped."""
        if self._first is None:
            return text[at:stop], None, stop
        released: list[str] = []
        pending = self.pending
        while at < stop:
            if not pending:
                found = self._first.search(text, at, stop)
                begin = stop if found is None else found.start()
                if begin > at:
                    released.append(text[at:begin])
                if found is None:
                    at = stop
                    break
                at = begin
            pending += text[at]
            at += 1
            while pending and pending not in self._prefixes:
                if pending in self.marks:
                    self.pending = ""
                    return "".join(released), pending, at
                released.append(pending[0])
                pending = pending[1:]
        self.pending = pending
        return "".join(released), None, at

    def take(self) -> str:
        """Gives what is held back, and holds it no longer: the output has ended, or another reader goes on."""
        held, self.pending = self.pending, ""
        return held
