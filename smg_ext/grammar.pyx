# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""What all native tool-call grammars have in common: each reads one section of the output, from its opening mark to where it ends.

A `Grammar` is a family's format, made once; a `Reader` is one section of one output. `smg.parser.tool.reader` is the specification, with
`smg.parser.tool.grammar`. Grammars are made by `smg.parser.native`, readers by the parsers of `smg_ext.splitter` and `smg_ext.channels`.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport blank, put_char, put_chars, put_string, string_of
from smg_ext.marks cimport NO_MARK, MatcherC, expect
from smg_ext.value cimport begin_json, read_json

__all__ = ["BareGrammar", "ChoiceGrammar", "Grammar"]

cdef enum:
    AGAIN_MAX = 512             # what a failed section read is looked through again, up to this


cdef class Grammar:
    """`marks`: the family's, taken out when the output ends before a name is known, as `without_marks(text, opened, marks)` does."""

    def __cinit__(self, *_arguments, tuple marks=(), without_marks, **_options):
        self.marks, self.without_marks = marks, without_marks

    cdef Reader reader(self, Collector sink, str opened):
        """Gives the reader of a section that `opened` opens."""
        raise NotImplementedError


cdef class Reader:
    """One section. Until the name of a call is known, what was read since the last call is kept, so that what is no call is given back."""

    def __dealloc__(self):
        free(self.raw.data)
        free(self.unread.data)
        free(self.piece.data)

    cdef int begin(self, Grammar rules, Collector sink, str opened) except -1:
        self.rules, self.sink, self.opened = rules, sink, opened
        self.lead = len(opened)
        self.keep = True
        return put_string(&self.raw, opened)

    cdef Py_ssize_t read(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        """Reads `text` from `at`; gives where it stopped: at the end, or where the section ended."""
        cdef Py_ssize_t before
        while at < size and not self.done:
            before = at
            self.keep = not self.named
            at = self.step(text, at, size)
            self.sink.work += 1 + at - before
            if self.keep:
                put_chars(&self.raw, text + before, at - before)
            if self.failed and not self.quiet:
                self.give_back()
        return at

    cdef int give_back(self) except -1:
        self.sink.work += self.raw.size
        if self.raw.size - self.lead > AGAIN_MAX:
            return self.sink.show(self.raw.data, self.raw.size)
        self.sink.show(self.raw.data, self.lead)
        self.unread.size = 0
        return put_chars(&self.unread, self.raw.data + self.lead, self.raw.size - self.lead)

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        """Reads at least one character, or changes state; gives where it stopped."""
        raise NotImplementedError

    cdef int finish(self) except -1:
        """The output ends here."""
        raise NotImplementedError

    cdef int name(self, str name, object call_id) except -1:
        """Begins a call. The caller has seen that the name is not blank."""
        self.named, self.keep = True, False
        self.raw.size = self.lead = 0
        return self.sink.call(name.strip(), call_id)

    cdef int close(self) except -1:
        """Ends the call."""
        self.sink.close_call()
        self.named = self.keep = False
        self.count += 1
        self.raw.size = 0
        return 0

    cdef int fail(self) noexcept:
        """This is no call: what was read is given back as it was, with what the current step has read."""
        self.done = self.failed = True
        return 0

    cdef int end(self, const Py_UCS4 *rest, Py_ssize_t size) except -1:
        """The section is over; `rest` was read, and is not its. An empty section leaves nothing."""
        self.done = True
        self.sink.mark()
        self.unread.size = 0
        return put_chars(&self.unread, rest, size)

    cdef Py_ssize_t close_mark(self, MatcherC *closes, const Py_UCS4 *text, Py_ssize_t at) except -1:
        """Reads one character of a mark that ends the section. What turns out to be none ends it too, unread, where calls came before."""
        at = expect(closes, text, at, b"")
        if closes.mark != NO_MARK:
            self.end(NULL, 0)
        elif closes.size and self.count:
            self.end(closes.released, closes.size)
            put_chars(&self.unread, closes.pending.data, closes.pending.size)
            closes.pending.size = 0
        elif closes.size:
            self.fail()
        return at

    cdef int cut(self) except -1:
        """The output ended before the name was known: gives back what was read, without the marks."""
        self.done = True
        text = self.rules.without_marks(string_of(self.raw.data, self.raw.size), self.opened, self.rules.marks)
        self.sink.mark()
        return self.sink.show_string(text)


cdef class ChoiceGrammar(Grammar):
    """A section whose first characters tell which of two grammars it is in. `decide(str)` gives that grammar, or None for more of them."""

    def __cinit__(self, decide, **_options):
        self.decide = decide

    cdef Reader reader(self, Collector sink, str opened):
        cdef _Choice made = _Choice.__new__(_Choice)
        made.decide = self.decide
        made.begin(self, sink, opened)
        return made


cdef class _Choice(Reader):
    """Waits for the decision, then is the chosen reader."""

    def __dealloc__(self):
        free(self.first.data)

    cdef Py_ssize_t read(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.chosen is None:
            at = Reader.read(self, text, at, size)
        if self.chosen is not None:
            at = self.chosen.read(text, at, size)
            self.done, self.failed = self.chosen.done, self.chosen.failed
            self.unread.size = 0
            put_chars(&self.unread, self.chosen.unread.data, self.chosen.unread.size)
        return at

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        self.seen += 1
        if not blank(text[at]):
            put_char(&self.first, text[at])
            chosen = self.decide(string_of(self.first.data, self.first.size))
            if chosen is not None:
                self.hand(chosen, text[at])
                self.done = True  # leaves the loop; `read` goes on with the chosen one
        elif self.seen > BLANKS_MAX:
            self.fail()
        return at + 1

    cdef int hand(self, Grammar chosen, Py_UCS4 last) except -1:
        cdef CharsC again
        again.data, again.size, again.capacity = NULL, 0, 0
        self.chosen = chosen.reader(self.sink, self.opened)
        put_chars(&again, self.raw.data + self.lead, self.raw.size - self.lead)
        try:
            put_char(&again, last)
            self.chosen.read(again.data, 0, again.size)
        finally:
            free(again.data)
        return 0

    cdef int finish(self) except -1:
        if self.chosen is not None:
            return self.chosen.finish()
        return self.cut() if self.opened else self.sink.show(self.raw.data, self.raw.size)


cdef class BareGrammar(Grammar):
    """The arguments of a call whose name is known beforehand: of the collector's `forced` tool."""

    cdef Reader reader(self, Collector sink, str opened):
        cdef _Bare made = _Bare.__new__(_Bare)
        begin_json(&made.value)
        made.begin(self, sink, opened)
        return made


cdef class _Bare(Reader):
    """One JSON object; it is the only call of the output."""

    def __dealloc__(self):
        free(self.value.open.data)

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if not self.named:
            if self.sink.calls:
                self.fail()
                return at + 1
            self.name(self.sink.forced, None)
        self.piece.size = 0
        at = read_json(&self.value, text, at, size, &self.piece)
        self.sink.put_arguments(self.piece.data, self.piece.size)
        if self.value.done or self.value.broken:
            self.close()
            self.end(NULL, 0)
        return at

    cdef int finish(self) except -1:
        return 0
