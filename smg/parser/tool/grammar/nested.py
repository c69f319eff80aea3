"""Calls as XML whose values nest: MiniMax M3. Every tag has the same mark before it, so that no other `<` of the model's text is a tag.

    M<tool_call> ( M<invoke name="…"> ( M<key>value M</key> )* M</invoke> )* M</tool_call>

A value is text, or an object `M<key>…M</key>…`, or a list `M<item>…M</item>…`; which, its first tag and the tool's schema tell.
"""

import json
from functools import partial

from smg.parser.margin import BLANK
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.schema import STRING, inner_of, kinds_in
from smg.parser.tool.grammar.typed import TypedValue
from smg.parser.tool.reader import BLANKS_MAX, NAME_MAX, MakeReader, Reader, expect
from smg.types.json import JsonObject

__all__ = ["NestedCalls", "nested_calls"]

BETWEEN, HEAD, BODY, TAG = range(4)
DEPTH_MAX = 64
ITEM = "item"
LISTS, OBJECTS = frozenset({"array"}), frozenset({"object"})


def nested_calls(mark: str) -> MakeReader:
    """Gives the maker of readers; `mark` stands before each tag."""
    return partial(NestedCalls, mark=mark)


class _Element:
    """An open element. `filled`: "" while nothing but blanks came, else what it holds: text, object or list."""

    def __init__(self, name: str, schema: JsonObject, kinds: frozenset[str]) -> None:
        self.name = name
        self.schema = schema
        self.kinds = kinds
        self.filled = ""
        self.blanks: list[str] = []
        self.value: TypedValue | None = None
        self.first = True


class NestedCalls(Reader):
    """States: between calls, in a call's head, in a body, and in the name of a tag."""

    def __init__(self, sink: Sink, opened: str, *, mark: str) -> None:
        self._section, self._close, self._invoke, self._end = (
            f"{mark}{tag}" for tag in ("<tool_call>", "</tool_call>", "<invoke", "</invoke>")
        )
        super().__init__(sink, opened=opened, marks=(self._section, self._close, self._invoke, self._end, mark))
        self._mark = mark
        self._between = Matcher((self._section, self._invoke, self._end, self._close))
        self._body = Matcher((mark,))
        self._blanks = 0
        self._state = BETWEEN
        self._steps = (self._step_between, self._step_head, self._step_body, self._step_tag)
        self._open: list[_Element] = []
        self._word = ""
        self._junk = False  # text that is no part of the format was shown since the last tag
        if opened == self._invoke:
            self._state = HEAD

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        return self._steps[self._state](text, at)

    def finish(self) -> None:
        """See Reader."""
        if self._state == HEAD or (self._state == BETWEEN and not self.count):
            self.cut()
        elif self._state in (BODY, TAG) and self._open and self._open[-1].value is not None:
            value = self._open[-1].value
            value.add("" if self._state == TAG else self._body.take())
            value.cut()

    def _step_between(self, text: str, at: int) -> int:
        at, mark, other = expect(self._between, text, at, BLANK)
        self._blanks += 1
        if mark == self._invoke:
            self._state, self._word = HEAD, ""
        elif mark == self._close:
            self.end()
        elif other and self.count:
            self.end(other + self._between.take())
        elif not self.count and (other or mark is not None or self._blanks > BLANKS_MAX):
            self.fail()
        return at

    def _step_head(self, text: str, at: int) -> int:
        char = text[at]
        if char == ">":
            name = self._word.strip().removeprefix("name=").strip("\"'")
            if not name or any(blank in name for blank in BLANK):
                self.fail()
                return at + 1
            self.name(name)
            self._root = self.sink.schemas.get(name, {})
            self._open = [_Element("invoke", self._root, OBJECTS)]
            self._open[0].filled = "object"
            self.sink.arguments("{")
            self._state = BODY
        elif char == "<" or len(self._word) > NAME_MAX:
            self.fail()
        else:
            self._word += char
        return at + 1

    def _step_body(self, text: str, at: int) -> int:
        released, mark, at = self._body.scan(text, at, len(text))
        if released:
            self._text(released)
        if mark is not None:
            self._state, self._word = TAG, ""
        return at

    def _step_tag(self, text: str, at: int) -> int:
        """After the mark: a tag, whose name ends with ">"; anything else is text, and the mark was none."""
        char = text[at]
        if (char != "<") if not self._word else (char in "<]" or len(self._word) > NAME_MAX):
            self._state = BODY
            word, self._word = self._word, ""
            if word:
                self._text(word)
            return at
        self._word += char
        if char == ">":
            self._state = BODY
            self._tag(self._word)
        return at + 1

    def _text(self, text: str) -> None:
        element = self._open[-1]
        if element.filled in ("object", "array"):
            text = text if self._junk else text.lstrip(BLANK)
            if text:
                self._junk = True
                self.sink.show(text)
            return
        if element.value is None:
            if not text.strip(BLANK):
                element.blanks.append(text)
                return
            element.filled = "text"
            element.value = TypedValue(self.sink, element.kinds or STRING)
            for blank in element.blanks:
                element.value.add(blank)
        element.value.add(text)

    def _tag(self, tag: str) -> None:
        self._junk = False
        if tag.startswith("</"):
            self._close_tag(tag[2:-1].strip(), tag)
        elif tag.startswith("<invoke") and not tag.startswith("<invoke>"):
            self._close_all()  # the call's end was left out
            self._state, self._word = HEAD, tag[len("<invoke") : -1]
            self._step_head(">", 0)
        elif self._open[-1].filled == "text" or len(self._open) >= DEPTH_MAX:
            self._text(tag)
        else:
            self._begin(tag[1:-1].strip())

    def _close_tag(self, name: str, tag: str) -> None:
        depth = next((at for at in range(len(self._open) - 1, -1, -1) if self._open[at].name == name), None)
        if name in ("invoke", "tool_call") and depth in (None, 0):
            self._close_all()
            if name == "tool_call":
                self.end()
        elif self._open[-1].filled == "text" and self._open[-1].name != name and depth is None:
            self._text(tag)
        elif depth:
            while len(self._open) > depth:
                self._end_element(self._open.pop())

    def _begin(self, name: str) -> None:
        parent = self._open[-1]
        if not parent.filled:
            listed = "array" in parent.kinds or (name == ITEM and "object" not in parent.kinds)
            parent.filled = "array" if listed else "object"
            self.sink.arguments("[" if listed else "{")
        self.sink.arguments("" if parent.first else ", ")
        parent.first = False
        inside = "" if parent.filled == "array" else name
        if inside:
            self.sink.arguments(f"{json.dumps(name, ensure_ascii=False)}: ")
        schema = inner_of(parent.schema, inside, self._root)
        self._open.append(_Element(name, schema, kinds_in(schema, self._root)))

    def _end_element(self, element: _Element) -> None:
        if element.filled == "object":
            self.sink.arguments("}")
        elif element.filled == "array":
            self.sink.arguments("]")
        elif element.value is not None:
            element.value.end()
        elif element.kinds and "string" not in element.kinds and element.kinds & (LISTS | OBJECTS):
            self.sink.arguments("[]" if element.kinds & LISTS else "{}")
        else:
            value = TypedValue(self.sink, element.kinds or STRING)
            value.add("".join(element.blanks))
            value.end()

    def _close_all(self) -> None:
        while self._open:
            self._end_element(self._open.pop())
        self.close()
        self._blanks = 0
        self._state = BETWEEN
