"""Layout of what finds protocol marks in text that comes in pieces, for the parsers."""

from libc.stdint cimport int32_t

from smg_ext.chars cimport CharsC


cdef enum:
    NO_MARK = -1


cdef struct NodeC:
    Py_UCS4 char
    int32_t child               # 0 for none
    int32_t sibling
    int32_t mark                # that ends here, or NO_MARK


cdef struct MarksC:
    NodeC *nodes                # a tree of the marks' characters; the root is the first
    int32_t count
    int32_t ascii[128]          # children of the root


cdef class MarkSet:
    cdef MarksC c
    cdef readonly tuple marks


cdef struct MatcherC:
    const MarksC *marks
    CharsC pending              # may become a mark
    CharsC joined
    long long *work             # characters looked at
    const Py_UCS4 *released     # by the last scan; valid until the next, and as long as its text
    Py_ssize_t size
    int32_t mark                # found by the last scan, or NO_MARK


cdef void begin_matcher(MatcherC *m, MarkSet marks, long long *work) noexcept
cdef void free_matcher(MatcherC *m) noexcept
cdef Py_ssize_t scan(MatcherC *m, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop) except -1
cdef Py_ssize_t expect(MatcherC *m, const Py_UCS4 *text, Py_ssize_t at, const char *tolerated) except -1
