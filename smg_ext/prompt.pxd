from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef SMG_P61
    #include <stdint.h>
    #define SMG_P61 ((UINT64_C(1) << 61) - 1)
    static inline uint64_t smg_fold(unsigned __int128 sum) {
        uint64_t low = ((uint64_t)sum & SMG_P61) + (uint64_t)(sum >> 61);
        low = (low & SMG_P61) + (low >> 61);
        return low >= SMG_P61 ? low - SMG_P61 : low;
    }
    static inline uint64_t smg_times(uint64_t one, uint64_t other) { return smg_fold((unsigned __int128)one * other); }
    /* powers[0..16] of the base, then at 17 the sums of powers[1..count]: each unit counts one more than it is */
    static inline uint64_t smg_advance(const uint64_t *powers, uint64_t hash, const uint32_t *units, int64_t count) {
        unsigned __int128 sum = (unsigned __int128)hash * powers[count] + powers[17 + count];
        if (count == 16) {
            #pragma GCC unroll 16
            for (int i = 0; i < 16; i++) sum += (unsigned __int128)powers[16 - i] * units[i];
        } else {
            for (int64_t i = 0; i < count; i++) sum += (unsigned __int128)powers[count - i] * units[i];
        }
        return smg_fold(sum);
    }
    #endif
    """
    uint64_t P61 "SMG_P61"
    uint64_t smg_times(uint64_t one, uint64_t other) noexcept nogil
    uint64_t smg_advance(const uint64_t *powers, uint64_t hash, const uint32_t *units, int64_t count) noexcept nogil


cdef struct PromptC:
    uint64_t *hashes
    uint32_t *units
    int64_t unit_count
    int64_t hash_count
    int64_t step
    int64_t unit_size


cdef class Prompt:
    cdef PromptC c


cdef void hash_prompt(const uint64_t *powers, PromptC *prompt, int64_t step) noexcept nogil
cdef Prompt prompt_of_ids(object ids)
cdef Prompt prompt_of_text(str text)
