"""Layout of what turns Python's literals into JSON, for the native grammars."""

from smg_ext.chars cimport CharsC
from smg_ext.marks cimport MarkSet, MatcherC


cdef struct LiteralC:
    int state
    bint done
    bint broken
    bint comma                  # one is due before the next value
    bint raw
    bint triple
    bint has_mark
    MatcherC mark               # a quote mark besides the usual ones
    Py_UCS4 quote
    CharsC stack                # closing brackets
    CharsC keys                 # for each, 1 where a key comes next
    CharsC taken                # quotes, or an escape, that are being read
    CharsC word


cdef void begin_literal(LiteralC *value, MarkSet mark, long long *work) noexcept
cdef void free_literal(LiteralC *value) noexcept
cdef Py_ssize_t read_literal(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1
cdef int finish_literal(LiteralC *value, CharsC *out) except -1
