"""Layout of the native parser of running text with thinking and calls, for `smg_ext.channels`, one of whose parsers is built on it."""

from libc.stdint cimport uint8_t

from smg_ext.chars cimport CharsC
from smg_ext.collector cimport Citing, MarginC
from smg_ext.grammar cimport Grammar, Reader
from smg_ext.marks cimport MarkSet, MatcherC


cdef class Family:
    cdef MarkSet in_text
    cdef MarkSet in_think
    cdef uint8_t *text_roles    # by mark
    cdef uint8_t *think_roles
    cdef Grammar grammar
    cdef str bare               # characters that may begin a call at the start of a line
    cdef bint thinks
    cdef bint spaces
    cdef bint cited


cdef class Splitter(Citing):
    cdef Family family
    cdef MarginC content
    cdef MarginC thoughts
    cdef MatcherC in_text
    cdef MatcherC in_think
    cdef Reader reader
    cdef CharsC written         # a mark that is text
    cdef bint bare
    cdef bint fresh             # only white space since the start of the line
    cdef bint prose             # an opening mark was shown as text: so is the closing one that answers it
    cdef bint thinking

    cdef Py_ssize_t read_thoughts(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
    cdef Py_ssize_t read_text(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
    cdef Py_ssize_t read_calls(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
    cdef int text_mark(self, int role, str mark) except -1
    cdef int open_calls(self, str mark) except -1
    cdef int show_mark(self, str mark) except -1
