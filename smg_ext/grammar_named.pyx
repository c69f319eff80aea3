# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native grammar of calls as a header with the name, then a JSON value: DeepSeek V3, Kimi K2, Mistral from v11, Solar, Gemma.

`smg.parser.tool.grammar.named_json` is the specification.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport CharsC, put_chars, string_of
from smg_ext.collector cimport Collector
from smg_ext.grammar cimport BLANKS_MAX, NAME_MAX, Grammar, Reader
from smg_ext.literal cimport LiteralC, begin_literal, finish_literal, free_literal, read_literal
from smg_ext.marks cimport NO_MARK, MarkSet, MatcherC, begin_matcher, expect, free_matcher, scan
from smg_ext.value cimport JsonValueC, begin_json, read_json

__all__ = ["NamedGrammar"]

cdef enum:
    BETWEEN
    HEADER
    VALUE
    TAIL
    BROKEN

cdef enum:
    NO_ROLE                     # a mark that opens a section or ends a call
    BEGINS
    CLOSES
    INNER                       # parts the header
    BRACE                       # begins the value

cdef const char *BLANK = b" \t\r\n"
cdef const char *TAIL_TOLERATED = b" \t\r\n`}]"  # what models put between the value and the end mark


cdef class NamedGrammar(Grammar):
    """A format, as in the specification's `NamedFormat`. `header(list[(text, mark)])` gives name and id, or None before they are certain.

    `literal`: the value is a Python literal, in which `quote` is a quote mark too.
    """

    cdef MarkSet between
    cdef MarkSet head
    cdef MarkSet quote
    cdef list between_roles
    cdef list head_roles
    cdef frozenset begins
    cdef object header
    cdef bint has_ends
    cdef bint literal

    def __cinit__(self, *, header, tuple sections, tuple begins, tuple inner, tuple ends, tuple closes, bint literal=False,
                  str quote="", **_options):
        self.header, self.begins, self.has_ends, self.literal = header, frozenset(begins), bool(ends), literal
        self.between = MarkSet((*sections, *begins, *ends, *closes))
        self.head = MarkSet((*inner, *begins, *ends, *closes, "{"))
        self.quote = MarkSet((quote,)) if quote else None
        roles = {"{": BRACE} | dict.fromkeys(closes, CLOSES) | dict.fromkeys(begins, BEGINS)
        self.between_roles = [roles.get(mark, NO_ROLE) for mark in self.between.marks]
        self.head_roles = [INNER if mark in inner else roles.get(mark, NO_ROLE) for mark in self.head.marks]

    cdef Reader reader(self, Collector sink, str opened):
        cdef _NamedCalls made = _NamedCalls.__new__(_NamedCalls)
        made.form = self
        begin_matcher(&made.between, self.between, &sink.work)
        begin_matcher(&made.head, self.head, &sink.work)
        made.begin(self, sink, opened)
        if opened in self.begins:
            made.begin_call()
        return made


cdef class _NamedCalls(Reader):
    """States: between calls, in the header, in the value, after it, and in a value that is no JSON."""

    cdef NamedGrammar form
    cdef MatcherC between
    cdef MatcherC head
    cdef int state
    cdef Py_ssize_t blanks
    cdef Py_ssize_t size
    cdef list fields
    cdef CharsC part
    cdef JsonValueC value
    cdef LiteralC literal

    def __dealloc__(self):
        free_matcher(&self.between)
        free_matcher(&self.head)
        free(self.part.data)
        free(self.value.open.data)
        free_literal(&self.literal)

    cdef int begin_call(self) except -1:
        self.state = HEADER
        self.fields = []
        self.part.size = self.size = 0
        if self.form.literal:
            begin_literal(&self.literal, self.form.quote, &self.sink.work)
        else:
            begin_json(&self.value)
        return 0

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.state == VALUE:
            return self.in_value(text, at, size)
        if self.state == HEADER:
            return self.in_header(text, at)
        if self.state == BETWEEN:
            return self.in_between(text, at)
        return self.in_tail(text, at) if self.state == TAIL else self.in_broken(text, at, size)

    cdef int finish(self) except -1:
        if self.state == VALUE:
            self.piece.size = 0
            if self.form.literal:
                finish_literal(&self.literal, &self.piece)
            self.sink.put_arguments(self.piece.data, self.piece.size)
        elif (self.state == HEADER and not self.named) or (self.state == BETWEEN and not self.count):
            self.cut()
        return 0

    cdef int end_after(self) except -1:
        """The section ended before what the matcher released."""
        self.end(self.between.released, self.between.size)
        put_chars(&self.unread, self.between.pending.data, self.between.pending.size)
        self.between.pending.size = 0
        return 0

    cdef Py_ssize_t in_between(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        at = expect(&self.between, text, at, BLANK)
        self.blanks += 1
        if self.between.mark != NO_MARK:
            self.take_mark(self.form.between_roles[self.between.mark])
        elif self.between.size and self.count:
            self.end_after()
        elif self.between.size or (self.blanks > BLANKS_MAX and not self.count):
            self.fail()
        return at

    cdef int take_mark(self, int role) except -1:
        """Between calls, or where one ended without its end mark."""
        self.blanks = 0
        self.state = BETWEEN
        if role == BEGINS:
            self.begin_call()
        elif role == CLOSES:
            self.end(NULL, 0)
        return 0

    cdef Py_ssize_t in_header(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef bint other = False
        cdef Py_ssize_t i
        at = expect(&self.head, text, at, b"")
        put_chars(&self.part, self.head.released, self.head.size)
        self.size += 1
        if self.head.mark != NO_MARK:
            self.header_mark(self.form.head_roles[self.head.mark], self.form.head.marks[self.head.mark])
            return at
        for i in range(self.head.size):
            other = other or self.head.released[i] == '<'
        if other or self.size > NAME_MAX:
            if self.named:
                self.state = BROKEN
            else:
                self.fail()
        return at

    cdef int header_mark(self, int role, str mark) except -1:
        cdef bint inner = role == INNER or role == BRACE
        cdef Py_UCS4 brace = '{'
        self.fields.append((string_of(self.part.data, self.part.size), mark if inner else ""))
        self.part.size = 0
        found = None if self.named else self.form.header(self.fields)
        if found is not None and found[0]:
            self.name(found[0], found[1])
        if not self.named and (role == BRACE or not inner):
            self.fail()
        elif role == BRACE:
            self.read_value(&brace, 0, 1)
            self.state = VALUE
        elif not inner:
            self.end_call(role)
        return 0

    cdef int end_call(self, int role) except -1:
        """`role`: of the mark that ended it, -1 for none."""
        self.close()
        if role >= 0:
            return self.take_mark(role)
        if self.form.has_ends:
            self.state = BETWEEN
        else:
            self.done = True
        return 0

    cdef Py_ssize_t read_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        self.piece.size = 0
        if self.form.literal:
            at = read_literal(&self.literal, text, at, size, &self.piece)
        else:
            at = read_json(&self.value, text, at, size, &self.piece)
        self.sink.put_arguments(self.piece.data, self.piece.size)
        return at

    cdef Py_ssize_t in_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        at = self.read_value(text, at, size)
        if self.literal.broken or self.value.broken:
            self.state = BROKEN
        elif self.literal.done or self.value.done:
            if self.form.has_ends:
                self.state = TAIL
            else:
                self.end_call(-1)
        return at

    cdef Py_ssize_t in_tail(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        at = expect(&self.between, text, at, TAIL_TOLERATED)
        if self.between.mark != NO_MARK:
            self.end_call(self.form.between_roles[self.between.mark])
        elif self.between.size:
            self.close()
            self.end_after()
        return at

    cdef Py_ssize_t in_broken(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        at = scan(&self.between, text, at, size)
        self.sink.put_arguments(self.between.released, self.between.size)
        if self.between.mark != NO_MARK:
            self.end_call(self.form.between_roles[self.between.mark])
        return at
