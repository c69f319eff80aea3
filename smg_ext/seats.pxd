from libc.stdint cimport int64_t, uint64_t

from smg_ext.shm cimport Shm


cdef struct SeatsC:
    uint64_t *header
    uint64_t *seats
    uint64_t *waiters
    int64_t *rows
    int64_t seat_room
    int64_t waiter_room
    int64_t row_count


cdef struct SurveyC:
    int64_t used[4]
    int64_t waiting[4]
    int64_t asked
    int64_t free
    uint64_t best[8]
    int64_t best_at[8]


cdef class Seats:
    cdef SeatsC c
    cdef Shm shm

    cdef uint64_t *_seat(self, int64_t seat) except NULL
    cdef uint64_t *_waiter(self, int64_t waiter) except NULL
