"""One cache line of the prefix index: the word of ages, then seven entries. Finds an entry by its mark, and a free one."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef SMG_LINES
    #define SMG_LINES
    #include <stdint.h>
    #ifdef __SSE2__
    #include <emmintrin.h>
    /* the upper halves of four words */
    static inline __m128i smg_uppers(const uint64_t *at) {
        __m128 one = _mm_loadu_ps((const float *)at), other = _mm_loadu_ps((const float *)(at + 2));
        return _mm_castps_si128(_mm_shuffle_ps(one, other, _MM_SHUFFLE(3, 1, 3, 1)));
    }
    #endif
    /* bits 1..7: entries with the mark; bits 9..15: entries that are free. Only a hint: an entry is read again before it is used. */
    static inline uint32_t smg_scan(const uint64_t *line, uint32_t mark) {
    #ifdef __SSE2__
        __m128i first = smg_uppers(line), second = smg_uppers(line + 4), wanted = _mm_set1_epi32((int)mark), zero = _mm_setzero_si128();
        __m128i hits = _mm_packs_epi32(_mm_cmpeq_epi32(first, wanted), _mm_cmpeq_epi32(second, wanted));
        __m128i frees = _mm_packs_epi32(_mm_cmpeq_epi32(first, zero), _mm_cmpeq_epi32(second, zero));
        return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(hits, frees)) & 0xFEFE;
    #else
        uint32_t found = 0;
        for (int way = 1; way < 8; way++) {
            uint32_t upper = (uint32_t)(__atomic_load_n(line + way, __ATOMIC_ACQUIRE) >> 32);
            found |= (uint32_t)(upper == mark) << way | (uint32_t)(upper == 0) << (way + 8);
        }
        return found;
    #endif
    }
    static inline int smg_first(uint32_t bits) { return __builtin_ctz(bits); }
    #endif
    """
    uint32_t smg_scan(const uint64_t *line, uint32_t mark) noexcept nogil
    int smg_first(uint32_t bits) noexcept nogil
