"""Calls as Python writes them: `[name(key='value'), other()]` (Llama 3.2 and 4, Gemma 3, LFM2), or one a line (OLMo 3).

Keyword values become JSON as they come. Positional values take their names from the tool's schema, in its order.
"""

import json
import re
from functools import partial

from smg.parser.margin import BLANK
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.literal import Literal
from smg.parser.tool.reader import BLANKS_MAX, NAME_MAX, MakeReader, Reader, expect

__all__ = ["PythonicCalls", "pythonic_calls"]

BETWEEN, NAME, ARGUMENT, VALUE, AFTER, BROKEN = range(6)
IN_NAME = re.compile(r"[\w.-]")


def pythonic_calls(*, closes: tuple[str, ...] = (), marks: tuple[str, ...] = ()) -> MakeReader:
    """Gives the maker of readers; `closes`: marks that end a section. Without an opening mark only known names in a list are calls."""
    return partial(PythonicCalls, closes=closes, marks=marks)


class PythonicCalls(Reader):
    """States: between calls, in a name, before an argument, in a value, after it, and in a call that is no Python."""

    def __init__(self, sink: Sink, opened: str, *, closes: tuple[str, ...], marks: tuple[str, ...]) -> None:
        super().__init__(sink, opened=opened, marks=(*marks, *closes))
        self._bare = not opened
        self._closes = Matcher(() if self._bare else closes)
        self._firsts = "" if self._bare else "".join(mark[0] for mark in closes)
        self._state = BETWEEN
        self._steps = (self._between, self._in_name, self._argument, self._in_value, self._after, self._broken)
        self._listed = False
        self._blanks: list[str] = []

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        return self._steps[self._state](text, at)

    def finish(self) -> None:
        """See Reader."""
        if self._state == VALUE:
            self.sink.arguments(self._value.finish())
        elif self._state in (BETWEEN, NAME) and not (self._state == BETWEEN and self.count):
            if self._bare:
                self.sink.show("".join(self._raw))
            else:
                self.cut()

    def _between(self, text: str, at: int) -> int:
        char = text[at]
        if self._closes.pending or char in self._firsts:
            return self._close_mark(text, at)
        if char in BLANK or (char in ",;" and self.count):
            self._blanks.append(char)
            if len(self._blanks) > BLANKS_MAX and not self.count:
                self.fail()
        elif char == "[" and not self._listed and not self.count:
            self._listed = True
        elif char == "]" and self._listed and self.count:
            self._listed = False
            self.done = not self._firsts
        elif IN_NAME.match(char) and (self._listed or not self._bare):
            self._name = ""
            self._state = NAME
            return at
        elif self.count:
            self.end("".join(self._blanks) + char)
        else:
            self.fail()
        return at + 1

    def _close_mark(self, text: str, at: int) -> int:
        at, mark, other = expect(self._closes, text, at, "")
        if mark is not None:
            self.end()
        elif other and self.count:
            self.end(other + self._closes.take())
        elif other:
            self.fail()
        return at

    def _in_name(self, text: str, at: int) -> int:
        char = text[at]
        if IN_NAME.match(char) and len(self._name) < NAME_MAX:
            self._name += char
        elif char == "(" and (not self._bare or self.count or self._name in self.sink.schemas):
            self.name(self._name)
            self._keys = self._positional()
            self._first = True
            self._word = ""
            self._state = ARGUMENT
        elif self.count:
            self.end("".join(self._blanks) + self._name + char)
        else:
            self.fail()
        return at + 1

    def _positional(self) -> list[str]:
        properties = self.sink.schemas.get(self._name, {}).get("properties")
        return list(properties) if isinstance(properties, dict) else []

    def _argument(self, text: str, at: int) -> int:
        char = text[at]
        if IN_NAME.match(char) and (self._word or not (char.isdigit() or char in "-.")) and len(self._word) < NAME_MAX:
            self._word += char
        elif char in BLANK:
            return at + 1
        elif char in "=:" and self._word:
            self._key(self._word)
        elif char in ",)" and not self._word:
            return self._after(text, at)
        else:
            self._key(self._keys[0] if self._keys else "argument")
            self.sink.arguments(self._value.read(self._word, 0)[0])
            return at
        return at + 1

    def _key(self, key: str) -> None:
        if key in self._keys:
            self._keys.remove(key)
        self.sink.arguments(f"{'{' if self._first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
        self._first = False
        self._value = Literal()
        self._state = VALUE

    def _in_value(self, text: str, at: int) -> int:
        piece, at = self._value.read(text, at)
        self.sink.arguments(piece)
        if self._value.done:
            self._state = AFTER
        elif self._value.broken:
            self._state = BROKEN
        return at

    def _after(self, text: str, at: int) -> int:
        char = text[at]
        if char == ",":
            self._word = ""
            self._state = ARGUMENT
        elif char == ")":
            if not self._first:
                self.sink.arguments("}")
            self.close()
            self._blanks = []
            self._state = BETWEEN
        elif char not in BLANK:
            self._state = BROKEN
            return at
        return at + 1

    def _broken(self, text: str, at: int) -> int:
        """The call reaches up to the closing mark; without one it ends here, and the rest is text."""
        if not self._firsts:
            self.close()
            self.done = True
            return at
        released, mark, at = self._closes.scan(text, at, len(text))
        self.sink.arguments(released)
        if mark is not None:
            self.close()
            self.done = True
        return at
