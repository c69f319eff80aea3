"""Layout of a vocabulary of byte pairs, and what turns a word into its ids, for `bpe_vocabulary`, `bpe_words` and `bpe`."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef SMG_WORD_HASH
    #define SMG_WORD_HASH
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    static inline uint64_t smg_mix(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t smg_load(const uint8_t *at, size_t size) {
        uint32_t low, high;
        if (size < 4)
            return at[0] | (uint64_t)at[size >> 1] << 8 | (uint64_t)at[size - 1] << 16;
        memcpy(&low, at, 4);
        memcpy(&high, at + size - 4, 4);
        return low | (uint64_t)high << 32;
    }
    static inline uint64_t smg_hash(const uint8_t *at, size_t size) {
        uint64_t state = 0x9E3779B97F4A7C15u ^ size, part;
        size_t i;
        for (i = 0; i + 8 < size; i += 8) {
            memcpy(&part, at + i, 8);
            state = smg_mix(state ^ part, 0xD6E8FEB86659FD93u);
        }
        if (size >= 8)
            memcpy(&part, at + size - 8, 8);
        else
            part = smg_load(at, size);
        return smg_mix(smg_mix(state ^ part, 0xD6E8FEB86659FD93u), 0xA0761D6478BD642Fu);
    }
    #endif
    """
    uint64_t smg_hash(const uint8_t *at, size_t size) noexcept nogil

cdef enum:
    WAITING_MAX = 12
    IDS_MAX = 1 << 20
    RANKS_MAX = (1 << 24) - 1
    ODD = 0x80000000            # in a length: a token that no text gives, with its name as it is


cdef struct TableC:
    uint32_t count              # one more than the largest id
    uint32_t room               # of the arrays by id
    uint32_t *starts            # of token i: arena[starts[i]] and on, lengths[i] bytes; no token: both 0xFFFFFFFF
    uint32_t *lengths
    uint8_t *whole              # 1: its bytes are known to give this one token
    uint8_t *arena
    size_t arena_size
    size_t arena_room
    uint64_t *names             # bytes -> id: half of a hash 32, id + 1 32; 0 = empty
    size_t name_slots
    uint64_t *merges            # left 20, right 20, rank 24; all ones = empty
    size_t merge_slots
    uint32_t *made              # by rank: what the pair becomes
    uint32_t ranks
    uint32_t bytes[256]         # the token of each byte, 0xFFFFFFFF = none
    bint whole_first            # a word that is a token stays one, whatever the merges say
    bint drops                  # a byte without a token gives none
    uint64_t *words             # that were seen, as `bpe_words` keeps them


cdef struct WordC:
    const uint8_t *at
    size_t size
    uint64_t low                # of a short word: its bytes, and in the highest one its size
    uint64_t high
    uint64_t *line              # where a short word may be kept, NULL for a longer one


cdef struct CallC:
    uint32_t *ids
    size_t count
    size_t room
    uint32_t *scratch           # of long words
    size_t scratch_room         # in bytes
    uint64_t steps              # looks at pairs, so that growth can be counted
    size_t waiting
    WordC words[WAITING_MAX]   # whose lines are on their way from memory; not cleared


cdef int add_token(TableC *table, uint32_t token_id, const uint8_t *content, uint32_t size, bint odd) noexcept nogil
cdef int index_tokens(TableC *table) noexcept nogil
cdef int make_merges(TableC *table, size_t count) noexcept nogil
cdef int add_merge(TableC *table, uint32_t left, uint32_t right, uint32_t becomes) noexcept nogil
cdef uint32_t find_token(const TableC *table, const uint8_t *content, size_t size) noexcept nogil
cdef int merge_word(const TableC *table, CallC *call, const uint8_t *word, size_t size, uint64_t hashed) noexcept nogil
cdef int make_room(CallC *call, size_t count) noexcept nogil
cdef int add_id(CallC *call, uint32_t token_id) noexcept nogil
cdef int add_ids(CallC *call, const uint32_t *ids, size_t count) noexcept nogil
