"""Turns a literal that is nearly JSON into JSON as it comes: Python's (pythonic calls, Sarashina) and Gemma's with its own quote mark.

Strings in either quotes, tripled or with a prefix; True, False, None; tuples; keys without quotes; trailing commas. One pass, nothing kept
but the word or escape that is being read.
"""

import json
import re

from smg.parser.margin import BLANK
from smg.parser.matcher import Matcher
from smg.parser.tool.grammar.value import NUMBER, quoted

__all__ = ["Literal", "literal_as_json"]

EXPECT, WORD, QUOTE, STRING, ESCAPE, MARKED, AFTER = range(7)
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null", "none": "null"}
SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
CODES = {"x": 2, "u": 4, "U": 8}
HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
PREFIXES = frozenset({"r", "b", "u", "f", "rb", "br", "fr", "rf"})
CLOSERS = {"[": "]", "(": ")", "{": "}"}
PLAIN = {quote: re.compile(f"[^\\\\{quote}]+") for quote in "'\""}
IN_WORD = re.compile(r"[^\s,:=()\[\]{}'\"<]+")


class Literal:
    """One value. Same surface as JsonValue: `kind`, `done`, `broken`, `read`, `finish`. `mark`: a quote mark besides the usual ones."""

    def __init__(self, *, mark: str = "") -> None:
        self.kind = ""
        self.done = False
        self.broken = False
        self._mark = Matcher((mark,)) if mark else None
        self._steps = (
            self._expect,
            self._word,
            self._quote,
            self._string,
            self._escape,
            self._marked,
            self._after,
        )
        self._state = EXPECT
        self._stack: list[str] = []  # closing brackets
        self._keys: list[bool] = []  # a key comes next, for each bracket
        self._comma = False
        self._read = ""
        self._raw = False
        self._parts: list[str] = []

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Reads `text` from `at`: gives the JSON that is certain, and where it stopped: at the end, after the value, or at a fault."""
        size = len(text)
        while at < size and not self.done and not self.broken:
            at = self._steps[self._state](text, at)
        parts, self._parts = self._parts, []
        return "".join(parts), at

    def finish(self) -> str:
        """The output ends: gives what was held, and is done if nothing is open."""
        if self._state == WORD:
            self._end_word()
        elif self._state == QUOTE and len(self._read) == 2:
            self._parts.append('""')
            self._end_value()
        parts, self._parts = self._parts, []
        return "".join(parts)

    def _begin(self) -> None:
        self.kind = self.kind or "v"
        if self._comma:
            self._parts.append(", ")
            self._comma = False

    def _expect(self, text: str, at: int) -> int:
        char = text[at]
        if self._mark is not None and (self._mark.pending or char == "<"):
            return self._open_mark(text, at)
        if char in BLANK:
            return at + 1
        if self._stack and char == self._stack[-1]:
            return self._close(at)
        if char in "'\"":
            self._begin()
            self._quoted(char, raw=False)
        elif char in "[({":
            self._begin()
            self.kind = char if self.kind == "v" else self.kind
            self._stack.append(CLOSERS[char])
            self._keys.append(char == "{")
            self._parts.append("{" if char == "{" else "[")
        elif IN_WORD.match(char):
            self._begin()
            self._read = ""
            self._pieces: list[str] = []
            self._state = WORD
            return at
        else:
            self.broken = True
            return at
        return at + 1

    def _open_mark(self, text: str, at: int) -> int:
        assert self._mark is not None
        released, found, at = self._mark.scan(text, at, at + 1)
        if found is not None:
            self._begin()
            self._parts.append('"')
            self._state = MARKED
        elif released:
            self._mark.take()
            self.broken = True
        return at

    def _close(self, at: int) -> int:
        closer = self._stack.pop()
        self._keys.pop()
        self._comma = False
        self._parts.append("}" if closer == "}" else "]")
        self._end_value()
        return at + 1

    def _end_value(self) -> None:
        self._state = AFTER
        self.done = not self._stack

    def _quoted(self, quote: str, *, raw: bool) -> None:
        self._quote_char = quote
        self._raw = raw
        self._triple = False
        self._read = quote
        self._state = QUOTE

    def _word(self, text: str, at: int) -> int:
        found = IN_WORD.match(text, at)
        if found is not None:
            self._pieces.append(found.group())
            return found.end()
        word = "".join(self._pieces)
        if text[at] in "'\"" and word.lower() in PREFIXES:
            self._quoted(text[at], raw="r" in word.lower())
            return at + 1
        self._end_word()
        return at

    def _end_word(self) -> None:
        word = "".join(self._pieces)
        value = WORDS.get(word) or (word if NUMBER.fullmatch(word) else json.dumps(word, ensure_ascii=False))
        key = bool(self._keys) and self._keys[-1]
        self._parts.append(f'"{quoted(word)}"' if key else value)
        self._end_value()

    def _quote(self, text: str, at: int) -> int:
        """One or two quotes were read: an empty string, a triple quote, or the first character of a string."""
        if text[at] == self._quote_char:
            self._read += text[at]
            if len(self._read) == 3:
                self._triple = True
                self._start_string()
            return at + 1
        if len(self._read) == 2:
            self._parts.append('""')
            self._end_value()
        else:
            self._start_string()
        return at

    def _start_string(self) -> None:
        self._parts.append('"')
        self._read = ""
        self._state = STRING

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if char == self._quote_char:
            self._read += char
            if len(self._read) == (3 if self._triple else 1):
                self._parts.append('"')
                self._end_value()
            return at + 1
        self._parts.append(quoted(self._read))
        self._read = ""
        if char == "\\":
            self._state = ESCAPE
            return at + 1
        found = PLAIN[self._quote_char].match(text, at)
        assert found is not None
        self._parts.append(quoted(found.group()))
        return found.end()

    def _escape(self, text: str, at: int) -> int:
        char = text[at]
        if not self._read:
            if not self._raw and char in CODES:
                self._read = char
                return at + 1
            known = not self._raw and (char in SIMPLE or char in "\\'\"")
            self._parts.append(quoted(SIMPLE.get(char, char) if known else "\\" + char))
        elif char in HEXADECIMAL:
            self._read += char
            if len(self._read) <= CODES[self._read[0]]:
                return at + 1
            self._parts.append(_code(self._read))
        else:
            self._parts.append(quoted("\\" + self._read))
            self._read = ""
            self._state = STRING
            return at
        self._read = ""
        self._state = STRING
        return at + 1

    def _marked(self, text: str, at: int) -> int:
        assert self._mark is not None
        released, found, at = self._mark.scan(text, at, len(text))
        self._parts.append(quoted(released))
        if found is not None:
            self._parts.append('"')
            self._end_value()
        return at

    def _after(self, text: str, at: int) -> int:
        char = text[at]
        if char in BLANK:
            return at + 1
        if char == self._stack[-1]:
            return self._close(at)
        in_dict = self._stack[-1] == "}"
        if char == "," and not (in_dict and self._keys[-1]):
            self._comma = True
            self._keys[-1] = in_dict
        elif char in ":=" and in_dict and self._keys[-1]:
            self._parts.append(": ")
            self._keys[-1] = False
        else:
            self.broken = True
            return at
        self._state = EXPECT
        return at + 1


def _code(escape: str) -> str:
    """The JSON of a code escape; halves of a pair stay apart, a JSON reader joins them."""
    number = int(escape[1:], 16)
    if escape[0] == "u" or 0xD800 <= number <= 0xDFFF:  # no UTF-8 has a half by itself
        return f"\\u{number:04x}"
    return quoted(chr(number)) if number <= 0x10FFFF else quoted("\\" + escape)


def literal_as_json(text: str) -> str | None:
    """Gives the JSON of a whole literal; None when it is none."""
    value = Literal()
    piece, at = value.read(text, 0)
    piece += value.finish()
    return piece if value.done and not text[at:].strip() else None
