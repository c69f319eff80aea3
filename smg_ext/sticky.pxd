from libc.stdint cimport int64_t, uint64_t

from smg_ext.shm cimport Shm


cdef struct StickyC:
    uint64_t *header
    uint64_t *counts
    uint64_t *lines
    uint64_t line_count
    int64_t *engines
    int64_t slot_count


cdef class Sticky:
    cdef StickyC c
    cdef Shm shm
