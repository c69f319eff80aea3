# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native parser of one choice for all families that mark thinking and calls inside running text.

Three states: thinking, text, and a call section, which a grammar's reader owns until it ends. `smg.parser.machine` is the specification.
Made by `smg.parser.native`.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free

from smg_ext.chars cimport blank, put_string
from smg_ext.collector cimport TEXT, THOUGHT
from smg_ext.marks cimport NO_MARK, begin_matcher, free_matcher, scan

__all__ = ["Family", "Splitter"]

# What a mark is; one can be several things.
cdef enum:
    OPENS = 1                   # a section of calls
    STARTS = 2                  # the thinking block
    STRAY = 4                   # means nothing outside a section
    IN_TEXT = 8                 # is looked for in text
    ALSO_ENDS = 16              # the thinking block, and belongs to what follows
    LINE = 32                   # not a mark: a line begins


cdef class Family:
    """What two families, as in `ReasoningSpec` and `ToolSpec`, come to. `grammar` reads a section of calls. Immutable: one serves all."""

    def __cinit__(self, *, tuple starts=(), tuple ends=(), tuple also_ends=(), tuple layout=(), tuple opens=(), tuple strays=(),
                  tuple drops=(), str bare="", Grammar grammar=None, bint spaces=False, bint cited=False):
        self.in_text = MarkSet((*starts, *ends, *layout, *opens, *strays, *drops, *(("\n",) if bare else ())))
        self.in_think = MarkSet((*starts, *ends, *also_ends, *opens))
        self.grammar, self.bare, self.thinks, self.spaces, self.cited = grammar, bare, bool(ends), spaces, cited
        groups = ((opens, OPENS), (starts, STARTS), (strays, STRAY), (self.in_text.marks, IN_TEXT), (also_ends, ALSO_ENDS))
        self.text_roles = _roles(self.in_text, groups)
        self.think_roles = _roles(self.in_think, groups)
        if self.text_roles == NULL or self.think_roles == NULL:
            raise MemoryError()
        for i, mark in enumerate(self.in_text.marks):
            if bare and mark == "\n":
                self.text_roles[<size_t>i] = LINE

    def __dealloc__(self):
        free(self.text_roles)
        free(self.think_roles)


cdef uint8_t *_roles(MarkSet marks, tuple groups):
    cdef uint8_t *roles = <uint8_t *>calloc(len(marks.marks) + 1, 1)
    cdef size_t i
    if roles != NULL:
        for i in range(<size_t>len(marks.marks)):
            roles[i] = sum([role for group, role in groups if marks.marks[i] in group])
    return roles


cdef class Splitter(Citing):
    """Splits thinking, text and calls. `in_think`: the prompt already opened the thinking block. The rest is as in `Collector`."""

    def __cinit__(self, Family family not None, *_arguments, bint in_think=False, **_options):
        self.family = family
        self.cited = family.cited
        self.bare = self.fresh = bool(family.bare)
        self.content.kind, self.thoughts.kind = TEXT, THOUGHT
        self.content.spaces = self.thoughts.spaces = family.spaces
        self.thoughts.marked = True
        begin_matcher(&self.in_text, family.in_text, &self.work)
        begin_matcher(&self.in_think, family.in_think, &self.work)
        self.thinking = in_think and family.thinks
        self.content.marked = self.thinking

    def __dealloc__(self):
        free_matcher(&self.in_text)
        free_matcher(&self.in_think)
        free(self.content.held.data)
        free(self.thoughts.held.data)
        free(self.written.data)

    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        while at < size and not self.ended:
            self.work += 1
            if self.reader is not None:
                at = self.read_calls(text, at, size)
            elif self.thinking:
                at = self.read_thoughts(text, at, size)
            else:
                at = self.read_text(text, at, size)
        return 0

    cdef int close_output(self) except -1:
        """A partial mark is text, a partial call is what its grammar makes of it."""
        if self.reader is not None:
            self.reader.finish()
            self.reader = None
        else:
            self.margin_text(&self.thoughts, self.in_think.pending.data, _shown(&self.in_think))
            self.margin_text(&self.content, self.in_text.pending.data, _shown(&self.in_text))
            self.in_think.pending.size = self.in_text.pending.size = 0
        self.end_margin(&self.thoughts)
        self.end_margin(&self.content)
        return self.end_citations()

    cdef int show(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        return self.margin_text(&self.thoughts if self.thinking else &self.content, text, size)

    cdef int mark(self) except -1:
        if self.thinking:
            self.thoughts.marked = True
        else:
            self.content.marked = True
        return 0

    cdef int begun(self) except -1:
        """The thinking block is over."""
        if self.thinking:
            self.thinking = False
            self.thoughts.marked = self.content.marked = True
            self.fresh = self.bare
        return 0

    cdef Py_ssize_t read_thoughts(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef int role
        at = scan(&self.in_think, text, at, size)
        self.margin_text(&self.thoughts, self.in_think.released, self.in_think.size)
        if self.in_think.mark == NO_MARK:
            return at
        role = self.family.think_roles[self.in_think.mark]
        if role & STARTS:
            return at
        mark = self.family.in_think.marks[self.in_think.mark]
        if role & OPENS:
            self.open_calls(mark)  # a call ends the block; what only looks like one is a thought
            return at
        self.begun()
        if role & ALSO_ENDS:
            self.text_mark(role, mark)
        return at

    cdef Py_ssize_t read_text(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.fresh:
            if blank(text[at]):
                self.margin_text(&self.content, text + at, 1)
                return at + 1
            self.fresh = False
            if text[at] in self.family.bare:
                self.open_calls("")
                return at
        at = scan(&self.in_text, text, at, size)
        self.margin_text(&self.content, self.in_text.released, self.in_text.size)
        if self.in_text.mark != NO_MARK:
            self.text_mark(self.family.text_roles[self.in_text.mark], self.family.in_text.marks[self.in_text.mark])
        return at

    cdef int text_mark(self, int role, str mark) except -1:
        if role & LINE:
            self.fresh = True
            return self.show_mark(mark)
        if role & OPENS:
            return self.open_calls(mark)
        if role & STARTS:
            self.content.marked = self.thoughts.marked = self.thinking = True
        elif role & STRAY and self.prose:
            self.prose = False
            return self.show_mark(mark)
        elif role & IN_TEXT:
            self.content.marked = True
        else:
            return self.show_mark(mark)
        return 0

    cdef int show_mark(self, str mark) except -1:
        self.written.size = 0
        put_string(&self.written, mark)
        return self.margin_text(&self.content, self.written.data, self.written.size)

    cdef int open_calls(self, str mark) except -1:
        self.reader = self.family.grammar.reader(self, mark)
        return 0

    cdef Py_ssize_t read_calls(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef Reader reader = self.reader
        at = reader.read(text, at, size)
        if reader.done:
            self.reader = None
            self.fresh = self.bare and not reader.failed
            self.prose = reader.failed
            Splitter.run(self, reader.unread.data, reader.unread.size)  # not that of a parser built on this one
        return at


cdef Py_ssize_t _shown(const MatcherC *matcher) noexcept:
    """How much of a partial mark is text when the output ends: nothing where a whole token of it, `<…>`, came."""
    cdef Py_ssize_t i
    cdef Py_ssize_t begin = -1
    for i in range(matcher.pending.size):
        if matcher.pending.data[i] == '<':
            begin = i
        elif matcher.pending.data[i] == '>':
            if begin >= 0 and i > begin + 1:
                return 0
            begin = -1
    return matcher.pending.size
