from libc.stdint cimport int64_t, uint64_t

from smg_ext.shm cimport Shm


cdef struct PrefixC:
    uint64_t keys[11]
    uint64_t *header
    int64_t *slots
    uint64_t *lines
    uint64_t line_count
    int64_t *engines
    int64_t slot_count


cdef class PrefixIndex:
    cdef PrefixC c
    cdef Shm shm

    cdef int64_t *_slot(self, int64_t slot) except NULL
    cdef int64_t _opened(self, int64_t slot, int64_t wanted) except -2
    cdef bint _put(self, const uint64_t *names, int64_t count, int64_t slot, int64_t rank, int shift, int64_t epoch) noexcept nogil
