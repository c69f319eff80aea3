"""What gives the ids of words, and keeps them for the next time, for `bpe_vocabulary` and `bpe`."""

from libc.stdint cimport uint8_t, uint64_t

from smg_ext.bpe_merge cimport CallC, TableC


cdef int make_words(TableC *table) noexcept nogil
cdef int add_word(const TableC *table, CallC *call, const uint8_t *word, size_t size, const uint8_t *end) noexcept nogil
cdef const uint8_t *add_block(
    const TableC *table, CallC *call, const uint8_t *at, const uint8_t *end, uint64_t cuts
) noexcept nogil
cdef int add_waiting(const TableC *table, CallC *call) noexcept nogil
