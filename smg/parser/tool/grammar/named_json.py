"""Calls as a header with the name, then a JSON value: DeepSeek V3 and V3.1, Kimi K2, Mistral from v11, Solar, Gemma.

section begin? ( call begin, header, JSON, call end? )* section end?
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from smg.parser.margin import BLANK
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.literal import Literal
from smg.parser.tool.grammar.value import JsonValue
from smg.parser.tool.reader import BLANKS_MAX, NAME_MAX, MakeReader, Reader, expect

__all__ = ["Field", "Header", "NamedFormat", "NamedJson", "named_json"]

BETWEEN, HEADER, VALUE, TAIL, BROKEN = range(5)
# What models put between the value and the end mark: a fence, a brace too many.
TAIL_TOLERATED = BLANK + "`}]"


class Field(Struct, frozen=True):
    """A part of the header and the mark that ended it; "{" when the value begins, "" when the call ends."""

    text: str
    mark: str


# Gives name and id once they are certain, None before. Called whenever a part is complete.
Header: TypeAlias = Callable[[list[Field]], tuple[str, str | None] | None]


class NamedFormat(Struct, frozen=True, kw_only=True):
    """`sections`: marks that open a section; `begins`: that begin a call (they too may open one); `inner`: that part the header;
    `ends`: that end a call, without which it ends with its value; `closes`: that end the section."""

    header: Header
    value: Callable[[], JsonValue | Literal] = JsonValue
    begins: tuple[str, ...]
    sections: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks of the format."""
        return (*self.sections, *self.begins, *self.inner, *self.ends, *self.closes)


def named_json(form: NamedFormat) -> MakeReader:
    """Gives the maker of readers for that format."""
    return partial(NamedJson, form=form)


class NamedJson(Reader):
    """States: between calls, in the header, in the value, after it, and in a value that is no JSON."""

    def __init__(self, sink: Sink, opened: str, *, form: NamedFormat) -> None:
        super().__init__(sink, opened=opened, marks=form.marks)
        self._form = form
        self._between = Matcher((*form.sections, *form.begins, *form.ends, *form.closes))
        self._header = Matcher((*form.inner, *form.begins, *form.ends, *form.closes, "{"))
        self._blanks = 0
        self._steps = (self._step_between, self._step_header, self._step_value, self._step_tail, self._step_broken)
        self._state = BETWEEN
        if opened in form.begins:
            self._begin()

    def _begin(self) -> None:
        self._state = HEADER
        self._fields: list[Field] = []
        self._part: list[str] = []
        self._size = 0
        self._value = self._form.value()

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        return self._steps[self._state](text, at)

    def finish(self) -> None:
        """See Reader."""
        if self._state == VALUE:
            self.sink.arguments(self._value.finish())
        elif (self._state == HEADER and not self.named) or (self._state == BETWEEN and not self.count):
            self.cut()

    def _step_between(self, text: str, at: int) -> int:
        at, mark, other = expect(self._between, text, at, BLANK)
        self._blanks += 1
        if mark is not None:
            self._mark(mark)
        elif other and self.count:
            self.end(other + self._between.take())
        elif other or (self._blanks > BLANKS_MAX and not self.count):
            self.fail()
        return at

    def _mark(self, mark: str) -> None:
        """Between calls, or where one ended without its end mark."""
        self._blanks = 0
        self._state = BETWEEN
        if mark in self._form.begins:
            self._begin()
        elif mark in self._form.closes:
            self.end()

    def _step_header(self, text: str, at: int) -> int:
        at, mark, other = expect(self._header, text, at, "")
        self._part.append(other)
        self._size += 1
        if mark is not None:
            self._header_mark(mark)
        elif "<" in other or self._size > NAME_MAX:
            self._no_header()
        return at

    def _no_header(self) -> None:
        if self.named:
            self._state = BROKEN
        else:
            self.fail()

    def _header_mark(self, mark: str) -> None:
        part = "".join(self._part)
        self._part = []
        inner = mark in self._form.inner or mark == "{"
        self._fields.append(Field(part, mark if inner else ""))
        found = None if self.named else self._form.header(self._fields)
        if found is not None and found[0]:
            self.name(found[0], call_id=found[1])
        if not self.named and (mark == "{" or not inner):
            self.fail()
        elif mark == "{":
            self.sink.arguments(self._value.read("{", 0)[0])
            self._state = VALUE
        elif not inner:
            self._close(mark)

    def _close(self, mark: str | None) -> None:
        self.close()
        if mark is not None:
            self._mark(mark)
        elif self._form.ends:
            self._state = BETWEEN
        else:
            self.done = True

    def _step_value(self, text: str, at: int) -> int:
        piece, at = self._value.read(text, at)
        self.sink.arguments(piece)
        if self._value.broken:
            self._state = BROKEN
        elif self._value.done and self._form.ends:
            self._state = TAIL
        elif self._value.done:
            self._close(None)
        return at

    def _step_tail(self, text: str, at: int) -> int:
        at, mark, other = expect(self._between, text, at, TAIL_TOLERATED)
        if mark is not None:
            self._close(mark)
        elif other:
            self.close()
            self.end(other + self._between.take())
        return at

    def _step_broken(self, text: str, at: int) -> int:
        released, mark, at = self._between.scan(text, at, len(text))
        self.sink.arguments(released)
        if mark is not None:
            self._close(mark)
        return at
