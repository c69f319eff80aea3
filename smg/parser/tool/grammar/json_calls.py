"""Calls as JSON objects `{"name": …, "arguments": {…}}`, one, several or in lists; between marks (Hermes, Qwen, Granite, Cohere, MiniMax
M1, Nemotron, Hunyuan) or bare (Llama 3, xLAM, the list that a schema-constrained `tool_choice: required` makes).

Argument characters are passed on as the model wrote them, each once, as soon as the name is known.
"""

import json
from functools import partial

from msgspec import Struct

from smg.parser.margin import BLANK
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.value import JsonValue, decoded
from smg.parser.tool.reader import BLANKS_MAX, MakeReader, Reader, expect

__all__ = ["JsonCalls", "JsonFormat", "json_calls", "unwrapped"]


BETWEEN, BEFORE_KEY, IN_KEY, BEFORE_COLON, IN_VALUE, AFTER_VALUE, BROKEN = range(7)
BLANK_SKIPPING = frozenset({BEFORE_KEY, BEFORE_COLON, AFTER_VALUE})


class JsonFormat(Struct, frozen=True, kw_only=True):
    """`closes`: marks that end a section; without them it ends after the outermost value and what `separators` join to it.

    `names`, `arguments`: the keys that hold a call's parts; `id_key` "" = no id in the output. `keyed`: the object has one key,
    which is the name, and its value is the arguments. `others`: keys that a bare object may
    have besides, before it is taken for an answer and no call.
    """

    closes: tuple[str, ...] = ()
    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id_key: str = ""
    keyed: bool = False
    separators: str = ",;"
    others: tuple[str, ...] = ("type", "function", "id", "index")


def json_calls(form: JsonFormat, *, marks: tuple[str, ...] = ()) -> MakeReader:
    """Gives the maker of readers for that format; `marks`: those that a cut call is rid of."""
    return partial(JsonCalls, form=form, marks=marks + form.closes)


class JsonCalls(Reader):
    """States: between objects; before a key, in a key, before a colon, in a value, after a value; and broken, looking for the closing mark.

    An opening mark makes every name valid; without one (`opened` is empty) only names of known tools are calls.
    """

    def __init__(self, sink: Sink, opened: str, *, form: JsonFormat, marks: tuple[str, ...]) -> None:
        super().__init__(sink, opened=opened, marks=marks)
        self._form = form
        self._bare = not opened
        self._closes = Matcher(form.closes)
        self._state = BETWEEN
        self._steps = (
            self._between,
            self._before_key,
            self._in_key,
            self._before_colon,
            self._in_value,
            self._after_value,
            self._broken,
        )
        self._lists = 0
        self._blanks: list[str] = []
        self._start()

    def _start(self) -> None:
        self._nested = 0
        self._key: list[str] = []
        self._escaped = False
        self._role = ""
        self._value = JsonValue()
        self._parts: list[str] = []  # of a value that is wanted whole, or of arguments before the name
        self._name = ""
        self._id: str | None = None
        self._early: list[str] = []
        self._seen_arguments = False
        self._spare = ""  # an object under another key, for a call that has none under the right one

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        if text[at] in BLANK and self._state in BLANK_SKIPPING:
            return at + 1
        return self._steps[self._state](text, at)

    def finish(self) -> None:
        """See Reader."""
        if self.named or self._state == BROKEN:
            self._value.finish()
            if self._state == IN_VALUE and self._parts:
                self.sink.arguments("".join(self._parts))
        elif self._bare:
            self.sink.show("".join(self._blanks if self._state == BETWEEN and self.count else self._raw))
        elif self._state != BETWEEN or not self.count:
            self.cut()

    # between the objects

    def _between(self, text: str, at: int) -> int:
        char = text[at]
        if self._closes.pending or any(mark[0] == char for mark in self._form.closes):
            return self._close_mark(text, at)
        if char in BLANK:
            self._blanks.append(char)
            return self._unexpected(at) if len(self._blanks) > BLANKS_MAX and not self.count else at + 1
        if char == "{":
            self._blanks = []
            self._start()
            self._state = BEFORE_KEY
        elif char == "[" and not self._lists and (self._form.closes or not self.count):
            self._lists += 1
            self._blanks.append(char)
        elif char == "]" and self._lists:
            self._lists -= 1
            if not self._form.closes:
                return self._end_list(at + 1)
        elif char in self._form.separators and self.count and (self._lists or self._form.closes or char == ";"):
            self._blanks.append(char)
        elif not (char in "]}," and self.count and self._form.closes):
            return self._unexpected(at)
        return at + 1

    def _end_list(self, at: int) -> int:
        if self.count:
            self.done = True
        else:
            self.fail()
        return at

    def _close_mark(self, text: str, at: int) -> int:
        at, mark, other = expect(self._closes, text, at, "")
        if mark is not None:
            self.end()
        elif other and self.count:
            self.end(other + self._closes.take())
        elif other:
            self.fail()
        return at

    def _unexpected(self, at: int) -> int:
        if self.count:
            self.end("".join(self._blanks))  # their margin decides
        else:
            self.fail()
        return at

    # inside an object

    def _before_key(self, text: str, at: int) -> int:
        char = text[at]
        if char == '"':
            self._key = []
            self._state = IN_KEY
        elif char == "}":
            return self._end_object(at)
        elif char != ",":
            return self._break(text, at)
        return at + 1

    def _in_key(self, text: str, at: int) -> int:
        char = text[at]
        if char == '"' and not self._escaped:
            self._state = BEFORE_COLON
            self._role = self._role_of(decoded("".join(self._key)))
            return at + 1
        self._escaped = char == "\\" and not self._escaped
        self._key.append(char)
        return at + 1

    def _role_of(self, key: str) -> str:
        form = self._form
        if form.keyed and not self.named:
            self._name = key.strip()
            return "arguments"
        if key in form.arguments:
            return "other" if self._seen_arguments else "arguments"
        if key in form.names:
            return "name"
        if key == form.id_key:
            return "id"
        if key == "function":
            return "function"
        return "other" if key in form.others or not self._bare else "alien"

    def _before_colon(self, text: str, at: int) -> int:
        if text[at] != ":":
            return self._break(text, at)
        if self._role == "alien" and not self.named:
            return self._break(text, at)
        if self._role == "arguments":
            self._seen_arguments = True
            self._announce()
        self._value = JsonValue()
        self._parts = []
        self._state = IN_VALUE
        return at + 1

    def _in_value(self, text: str, at: int) -> int:
        if self._role == "function" and not self._value.kind and text[at] in "{" + BLANK:
            if text[at] == "{":
                self._nested += 1
                self._state = BEFORE_KEY
            return at + 1
        piece, at = self._value.read(text, at)
        self._take(piece)
        if self._value.done:
            self._end_value()
            self._state = AFTER_VALUE
        elif self._value.broken:
            return self._break(text, at)
        return at

    def _take(self, piece: str) -> None:
        if self._role == "arguments" and self._value.kind not in ("", '"', "n", "N"):
            if self.named:
                self.sink.arguments(piece)
            else:
                self._early.append(piece)
        elif self._role in ("name", "id", "arguments", "function") or (self._value.kind == "{" and not self._spare):
            self._parts.append(piece)

    def _end_value(self) -> None:
        whole = "".join(self._parts)
        self._parts = []
        if self._role in ("name", "function") and self._value.kind == '"':
            self._name = self._name or decoded(whole[1:-1]).strip()
            if self._seen_arguments or not (self._bare or (self._form.id_key and self._id is None)):
                self._announce()
        elif self._role in ("other", "alien"):
            self._spare = self._spare or whole
        elif self._role == "id":
            self._id = decoded(whole[1:-1]) if whole.startswith('"') else whole
            if self._seen_arguments or not self._bare:
                self._announce()
        elif self._role == "arguments" and whole:
            text = unwrapped(whole)
            if self.named:
                self.sink.arguments(text)
            else:
                self._early.append(text)

    def _announce(self) -> None:
        """Begins the call if all that must be known is known."""
        if self.named or not self._name or (self._bare and self._name not in self.sink.schemas):
            return
        self.name(self._name, call_id=self._id)
        for text in self._early:
            self.sink.arguments(text)
        self._early = []

    def _after_value(self, text: str, at: int) -> int:
        char = text[at]
        if char == ",":
            self._state = BEFORE_KEY
            return at + 1
        return self._end_object(at) if char == "}" else self._break(text, at)

    def _end_object(self, at: int) -> int:
        if self._nested:
            self._nested -= 1
            self._state = AFTER_VALUE
            return at + 1
        self._announce()
        if not self.named:
            self.fail()
            return at + 1
        if not self._seen_arguments:
            self.sink.arguments(self._spare)
        self.close()
        self._blanks = []
        self._state = BETWEEN
        return at + 1

    def _break(self, text: str, at: int) -> int:
        """No JSON from here: before the name it is no call; after it, the call reaches up to the closing mark. What has not been arguments
        yet becomes them: a call that lost its own must not look like one that has none.
        """
        if not self.named:
            self.fail()
        elif not self._form.closes:
            self.done = True
        else:
            self._whole = self._seen_arguments and (self._state != IN_VALUE or self._role != "arguments")
            if self._parts and not self._whole and self._role == "arguments":
                self.sink.arguments("".join(self._parts))
            self._state = BROKEN
        return at

    def _broken(self, text: str, at: int) -> int:
        released, mark, at = self._closes.scan(text, at, len(text))
        if not self._whole:
            self.sink.arguments(released)
        if mark is not None:
            self.close()
            self.done = True
        return at


def unwrapped(whole: str) -> str:
    """Arguments given as a JSON text in a string, or as null: the object that they mean; anything else stays what it is."""
    if whole in ("null", "None"):
        return "{}"
    if not whole.startswith('"'):
        return whole
    inner = decoded(whole[1:-1])
    if not inner.strip():
        return "{}"
    try:
        value = json.loads(inner)
    except (ValueError, RecursionError):
        return whole
    return inner if isinstance(value, dict) else whole
