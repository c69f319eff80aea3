"""C11 atomics on the words of shared tables, and the arithmetic that finds a place in one."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <stdint.h>
    typedef _Atomic uint64_t smg_cell;
    static inline uint64_t smg_peek(uint64_t *at) { return atomic_load_explicit((smg_cell *)at, memory_order_acquire); }
    static inline void smg_poke(uint64_t *at, uint64_t to) { atomic_store_explicit((smg_cell *)at, to, memory_order_release); }
    static inline int smg_replace(uint64_t *at, uint64_t from, uint64_t to) {
        return atomic_compare_exchange_strong_explicit((smg_cell *)at, &from, to, memory_order_acq_rel, memory_order_acquire);
    }
    static inline void smg_count(uint64_t *at, uint64_t by) { atomic_fetch_add_explicit((smg_cell *)at, by, memory_order_relaxed); }
    static inline void smg_fence(void) { atomic_thread_fence(memory_order_seq_cst); }
    static inline void smg_prefetch(const void *at) { __builtin_prefetch(at, 1); }
    static inline uint64_t smg_scale(uint64_t key, uint64_t range) { return (uint64_t)(((unsigned __int128)key * range) >> 64); }
    """
    uint64_t smg_peek(uint64_t *at) noexcept nogil
    void smg_poke(uint64_t *at, uint64_t to) noexcept nogil
    int smg_replace(uint64_t *at, uint64_t expected, uint64_t to) noexcept nogil
    void smg_count(uint64_t *at, uint64_t by) noexcept nogil
    void smg_fence() noexcept nogil
    void smg_prefetch(const void *at) noexcept nogil
    uint64_t smg_scale(uint64_t key, uint64_t range) noexcept nogil
