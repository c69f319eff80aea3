"""Finds control tokens' names in a client's text, whole or as a beginning or end that the template could complete. For `literals.py`."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from smg.tokenizer.folder import AddedToken
from smg.tokenizer.marks import is_control, is_mark, pattern_of

__all__ = ["MarkFinder"]

# Keys, roles and kinds come with every request: what was found in texts this short is remembered.
SHORT = 32
SHORT_TEXTS = 4096
# What a message of words alone has besides its words.
ROLES = ("system", "developer", "user", "assistant", "tool")
# The JSON form of a value has these, whatever its texts are.
STRUCTURE = frozenset('[]{},:"\\-+.0123456789truefalsnE')


class _Set:
    """One set of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.pattern = re.compile(pattern_of(self.names)) if self.names else None
        self.longest = max((len(name) for name in self.names), default=0)
        self.beginnings = frozenset(name[:size] for name in self.names for size in range(1, len(name)))
        self.endings = frozenset(name[-size:] for name in self.names for size in range(1, len(name)))
        self._first = frozenset(name[0] for name in self.names)
        self._last = frozenset(name[-1] for name in self.names)
        # A pattern that begins with one character is searched much faster than one that begins with any of two.
        self._patterns = {first: re.compile(pattern_of(names)) for first, names in groupby(sorted(self.names), key=itemgetter(0))}

    def found(self, text: str) -> bool:
        """True when the text holds a name."""
        return any(first in text and pattern.search(text) is not None for first, pattern in self._patterns.items())

    def head(self, text: str) -> int:
        """The length of the longest ending of a name that the text begins with."""
        start = text[: self.longest - 1]
        if self._last.isdisjoint(start):
            return 0
        return next((size for size in range(len(start), 0, -1) if start[:size] in self.endings), 0)

    def tail(self, text: str) -> int:
        """The length of the longest beginning of a name that the text ends with."""
        end = text[max(0, len(text) - self.longest + 1) :]
        if self._first.isdisjoint(end):
            return 0
        return next((size for size in range(len(end), 0, -1) if end[-size:] in self.beginnings), 0)


class MarkFinder:
    """Knows a model's control tokens. Two sets:

    narrow  tokens flagged special, and barred ones such as `<｜User｜>`: never wanted in a client's text
    wide    also the plain marks that the template writes, such as `<tool_response>`: not wanted in user text, tool results and tool
            descriptions; in system and assistant text clients write them on purpose
    """

    def __init__(self, tokens: Iterable[AddedToken], *, source: str) -> None:
        tokens = list(tokens)
        narrow = {token.content for token in tokens if token.content.strip() and is_control(token.content, special=token.special)}
        written = {token.content for token in tokens if is_mark(token.content) and token.content in source}
        self._narrow = _Set(narrow)
        self._wide = _Set(narrow | written)
        self._short = lru_cache(SHORT_TEXTS)(self._touches)
        self._written = written | {name for name in narrow if name in source}
        # A text that touches a name has the first or the last character of one.
        self._edges = sorted({character for name in self._wide.names for character in (name[0], name[-1])})
        self._encode = msgspec.msgpack.encode if STRUCTURE.intersection(self._edges) else msgspec.json.encode
        self._encoded_edges = [character.encode(errors="surrogatepass") for character in self._edges]
        self._roles = frozenset(role for role in ROLES if not any(self.touches(text, wide=True) for text in (role, "role", "content")))

    def clears(self, value: Any) -> bool:
        """True when surely no text or key in a JSON value touches a name, by the look of the value as a whole."""
        if type(value) is dict and len(value) == 2 and value.get("role") in self._roles and type(content := value.get("content")) is str:
            for edge in self._edges:  # noqa: SIM110  # a generator costs more than the search
                if edge in content:
                    return False
            return True
        if value is None:
            return True
        try:
            encoded = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return False
        return not any(edge in encoded for edge in self._encoded_edges)

    def touches(self, text: str, *, wide: bool) -> bool:
        """True when the text holds a name, or begins or ends with a part of one."""
        return self._short(text, wide) if len(text) <= SHORT else self._touches(text, wide)

    def _touches(self, text: str, wide: bool) -> bool:
        names = self._wide if wide else self._narrow
        if names.pattern is None or not text:
            return False
        return names.found(text) or names.head(text) > 0 or names.tail(text) > 0

    def replace(self, text: str, namer: Callable[[str], str], *, wide: bool, spare: bool = False) -> str:
        """Gives the text with every name, and parts of names at its ends, replaced; `spare` keeps the names that the template writes."""
        names = self._wide if wide else self._narrow
        if names.pattern is None or not text:
            return text
        spans = [match.span() for match in names.pattern.finditer(text)]
        head, tail = names.head(text), names.tail(text)
        if head and (not spans or spans[0][0] >= head):
            spans.insert(0, (0, head))
        if tail and (not spans or spans[-1][1] <= len(text) - tail):
            spans.append((len(text) - tail, len(text)))
        parts: list[str] = []
        done = 0
        for start, end in spans:
            if start < done or (spare and text[start:end] in self._written):
                continue
            parts += (text[done:start], namer(text[start:end]))
            done = end
        parts.append(text[done:])
        return "".join(parts)
