"""Follows one JSON value through text that comes in pieces: knows where it ends, without keeping it. Used by all JSON-argument grammars."""

import json
import re

__all__ = ["NUMBER", "JsonValue", "decoded", "quoted"]

# Characters that may stand between the strings of a JSON text; letters so that NaN, None and the like end at the right place too.
OUTSIDE = re.compile(r"[\s\w:,.+\-]+")
SCALAR = re.compile(r"[\w.+\-]+")
INSIDE = re.compile(r'[^"\\\x00-\x1f]+')
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
PAIRS = {"}": "{", "]": "["}


def quoted(text: str) -> str:
    """Gives the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def decoded(raw: str) -> str:
    """Gives the text of a JSON string's inside; the inside itself when it is no valid one."""
    try:
        value = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return str(value)


class JsonValue:
    """One value. `kind`: its first character, "" before it. `done`: it is complete. `broken`: the next character cannot be part of it.

    Text is passed on as the model wrote it, but for two faults that no JSON reader forgives and models commit: control characters inside a
    string, and a backslash before a character that needs none. Both are escaped.
    """

    def __init__(self) -> None:
        self.kind = ""
        self.done = False
        self.broken = False
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Reads `text` from `at`: gives what to pass on, and where it stopped: at the end, after the value, or at what breaks it."""
        parts: list[str] = []
        size = len(text)
        while at < size and not self.done and not self.broken:
            if self._in_string:
                at = self._string(text, at, parts)
            elif not self.kind or self._open:
                at = self._outside(text, at, parts)
            else:
                at = self._scalar(text, at, parts)
        return "".join(parts), at

    def finish(self) -> str:
        """The output ends: a scalar has no end mark of its own. Gives what was held, which is nothing."""
        if self.kind and not self._open and not self._in_string:
            self.done = True
        return ""

    def _string(self, text: str, at: int, parts: list[str]) -> int:
        if self._escaped:
            self._escaped = False
            char = text[at]
            parts.append(f"\\{char}" if char in '"\\/bfnrtu' else f"\\\\{CONTROL.get(char, char)}")
            return at + 1
        found = INSIDE.match(text, at)
        if found is not None:
            parts.append(found.group())
            return found.end()
        char = text[at]
        if char == "\\":
            self._escaped = True
        elif char == '"':
            parts.append(char)
            self._in_string = False
            self.done = not self._open
        else:
            parts.append(CONTROL.get(char) or f"\\u{ord(char):04x}")
        return at + 1

    def _outside(self, text: str, at: int, parts: list[str]) -> int:
        char = text[at]
        if not self.kind:
            if char in " \t\r\n":
                return at + 1
            self.kind = char
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._open.append(char)
        elif char in "}]":
            if not self._open or self._open[-1] != PAIRS[char]:
                self.broken = True
                return at
            self._open.pop()
            self.done = not self._open
        elif not self._open:
            return self._scalar(text, at, parts)
        else:
            found = OUTSIDE.match(text, at)
            if found is None:
                self.broken = True
                return at
            parts.append(found.group())
            return found.end()
        parts.append(char)
        return at + 1

    def _scalar(self, text: str, at: int, parts: list[str]) -> int:
        found = SCALAR.match(text, at)
        if found is not None:
            parts.append(found.group())
            return found.end()
        if len(self.kind) and SCALAR.match(self.kind) is None:
            self.broken = True
        else:
            self.done = True
        return at
