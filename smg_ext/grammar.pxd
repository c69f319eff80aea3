"""Layout of what all native tool-call grammars have in common."""

from smg_ext.chars cimport CharsC
from smg_ext.collector cimport Collector
from smg_ext.marks cimport MatcherC
from smg_ext.value cimport JsonValueC


cdef enum:
    BLANKS_MAX = 256            # white space before the next part of a call
    NAME_MAX = 256              # text between a call's begin and its arguments


cdef class Grammar:
    cdef tuple marks
    cdef object without_marks
    cdef Reader reader(self, Collector sink, str opened)


cdef class Reader:
    cdef Collector sink
    cdef Grammar rules
    cdef str opened
    cdef bint done              # the section is over
    cdef bint failed            # it was none
    cdef bint named
    cdef bint quiet             # inside another reader, which gives back for both
    cdef bint keep
    cdef Py_ssize_t count       # complete calls of this section
    cdef Py_ssize_t lead        # characters of the opening mark in `raw`
    cdef CharsC raw             # what was read since the last call, while no name is known
    cdef CharsC unread          # was read, and is not the section's
    cdef CharsC piece

    cdef int give_back(self) except -1
    cdef int begin(self, Grammar rules, Collector sink, str opened) except -1
    cdef Py_ssize_t read(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
    cdef int finish(self) except -1
    cdef int name(self, str name, object call_id) except -1
    cdef int close(self) except -1
    cdef int fail(self) noexcept
    cdef int end(self, const Py_UCS4 *rest, Py_ssize_t size) except -1
    cdef Py_ssize_t close_mark(self, MatcherC *closes, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef int cut(self) except -1


cdef class ChoiceGrammar(Grammar):
    cdef object decide


cdef class _Choice(Reader):
    cdef object decide
    cdef CharsC first
    cdef Py_ssize_t seen
    cdef Reader chosen
    cdef int hand(self, Grammar chosen, Py_UCS4 last) except -1


cdef class BareGrammar(Grammar):
    pass


cdef class _Bare(Reader):
    cdef JsonValueC value
