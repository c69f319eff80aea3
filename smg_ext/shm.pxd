from libc.stdint cimport int64_t


cdef enum:
    # words of an engine slot: state, epoch, suspect, the load fields, the breaker
    E_WORDS = 16
    E_STATE = 0
    E_EPOCH = 1
    E_SUSPECT = 2
    E_LOAD = 3
    LOAD_FIELDS = 9
    E_BREAKER = 12
    BREAKER_STATE = 3
    BREAKER_EPOCH_SHIFT = 18
    BREAKER_EPOCHS = 63


cdef struct ShmC:
    int64_t *words
    int64_t *engines
    int64_t *rows
    int64_t *inflight
    int64_t *series
    int64_t *cells
    int64_t *counts
    int64_t row_count
    int64_t engine_count
    int64_t series_count
    int64_t cell_count


cdef void sum_slot(ShmC *shm, int64_t slot, int64_t *requests, int64_t *tokens) noexcept nogil


cdef class Shm:
    cdef ShmC c
    cdef Py_buffer buffer
    cdef bint mapped

    cdef int64_t *_engine(self, int64_t slot) except NULL
    cdef int64_t *_row(self, int64_t row) except NULL
    cdef int64_t *_inflight(self, int64_t row, int64_t slot) except NULL
    cdef int64_t *_cell(self, int64_t row, int64_t cell) except NULL
