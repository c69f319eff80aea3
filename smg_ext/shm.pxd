from libc.stdint cimport int64_t


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


cdef class Shm:
    cdef ShmC c
    cdef Py_buffer buffer
    cdef bint mapped

    cdef int64_t *_engine(self, int64_t slot) except NULL
    cdef int64_t *_row(self, int64_t row) except NULL
    cdef int64_t *_inflight(self, int64_t row, int64_t slot) except NULL
    cdef int64_t *_cell(self, int64_t row, int64_t cell) except NULL
