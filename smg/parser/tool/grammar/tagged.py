"""Calls as tags whose values have no type of their own: Qwen3-Coder, Seed-OSS, MiniMax M2, Step-3, DSML, GLM, Hunyuan V3, Kimi K3.

    section begin? ( call open, head, ( parameter open, key, value open?, value, parameter close )*, call close )* section end?

The value's JSON type comes from the tool's schema, or from an attribute where the format has one. A parameter's closing mark counts only
where the next part of the format follows it: the model's own text may contain it.
"""

import re
from functools import partial

from msgspec import Struct

from smg.parser.margin import BLANK
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.schema import STRING, kinds_of
from smg.parser.tool.grammar.typed import TypedArguments
from smg.parser.tool.grammar.value import JsonValue
from smg.parser.tool.reader import BLANKS_MAX, NAME_MAX, MakeReader, Reader, expect
from smg.types.json import JsonObject

__all__ = ["CDATA", "STATES", "TaggedCalls", "TaggedFormat", "head_key", "head_name", "state_marks", "tagged_calls"]

SECTION, NAME, BODY, KEY, OPEN, VALUE, AFTER, JSON, RAW = range(9)
STATES = (SECTION, NAME, BODY, KEY, OPEN, VALUE, AFTER, RAW)  # that look for marks
CDATA, CDATA_END = "<![CDATA[", "]]>"
ATTRIBUTE = re.compile(r"""([\w.:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
ENTITIES = (("&quot;", '"'), ("&amp;", "&"))
NOISE_WEIGHT = 80  # of a mark in blanks: no format has more than three before a call
JSON_KINDS = frozenset({"any"})


class TaggedFormat(Struct, frozen=True, kw_only=True):
    """The marks in the order of the format. `name_key`, `key_key`: the attributes that hold name and key; "" = the head is the name itself.

    `name_ends`: marks that end a call's head (a parameter or the call's close may end it too where the head has no end of its own).
    `type_key`: an attribute that says whether the value is text. `noise`: marks that mean nothing. `trim`: see TypedArguments.
    """

    call_open: str
    name_ends: tuple[str, ...]
    parameter_open: str
    key_end: str
    parameter_close: str
    call_close: str
    sections: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    name_key: str = ""
    key_key: str = ""
    value_open: str = ""
    type_key: str = ""
    noise: tuple[str, ...] = ()
    trim: bool = False
    entities: bool = False  # attribute values escape & and "
    id_form: str = ""  # of name and index, where the family makes ids of them
    cdata: bool = False  # a value may be, or hold, XML's CDATA sections, in which no mark counts

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that are more than a character."""
        every = (self.call_open, *self.name_ends, self.parameter_open, self.key_end, self.value_open, self.parameter_close, self.call_close)
        return tuple(mark for mark in (*self.sections, *every, *self.closes, *self.noise) if len(mark) > 2)


def tagged_calls(form: TaggedFormat) -> MakeReader:
    """Gives the maker of readers for that format."""
    return partial(TaggedCalls, form=form)


class TaggedCalls(Reader):
    """States: in the section, in a call's head, between parameters, in a key, before a value, in it, after its close; a body in JSON."""

    def __init__(self, sink: Sink, opened: str, *, form: TaggedFormat) -> None:
        super().__init__(sink, opened=opened, marks=form.marks)
        self._form = form
        self._matchers = {state: Matcher(marks) for state, marks in state_marks(form).items()}
        self._steps = (
            self._step_section,
            self._step_name,
            self._step_body,
            self._step_key,
            self._step_open,
            self._step_value,
            self._step_after,
            self._step_json,
            self._step_raw,
        )
        self._blanks = 0
        self._state = SECTION
        if opened == form.call_open:
            self._begin()

    def _begin(self) -> None:
        self._state = NAME
        self._head: list[str] = []
        self._size = 0
        self._schema: JsonObject = {}

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        return self._steps[self._state](text, at)

    def finish(self) -> None:
        """See Reader. A closing mark that is cut is taken for whole where nothing else of the format begins like it."""
        state, form = self._state, self._form
        if state == NAME and not form.name_key and _surely(self._matchers[NAME].pending, form.call_close, form.parameter_open):
            self._end_head(form.call_close)
            if self.failed:
                self.cut()
        elif state == AFTER:
            self._arguments.end()
        elif state in (VALUE, RAW):
            self._arguments.add(self._matchers[state].take())
            self._arguments.cut()
        elif state == NAME or (state == SECTION and not self.count):
            self.cut()
        if state in (AFTER, BODY) and self.named and _surely(self._matchers[state].pending, form.call_close, form.parameter_open):
            self._close()

    def _step_section(self, text: str, at: int) -> int:
        at, mark, other = expect(self._matchers[SECTION], text, at, BLANK)
        self._blanks += 1 if mark is None else NOISE_WEIGHT
        if mark == self._form.call_open:
            self._begin()
        elif mark in self._form.closes:
            self.end()
        elif other and self.count:
            self.end(other + self._matchers[SECTION].take())
        elif not self.count and (other or self._blanks > BLANKS_MAX or (mark is not None and mark not in self._form.noise)):
            self.fail()  # an opening mark right after another: the first was none
        return at

    def _step_name(self, text: str, at: int) -> int:
        at, mark, other = expect(self._matchers[NAME], text, at, "")
        self._head.append(other)
        self._size += 1
        if mark is not None:
            self._end_head(mark)
        elif "<" in other or self._size > NAME_MAX:
            self.fail()
        return at

    def _scan_head(self, matcher: Matcher, text: str, at: int) -> tuple[int, str | None]:
        begin = at
        released, mark, at = matcher.scan(text, at, min(len(text), at + NAME_MAX + 1 - self._size))
        self._head.append(released)
        self._size += at - begin
        return at, mark

    def _end_head(self, mark: str) -> None:
        form = self._form
        name = head_name(form, "".join(self._head))
        if not name or (mark not in form.name_ends and form.name_key):
            self.fail()
            return
        self.name(name, call_id=form.id_form.format(name=name, index=self.sink.calls) if form.id_form else None)
        self._schema = self.sink.schemas.get(name, {})
        self._arguments = TypedArguments(self.sink, trim=form.trim)
        self._plain = True
        self._junk = False
        self._state = BODY
        if mark not in form.name_ends:
            self._body_mark(mark)

    def _step_body(self, text: str, at: int) -> int:
        """Text that is no part of the format is shown; a JSON object in place of parameters is the arguments."""
        pending = self._matchers[BODY].pending
        if not pending and text[at] == "{" and self._plain:
            self._value = JsonValue()
            self._state = JSON
            return at
        at, mark, other = expect(self._matchers[BODY], text, at, "" if self._junk else BLANK)
        if mark is not None:
            self._junk = False
            self._body_mark(mark)
        elif other:
            self._junk = True
            self.sink.show(other)
        return at

    def _body_mark(self, mark: str) -> None:
        form = self._form
        if mark == form.parameter_open:
            self._plain = False
            self._head = []
            self._size = 0
            self._state = KEY
        elif mark == form.call_close:
            self._close()
        elif mark == form.call_open or mark in form.closes:
            self._close()
            if mark == form.call_open:
                self._begin()
            else:
                self.end()
        else:
            self._state = BODY

    def _close(self) -> None:
        if not (self._plain and self.sink.has_arguments):
            self._arguments.close()
        self.close()
        self._blanks = 0
        self._state = SECTION
        if not self._form.closes and self._form.sections == ():
            self.done = True

    def _step_key(self, text: str, at: int) -> int:
        at, mark = self._scan_head(self._matchers[KEY], text, at)
        if mark == self._form.key_end:
            self._head_key("".join(self._head))
        elif mark is not None:
            self.sink.show(self._plain_head())
            self._body_mark(mark)
        elif self._size > NAME_MAX:
            self._junk = True
            self._state = BODY
            self.sink.show(self._form.parameter_open + "".join(self._head) + self._matchers[KEY].take())
        return at

    def _plain_head(self) -> str:
        """What was no key after all, without the marks of the format."""
        head = "".join(self._head)
        for mark in self._form.marks:
            head = head.replace(mark, "")
        return head

    def _head_key(self, head: str) -> None:
        self._arguments.begin(*head_key(self._form, head, self._schema))
        self._state = OPEN if self._form.value_open else VALUE

    def _step_open(self, text: str, at: int) -> int:
        at, mark, other = expect(self._matchers[OPEN], text, at, BLANK)
        self.sink.show(other)
        if mark == self._form.value_open:
            self._state = VALUE
        elif mark == self._form.call_close:
            self._arguments.end()
            self._close()
        return at

    def _step_value(self, text: str, at: int) -> int:
        released, mark, at = self._matchers[VALUE].scan(text, at, len(text))
        self._arguments.add(released)
        if mark == CDATA:
            self._state = RAW
        elif mark is not None:
            self._held = [mark]
            self._state = AFTER
        return at

    def _step_raw(self, text: str, at: int) -> int:
        released, mark, at = self._matchers[RAW].scan(text, at, len(text))
        self._arguments.add(released)
        if mark is not None:
            self._state = VALUE
        return at

    def _step_after(self, text: str, at: int) -> int:
        matcher = self._matchers[AFTER]
        if not matcher.pending and text[at] in BLANK:
            self._held.append(text[at])
            return at + 1
        released, mark, at = matcher.scan(text, at, at + 1)
        if released:
            rest = matcher.take()
            self._state = VALUE
            self._arguments.add("".join(self._held) + released)
            self._arguments.add(self._matchers[VALUE].scan(rest, 0, len(rest))[0])
        elif mark == self._form.parameter_close:
            self._arguments.add("".join(self._held))
            self._held = [mark]
        elif mark is not None:
            self._arguments.end()
            self._body_mark(mark)
        return at

    def _step_json(self, text: str, at: int) -> int:
        piece, at = self._value.read(text, at)
        self.sink.arguments(piece)
        if self._value.done or self._value.broken:
            self._state = BODY
            self._junk = self._value.broken
        return at


def state_marks(form: TaggedFormat) -> dict[int, tuple[str, ...]]:
    """Gives the marks that count in each state."""
    after = (form.parameter_open, form.call_close, form.call_open, *form.closes, *form.noise)
    return {
        SECTION: (form.call_open, *form.sections, *form.closes, *form.noise),
        NAME: (*form.name_ends, form.parameter_open, form.call_close),
        BODY: (*after, form.parameter_close, *((form.key_end,) if form.key_end != ">" else ())),
        KEY: (form.key_end, *(mark for mark in _kept(after, form) if form.key_end not in mark)),
        OPEN: (form.value_open, form.key_end, form.call_close) if form.value_open else (),
        VALUE: (form.parameter_close, CDATA) if form.cdata else (form.parameter_close,),
        RAW: (CDATA_END,),
        AFTER: (*after, form.parameter_close),
    }


def head_name(form: TaggedFormat, head: str) -> str:
    """Gives the name in a call's head, "" when that is none."""
    name = _attributes(form, head).get(form.name_key, "") if form.name_key else head.strip().strip("\"'")
    return "" if any(char in BLANK for char in name) else name


def head_key(form: TaggedFormat, head: str, schema: JsonObject) -> tuple[str, frozenset[str]]:
    """Gives the key in a parameter's head, and the JSON types that its value may have. `schema`: of the call."""
    attributes = _attributes(form, head) if form.key_key else {}
    key = attributes.get(form.key_key, head) if form.key_key else head
    kind = attributes.get(form.type_key) if form.type_key else None
    if kind is not None:
        return key.strip(), STRING if kind in ("true", "string") else JSON_KINDS
    return key.strip(), kinds_of(schema, key.strip())


def _attributes(form: TaggedFormat, head: str) -> dict[str, str]:
    found = {}
    for match in ATTRIBUTE.finditer(head):
        value = match[2] or match[3] or match[4] or ""
        for entity, char in ENTITIES if form.entities else ():
            value = value.replace(entity, char)
        found[match[1]] = value
    return found


def _kept(marks: tuple[str, ...], form: TaggedFormat) -> tuple[str, ...]:
    """Marks that may end a key that has no end: not where the key's own end lies in them, or they in it."""
    return tuple(dict.fromkeys((*marks, form.parameter_close))) if len(form.key_end) > 1 else ()


def _surely(pending: str, mark: str, other: str) -> bool:
    """True when what is held can only be the beginning of `mark`."""
    return len(pending) > 1 and mark.startswith(pending) and not other.startswith(pending)
