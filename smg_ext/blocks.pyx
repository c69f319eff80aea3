# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native parsers of families whose whole output is a row of blocks with a head: Inkling's, and Functionary's.

`smg.parser.inkling` and `functionary` are the specification. Made by `smg.parser.native`.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport CharsC, blank, put_ascii, put_char, put_chars, string_of, word_char
from smg_ext.collector cimport TEXT, THOUGHT, Collector, MarginC
from smg_ext.grammar cimport NAME_MAX, Grammar, Reader
from smg_ext.marks cimport NO_MARK, MarkSet, MatcherC, begin_matcher, free_matcher, scan
from smg_ext.value cimport JsonValueC, begin_json, put_key, put_quoted, read_json

__all__ = ["Functionary", "Inkling"]

cdef enum:
    HEAD_MAX = 128

# What Inkling's output is in.
cdef enum:
    HEAD
    SHOWN
    THOUGHT_BLOCK
    DROPPED

# Its marks, in the order of the specification.
cdef enum:
    MODEL
    THINKING
    TEXT_BLOCK
    CALL_BLOCK
    RAW_CALL
    END
    STOP

# What Functionary's output is in.
cdef enum:
    IN_HEAD
    IN_TEXT
    BEFORE_VALUE
    IN_VALUE
    IN_CODE


cdef class Inkling(Collector):
    """States: in a block's head, in shown text, in a thought, in a block that nobody reads; or a reader of a call owns the text."""

    cdef MarkSet marks
    cdef Grammar grammar
    cdef MatcherC matcher
    cdef MarginC content
    cdef MarginC thoughts
    cdef Reader reader
    cdef CharsC head
    cdef bint splits
    cdef bint calling
    cdef int state

    def __cinit__(self, MarkSet marks not None, Grammar grammar not None, *_arguments, bint thoughts, bint calls, bint in_think,
                  **_options):
        self.marks, self.grammar, self.splits, self.calling = marks, grammar, thoughts, calls
        self.content.kind, self.thoughts.kind = TEXT, THOUGHT
        self.thoughts.marked = True
        begin_matcher(&self.matcher, marks, &self.work)
        self.state = THOUGHT_BLOCK if in_think else HEAD

    def __dealloc__(self):
        free_matcher(&self.matcher)
        free(self.content.held.data)
        free(self.thoughts.held.data)
        free(self.head.data)

    cdef int show(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        return self.margin_text(&self.content, text, size)

    cdef int mark(self) except -1:
        self.content.marked = True
        return 0

    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        cdef Reader reader
        while at < size and not self.ended:
            self.work += 1
            if self.reader is None:
                at = self.read(text, at, size)
                continue
            reader = self.reader
            at = reader.read(text, at, size)
            if reader.done:
                self.reader = None
                self.run(reader.unread.data, reader.unread.size)
        return 0

    cdef int close_output(self) except -1:
        if self.reader is not None:
            self.reader.finish()
            self.reader = None
        else:
            put_chars(&self.head, self.matcher.pending.data, self.matcher.pending.size)
            self.matcher.pending.size = 0
            self.state = SHOWN if self.state == HEAD else self.state
            self.take_head()
        self.end_margin(&self.thoughts)
        return self.end_margin(&self.content)

    cdef int take_head(self) except -1:
        cdef Py_ssize_t size = self.head.size
        self.head.size = 0
        return self.take_text(self.head.data, size)

    cdef Py_ssize_t read(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.state == HEAD and self.matcher.pending.size == 0 and (blank(text[at]) or self.head.size >= HEAD_MAX):
            self.state = SHOWN  # a head is one word: this is an answer without its marks
            self.take_head()
        at = scan(&self.matcher, text, at, at + 1 if self.state == HEAD else size)
        if self.state == HEAD:
            put_chars(&self.head, self.matcher.released, self.matcher.size)
        else:
            self.take_text(self.matcher.released, self.matcher.size)
        if self.matcher.mark != NO_MARK:
            self.take_mark(self.matcher.mark)
        return at

    cdef int take_text(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        if self.state == SHOWN or (self.state == THOUGHT_BLOCK and not self.splits):
            return self.margin_text(&self.content, text, size)
        return self.margin_text(&self.thoughts, text, size) if self.state == THOUGHT_BLOCK else 0

    cdef int take_mark(self, int mark) except -1:
        if self.head.size and (mark == END or mark == STOP):  # of no block: an answer of one word without its marks
            self.margin_text(&self.content, self.head.data, self.head.size)
        self.head.size = 0
        self.content.marked = self.thoughts.marked = True
        if mark == MODEL:
            self.state = HEAD
        elif mark == THINKING:
            self.state = THOUGHT_BLOCK
        else:
            self.state = DROPPED if mark == RAW_CALL else SHOWN
        if mark == CALL_BLOCK and self.calling:
            self.reader = self.grammar.reader(self, self.marks.marks[mark])
        return 0


cdef class Functionary(Collector):
    """States: in a head, in text, before a call's arguments, in them, in code. `calls`: they are wanted; without, all is text."""

    cdef MarkSet marks
    cdef MatcherC matcher
    cdef MarginC content
    cdef object known
    cdef CharsC lead            # what stood before the head
    cdef CharsC head
    cdef CharsC piece
    cdef str called
    cdef JsonValueC value
    cdef int state

    def __cinit__(self, MarkSet marks not None, *_arguments, bint calls, **_options):
        self.marks = marks
        self.content.kind = TEXT
        self.known = self.schemas if calls else {}
        begin_matcher(&self.matcher, marks, &self.work)

    def __dealloc__(self):
        free_matcher(&self.matcher)
        free(self.content.held.data)
        free(self.lead.data)
        free(self.head.data)
        free(self.piece.data)
        free(self.value.open.data)

    cdef int mark(self) except -1:
        self.content.marked = True
        return 0

    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        while at < size and not self.ended:
            self.work += 1
            if self.state == IN_TEXT:
                at = self.in_text(text, at, size)
            elif self.state == IN_HEAD:
                at = self.in_head(text, at)
            elif self.state == BEFORE_VALUE:
                at = self.before_value(text, at)
            else:
                at = self.in_value(text, at, size) if self.state == IN_VALUE else self.in_code(text, at, size)
        return 0

    cdef int close_output(self) except -1:
        """Code has no end of its own: the output's end is its end."""
        cdef CharsC *held = &self.matcher.pending
        if self.state == IN_HEAD:
            self.content.marked = True
            put_chars(&self.head, held.data, held.size)
            self.margin_text(&self.content, self.head.data, self.head.size)
            self.head.size = 0
        elif self.state == IN_CODE:
            self.put_code(held.data, held.size)
            self.put_ascii_arguments(b'"}')
            self.state = IN_TEXT
        else:
            self.margin_text(&self.content, held.data, held.size)
        held.size = 0
        return self.end_margin(&self.content)

    cdef Py_ssize_t in_head(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef Py_UCS4 char = text[at]
        if char == '\n' and self.head.size:
            name = string_of(self.head.data, self.head.size)
            if name == "all" or name in self.known:
                self.begin(name)
                return at + 1
        if self.head.size < NAME_MAX and (word_char(char) or char == '.' or char == ':' or char == '-'):
            put_char(&self.head, char)
            return at + 1
        self.state = IN_TEXT
        if char == '>' and not self.head.size and not self.lead.size:  # the mark that the prompt should have ended with
            return at
        put_chars(&self.lead, self.head.data, self.head.size)
        self.margin_text(&self.content, self.lead.data, self.lead.size)
        return at

    cdef int begin(self, str name) except -1:
        self.content.marked = True
        self.state = IN_TEXT
        if name != "all":
            self.called = name
            self.call(name, None)
            self.state = BEFORE_VALUE
        return 0

    cdef int begin_head(self) except -1:
        self.state = IN_HEAD
        self.lead.size = self.head.size = 0
        return put_ascii(&self.lead, b">>>")

    cdef Py_ssize_t in_text(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        at = scan(&self.matcher, text, at, size)
        self.margin_text(&self.content, self.matcher.released, self.matcher.size)
        if self.matcher.mark != NO_MARK:
            self.begin_head()
        return at

    cdef Py_ssize_t before_value(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        if self.matcher.pending.size or text[at] == '>':
            return self.next_head(text, at)
        if blank(text[at]):
            return at + 1
        if text[at] == '{':
            begin_json(&self.value)
            self.state = IN_VALUE
        else:
            self.open_code()
        return at

    cdef Py_ssize_t next_head(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        """The next head, where no arguments came."""
        at = scan(&self.matcher, text, at, at + 1)
        if self.matcher.mark != NO_MARK:
            self.close_call()
            self.begin_head()
        elif self.matcher.size:
            self.open_code()
            self.put_code(self.matcher.released, self.matcher.size)
        return at

    cdef int open_code(self) except -1:
        properties = self.known.get(self.called, {}).get("properties")
        self.piece.size = 0
        put_key(&self.piece, next(iter(properties), "code") if isinstance(properties, dict) else "code", True)
        put_ascii(&self.piece, b'"')
        self.put_arguments(self.piece.data, self.piece.size)
        self.state = IN_CODE
        return 0

    cdef int put_code(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        self.piece.size = 0
        put_quoted(&self.piece, text, size)
        return self.put_arguments(self.piece.data, self.piece.size)

    cdef Py_ssize_t in_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        self.piece.size = 0
        at = read_json(&self.value, text, at, size, &self.piece)
        self.put_arguments(self.piece.data, self.piece.size)
        if self.value.done or self.value.broken:
            self.close_call()
            self.content.marked = True
            self.state = IN_TEXT
        return at

    cdef Py_ssize_t in_code(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        at = scan(&self.matcher, text, at, size)
        self.put_code(self.matcher.released, self.matcher.size)
        if self.matcher.mark != NO_MARK:
            self.put_ascii_arguments(b'"}')
            self.begin_head()
        return at
