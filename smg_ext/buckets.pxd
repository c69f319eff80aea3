from libc.stdint cimport int64_t, uint64_t

from smg_ext.shm cimport Shm


cdef struct BucketsC:
    uint64_t *entries
    uint64_t room


cdef class Buckets:
    cdef BucketsC c
    cdef Shm shm
