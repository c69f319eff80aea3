"""Layout of a table of added tokens, for `bpe`."""

from libc.stdint cimport uint8_t, uint32_t

from smg_ext.bpe_characters cimport CharactersC

cdef enum:
    FIRSTS_MAX = 1              # first bytes up to which the C library looks for them


cdef struct NodeC:
    uint32_t child              # the first, 0 = none
    uint32_t sibling            # the next of the same parent, 0 = none
    uint32_t word               # index of the token that ends here + 1, 0 = none
    uint8_t byte


cdef struct WordC:
    uint32_t token_id
    uint8_t left                # it takes the spaces before it along
    uint8_t right               # and those behind it


cdef struct MarksC:
    NodeC *nodes
    uint32_t node_count
    WordC *words
    uint32_t count
    uint32_t starts[256]        # the node of each first byte, 0 = none
    int first                   # the only first byte, -1 when there are several


cdef struct MarkC:
    size_t begin
    size_t end
    uint32_t token_id


cdef class Marks:
    cdef MarksC c


cdef bint next_mark(
    const MarksC *marks, const CharactersC *table, const uint8_t *data, size_t size, size_t at, MarkC *mark
) noexcept nogil
