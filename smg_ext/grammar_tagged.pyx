# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native grammar of calls as tags whose values have no type of their own: Qwen3-Coder, MiniMax M2, DSML, GLM, Kimi K3 and their like.

`smg.parser.tool.grammar.tagged` is the specification.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport CharsC, blank, put_char, put_chars, put_string, string_of
from smg_ext.collector cimport Collector
from smg_ext.grammar cimport BLANKS_MAX, NAME_MAX, Grammar, Reader
from smg_ext.marks cimport NO_MARK, MarkSet, MatcherC, begin_matcher, expect, free_matcher, scan
from smg_ext.value cimport (
    JsonValueC,
    TypedValueC,
    add_typed,
    begin_json,
    begin_typed,
    cut_typed,
    end_typed,
    put_key,
    read_json,
)

__all__ = ["TaggedGrammar"]

cdef enum:
    NOISE_WEIGHT = 80           # of a mark in blanks: no format has more than three before a call

cdef enum:
    SECTION
    NAME
    BODY
    KEY
    OPEN
    VALUE
    AFTER
    RAW
    JSON                        # has no marks

cdef enum:
    MATCHERS = 8                # of the states before JSON

# What a mark is; one can be several things.
cdef enum:
    CALL_OPEN = 1
    CALL_CLOSE = 2
    CLOSE = 4                   # of the section
    NOISE = 8
    NAME_END = 16
    PARAMETER_OPEN = 32
    PARAMETER_CLOSE = 64
    KEY_END = 128
    VALUE_OPEN = 256
    CDATA = 512

cdef const char *BLANK = b" \t\r\n"
cdef const char *NOTHING = b""


cdef class TaggedGrammar(Grammar):
    """A format. `matchers`: the marks of each state, in the order of the specification's. `name_of(head)` and `key_of(head, schema)` read
    what stands in a tag, and give the call's name, "" for none, and the key with its JSON types; `as_json(text, kinds)` makes a value.
    """

    cdef list sets
    cdef list roles
    cdef object name_of
    cdef object key_of
    cdef object as_json
    cdef str call_open
    cdef str call_close
    cdef str parameter_open
    cdef str parameter_close
    cdef str id_form
    cdef bint trim
    cdef bint attributes        # the name is one
    cdef bint has_value_open
    cdef bint sectioned

    def __cinit__(self, *, tuple matchers, name_of, key_of, as_json, str call_open, str call_close, str parameter_open,
                  str parameter_close, tuple name_ends, str key_end, str value_open, tuple closes, tuple noise, str cdata,
                  bint trim, bint attributes, str id_form, bint sectioned, **_options):
        self.name_of, self.key_of, self.as_json = name_of, key_of, as_json
        self.call_open, self.call_close = call_open, call_close
        self.parameter_open, self.parameter_close = parameter_open, parameter_close
        self.trim, self.attributes, self.id_form, self.sectioned = trim, attributes, id_form, sectioned
        self.has_value_open = bool(value_open)
        roles = dict.fromkeys(noise, NOISE)
        for mark, role in (
            (call_open, CALL_OPEN),
            (call_close, CALL_CLOSE),
            (parameter_open, PARAMETER_OPEN),
            (parameter_close, PARAMETER_CLOSE),
            (key_end, KEY_END),
            (value_open, VALUE_OPEN),
            (cdata, CDATA),
            *[(mark, CLOSE) for mark in closes],
            *[(mark, NAME_END) for mark in name_ends],
        ):
            if mark:
                roles[mark] = roles.get(mark, 0) | role
        if len(matchers) != MATCHERS:
            raise ValueError("one set of marks for each state")
        self.sets = [MarkSet(marks) for marks in matchers]
        self.roles = [[roles.get(mark, 0) for mark in (<MarkSet>marks).marks] for marks in self.sets]

    cdef Reader reader(self, Collector sink, str opened):
        cdef _TaggedCalls made = _TaggedCalls.__new__(_TaggedCalls)
        cdef Py_ssize_t i
        made.form = self
        for i in range(MATCHERS):
            begin_matcher(&made.matchers[i], <MarkSet>self.sets[i], &sink.work)
        made.begin(self, sink, opened)
        if opened == self.call_open:
            made.begin_call()
        return made


cdef class _TaggedCalls(Reader):
    """States: in the section, in a call's head, between parameters, in a key, before a value, in it, after its close; a body in JSON."""

    cdef TaggedGrammar form
    cdef MatcherC matchers[MATCHERS]
    cdef int state
    cdef int role               # of the mark that the last scan found
    cdef Py_ssize_t blanks
    cdef Py_ssize_t size
    cdef CharsC head
    cdef CharsC held            # after a value: its closing mark, and what stands behind it
    cdef object schema
    cdef object kinds
    cdef TypedValueC typed
    cdef JsonValueC value
    cdef bint first             # no parameter has begun
    cdef bint plain             # no parameter has come: a JSON object may
    cdef bint junk              # text that is no part of the format is being shown

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(MATCHERS):
            free_matcher(&self.matchers[i])
        free(self.head.data)
        free(self.held.data)
        free(self.typed.parts.data)
        free(self.value.open.data)

    cdef int begin_call(self) except -1:
        self.state = NAME
        self.head.size = self.size = 0
        self.schema = None
        return 0

    cdef int found(self, int state) except -1:
        """Sets `role` from what a state's matcher has found."""
        cdef MatcherC *matcher = &self.matchers[state]
        self.role = 0 if matcher.mark == NO_MARK else <int>(<list>self.form.roles[state])[matcher.mark]
        return 0

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.state == VALUE:
            return self.in_value(text, at, size)
        if self.state == AFTER:
            return self.after(text, at)
        if self.state == BODY:
            return self.body(text, at)
        if self.state == KEY:
            return self.key(text, at, size)
        if self.state == NAME:
            return self.in_name(text, at)
        if self.state == SECTION:
            return self.section(text, at)
        if self.state == OPEN:
            return self.before_value(text, at)
        return self.in_json(text, at, size) if self.state == JSON else self.in_raw(text, at, size)

    cdef int finish(self) except -1:
        """A closing mark that is cut is taken for whole where nothing else of the format begins like it."""
        cdef int state = self.state
        if state == NAME and not self.form.attributes and self.surely(NAME):
            self.end_head(CALL_CLOSE)
            if self.failed:
                self.cut()
        elif state == AFTER:
            self.end_value()
        elif state == VALUE or state == RAW:
            self.add(self.matchers[state].pending.data, self.matchers[state].pending.size)
            self.matchers[state].pending.size = 0
            cut_typed(&self.typed, self.sink)
        elif state == NAME or (state == SECTION and not self.count):
            self.cut()
        if (state == AFTER or state == BODY) and self.named and self.surely(state):
            self.close_tagged()
        return 0

    cdef bint surely(self, int state):
        """True when what is held can only be the beginning of the mark that closes a call."""
        pending = string_of(self.matchers[state].pending.data, self.matchers[state].pending.size)
        form = self.form
        return len(pending) > 1 and form.call_close.startswith(pending) and not form.parameter_open.startswith(pending)

    cdef Py_ssize_t section(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef MatcherC *matcher = &self.matchers[SECTION]
        cdef bint mark
        at = expect(matcher, text, at, BLANK)
        self.found(SECTION)
        mark = matcher.mark != NO_MARK
        self.blanks += NOISE_WEIGHT if mark else 1
        if self.role & CALL_OPEN:
            self.begin_call()
        elif self.role & CLOSE:
            self.end(NULL, 0)
        elif matcher.size and self.count:
            self.end(matcher.released, matcher.size)
            put_chars(&self.unread, matcher.pending.data, matcher.pending.size)
            matcher.pending.size = 0
        elif not self.count and (matcher.size or self.blanks > BLANKS_MAX or (mark and not self.role & NOISE)):
            self.fail()  # an opening mark right after another: the first was none
        return at

    cdef Py_ssize_t in_name(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef MatcherC *matcher = &self.matchers[NAME]
        at = expect(matcher, text, at, b"")
        put_chars(&self.head, matcher.released, matcher.size)
        self.size += 1
        if matcher.mark != NO_MARK:
            self.found(NAME)
            self.end_head(self.role)
        elif self.size > NAME_MAX or _has_tag(matcher.released, matcher.size):
            self.fail()
        return at

    cdef int end_head(self, int role) except -1:
        """`role`: of the mark that ended it."""
        cdef TaggedGrammar form = self.form
        name = form.name_of(string_of(self.head.data, self.head.size))
        if not name or (not role & NAME_END and form.attributes):
            return self.fail()
        self.name(name, form.id_form.format(name=name, index=self.sink.calls) if form.id_form else None)
        self.schema = self.sink.schemas.get(name, {})
        self.first = self.plain = True
        self.junk = False
        self.state = BODY
        return 0 if role & NAME_END else self.body_mark(role)

    cdef Py_ssize_t body(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        """Text that is no part of the format is shown; a JSON object in place of parameters is the arguments."""
        cdef MatcherC *matcher = &self.matchers[BODY]
        if text[at] == '{' and self.plain and matcher.pending.size == 0:
            begin_json(&self.value)
            self.state = JSON
            return at
        at = expect(matcher, text, at, NOTHING if self.junk else BLANK)
        if matcher.mark != NO_MARK:
            self.junk = False
            self.found(BODY)
            self.body_mark(self.role)
        elif matcher.size:
            self.junk = True
            self.sink.show(matcher.released, matcher.size)
        return at

    cdef int body_mark(self, int role) except -1:
        if role & PARAMETER_OPEN:
            self.plain = False
            self.head.size = self.size = 0
            self.state = KEY
        elif role & CALL_CLOSE:
            self.close_tagged()
        elif role & (CALL_OPEN | CLOSE):
            self.close_tagged()
            if role & CALL_OPEN:
                self.begin_call()
            else:
                self.end(NULL, 0)
        else:
            self.state = BODY
        return 0

    cdef int close_tagged(self) except -1:
        if not (self.plain and self.sink.has_arguments):
            self.sink.put_ascii_arguments(b"{}" if self.first else b"}")
        self.close()
        self.blanks = 0
        self.state = SECTION
        if not self.form.sectioned:
            self.done = True
        return 0

    cdef Py_ssize_t key(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef MatcherC *matcher = &self.matchers[KEY]
        cdef Py_ssize_t before = at
        at = scan(matcher, text, at, min(size, at + NAME_MAX + 1 - self.size))
        put_chars(&self.head, matcher.released, matcher.size)
        self.size += at - before
        self.found(KEY)
        if self.role & KEY_END:
            self.begin_value()
        elif matcher.mark != NO_MARK:
            self.sink.show_string(self.plain_head())
            self.body_mark(self.role)
        elif self.size > NAME_MAX:
            self.junk = True
            self.state = BODY
            head = string_of(self.head.data, self.head.size) + string_of(matcher.pending.data, matcher.pending.size)
            matcher.pending.size = 0
            self.sink.show_string(self.form.parameter_open + head)
        return at

    cdef str plain_head(self):
        """What was no key after all, without the marks of the format."""
        head = string_of(self.head.data, self.head.size)
        for mark in self.form.marks:
            head = head.replace(mark, "")
        return head

    cdef int begin_value(self) except -1:
        key, self.kinds = self.form.key_of(string_of(self.head.data, self.head.size), self.schema)
        self.piece.size = 0
        put_key(&self.piece, key, self.first)
        self.sink.put_arguments(self.piece.data, self.piece.size)
        self.first = False
        begin_typed(&self.typed, self.sink, self.kinds, self.form.trim)
        self.state = OPEN if self.form.has_value_open else VALUE
        return 0

    cdef int add(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        return add_typed(&self.typed, self.sink, text, size)

    cdef int end_value(self) except -1:
        return end_typed(&self.typed, self.sink, self.kinds, self.form.as_json)

    cdef Py_ssize_t before_value(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef MatcherC *matcher = &self.matchers[OPEN]
        at = expect(matcher, text, at, BLANK)
        self.sink.show(matcher.released, matcher.size)
        self.found(OPEN)
        if self.role & VALUE_OPEN:
            self.state = VALUE
        elif self.role & CALL_CLOSE:
            self.end_value()
            self.close_tagged()
        return at

    cdef Py_ssize_t in_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef MatcherC *matcher = &self.matchers[VALUE]
        at = scan(matcher, text, at, size)
        self.add(matcher.released, matcher.size)
        if matcher.mark != NO_MARK:
            self.found(VALUE)
            if self.role & CDATA:
                self.state = RAW
            else:
                self.held.size = 0
                put_string(&self.held, self.form.parameter_close)
                self.state = AFTER
        return at

    cdef Py_ssize_t in_raw(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef MatcherC *matcher = &self.matchers[RAW]
        at = scan(matcher, text, at, size)
        self.add(matcher.released, matcher.size)
        if matcher.mark != NO_MARK:
            self.state = VALUE
        return at

    cdef Py_ssize_t after(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef MatcherC *matcher = &self.matchers[AFTER]
        cdef MatcherC *value = &self.matchers[VALUE]
        if matcher.pending.size == 0 and blank(text[at]):
            put_char(&self.held, text[at])
            return at + 1
        at = scan(matcher, text, at, at + 1)
        if matcher.size:
            self.state = VALUE
            put_chars(&self.held, matcher.released, matcher.size)
            self.add(self.held.data, self.held.size)
            if matcher.pending.size:  # may begin what closes the value
                scan(value, matcher.pending.data, 0, matcher.pending.size)
                matcher.pending.size = 0
                self.add(value.released, value.size)
            return at
        self.found(AFTER)
        if self.role & PARAMETER_CLOSE:
            self.add(self.held.data, self.held.size)
            self.held.size = 0
            put_string(&self.held, self.form.parameter_close)
        elif matcher.mark != NO_MARK:
            self.end_value()
            self.body_mark(self.role)
        return at

    cdef Py_ssize_t in_json(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        self.piece.size = 0
        at = read_json(&self.value, text, at, size, &self.piece)
        self.sink.put_arguments(self.piece.data, self.piece.size)
        if self.value.done or self.value.broken:
            self.state = BODY
            self.junk = self.value.broken
        return at


cdef bint _has_tag(const Py_UCS4 *text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        if text[i] == '<':
            return True
    return False
