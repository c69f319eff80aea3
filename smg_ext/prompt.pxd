from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef SMG_P61
    #include <stdint.h>
    #include <string.h>
    #define SMG_P61 ((UINT64_C(1) << 61) - 1)
    static inline uint64_t smg_word(const char *units, int number) {
        uint64_t word;
        memcpy(&word, units + 8 * number, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = word << 32 | word >> 32;
    #endif
        return word;
    }
    /* One more chunk of 16 units on a name. What goes in and out is below 2^63 and congruent to the name; see smg_name. */
    static inline uint64_t smg_chunk(const uint64_t *keys, uint64_t name, const char *units) {
        unsigned __int128 sum = 0;
        #pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) sum += (unsigned __int128)(smg_word(units, i) + keys[i]) * (smg_word(units, i + 1) + keys[i + 1]);
        sum = (unsigned __int128)(uint64_t)sum * keys[9] + (unsigned __int128)(uint64_t)(sum >> 64) * keys[10];
        sum += (unsigned __int128)name * keys[8];
        return ((uint64_t)sum & SMG_P61) + (uint64_t)(sum >> 61);
    }
    static inline uint64_t smg_name(uint64_t name) {
        name = (name & SMG_P61) + (name >> 61);
        return name >= SMG_P61 ? name - SMG_P61 : name;
    }
    #endif
    """
    uint64_t P61 "SMG_P61"
    uint64_t smg_chunk(const uint64_t *keys, uint64_t name, const char *units) noexcept nogil
    uint64_t smg_name(uint64_t name) noexcept nogil


cdef struct PromptC:
    uint64_t *names
    const char *units
    int64_t unit_count
    int64_t name_count
    int64_t step
    int64_t unit_size


cdef class Prompt:
    cdef PromptC c
    cdef Py_buffer view


cdef void make_keys(uint64_t *keys, uint64_t one, uint64_t other) noexcept nogil
cdef int64_t name_units(const uint64_t *keys, uint64_t start, const char *units, int64_t count, int64_t step, uint64_t *out) noexcept nogil
cdef void name_prompt(const uint64_t *keys, PromptC *prompt, int64_t step) noexcept nogil
cdef Prompt prompt_of_ids(object ids)
cdef Prompt prompt_of_text(str text)
