"""The parser of Functionary v3.2: the output is a row of messages, each `>>>recipient`, a newline, and what the recipient gets.

The recipient is `all`, who gets text, or a tool, who gets its arguments in JSON, or code. The prompt ends with `>>>`, so that the output
begins with a recipient. What only looks like a head, such as a line of a Python session, is text. Built by `smg.parser.build`.
"""

import json
import re

from smg.parser.base import Parser, Piece
from smg.parser.margin import BLANK, Margin
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.value import JsonValue, quoted
from smg.parser.tool.reader import NAME_MAX
from smg.types.json import JsonObject

__all__ = ["FUNCTIONARY_MARKS", "Functionary"]

FUNCTIONARY_MARKS = (HEAD_MARK,) = (">>>",)
EVERYBODY = "all"
IN_NAME = re.compile(r"[\w.:-]")
HEAD, TEXT, BEFORE, VALUE, CODE = range(5)


class Functionary(Parser):
    """States: in a head, in text, before a call's arguments, in them, in code. `calls`: tool calls are wanted; without, all is text."""

    def __init__(self, *, schemas: dict[str, JsonObject], thoughts: bool, calls: bool, in_think: bool) -> None:
        self._sink = Sink(schemas=schemas)
        self._text = Margin(self._sink.text)
        self._sink.mark = self._text.mark
        self._known = schemas if calls else {}
        self._matcher = Matcher(FUNCTIONARY_MARKS)
        self._lead = ""  # what stood before the head
        self._head = ""
        self._state = HEAD
        self._steps = (self._in_head, self._in_text, self._before_value, self._in_value, self._in_code)

    def feed(self, text: str) -> list[Piece]:
        """See Parser."""
        at, size = 0, len(text)
        while at < size:
            at = self._steps[self._state](text, at)
        return self._sink.take()

    def finish(self) -> list[Piece]:
        """See Parser. Code has no end of its own: the output's end is its end."""
        held = self._matcher.take()
        if self._state == HEAD:
            self._text.mark()
            self._text.text(self._head + held)
            self._head = ""
        elif self._state == CODE:
            self._sink.arguments(quoted(held) + '"}')
            self._sink.close()
            self._state = TEXT
        else:
            self._text.text(held)
        self._text.finish()
        return self._sink.take()

    def _in_head(self, text: str, at: int) -> int:
        char = text[at]
        if char == "\n" and (self._head == EVERYBODY or self._head in self._known) and self._head:
            self._begin(self._head)
            return at + 1
        if IN_NAME.match(char) and len(self._head) < NAME_MAX:
            self._head += char
            return at + 1
        if char == ">" and not self._head and not self._lead:  # the mark that the prompt should have ended with
            self._state = TEXT
            return at
        self._text.text(self._lead + self._head)
        self._state = TEXT
        return at

    def _begin(self, name: str) -> None:
        self._text.mark()
        self._state = TEXT
        if name != EVERYBODY:
            self._name = name
            self._sink.call(name)
            self._state = BEFORE

    def _in_text(self, text: str, at: int) -> int:
        released, mark, at = self._matcher.scan(text, at, len(text))
        self._text.text(released)
        if mark is not None:
            self._state, self._lead, self._head = HEAD, HEAD_MARK, ""
        return at

    def _before_value(self, text: str, at: int) -> int:
        if self._matcher.pending or text[at] == HEAD_MARK[0]:
            return self._next(text, at)
        if text[at] in BLANK:
            return at + 1
        if text[at] == "{":
            self._value = JsonValue()
            self._state = VALUE
        else:
            self._open_code()
        return at

    def _next(self, text: str, at: int) -> int:
        """The next head, where no arguments came."""
        released, mark, at = self._matcher.scan(text, at, at + 1)
        if mark is not None:
            self._sink.close()
            self._state, self._lead, self._head = HEAD, HEAD_MARK, ""
        elif released:
            self._open_code()
            self._sink.arguments(quoted(released))
        return at

    def _open_code(self) -> None:
        properties = self._known.get(self._name, {}).get("properties")
        key = next(iter(properties), "code") if isinstance(properties, dict) else "code"
        self._sink.arguments("{" + json.dumps(key, ensure_ascii=False) + ': "')
        self._state = CODE

    def _in_value(self, text: str, at: int) -> int:
        piece, at = self._value.read(text, at)
        self._sink.arguments(piece)
        if self._value.done or self._value.broken:
            self._sink.close()
            self._text.mark()
            self._state = TEXT
        return at

    def _in_code(self, text: str, at: int) -> int:
        released, mark, at = self._matcher.scan(text, at, len(text))
        self._sink.arguments(quoted(released))
        if mark is not None:
            self._sink.arguments('"}')
            self._sink.close()
            self._state, self._lead, self._head = HEAD, HEAD_MARK, ""
        return at
