# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""One series of a metric, as a process holds it to add to it with each request: where its cells are is looked up once.

In: amounts, or seconds. Out: numbers in the process's row of the shared block. `smg.obs.metrics` has the twins and declares the metrics.
"""

from libc.stdint cimport int64_t, uint64_t

from zlib import crc32

from smg_ext.atomics cimport smg_count
from smg_ext.shm cimport Shm

__all__ = ["Counter", "Histogram"]

cdef enum:
    MICRO = 1000000
    BOUNDS = 64


cdef class Series:
    """Found when it is first needed, and looked for again as long as there is no room."""

    cdef Shm shm
    cdef int64_t row
    cdef int64_t cell
    cdef int64_t count
    cdef bytes key

    cdef int64_t *_cells(self) except? NULL:
        """The first of its cells; NULL when there is no room for the series."""
        if self.cell < 0:
            self.cell = self.shm.series(self.key, crc32(self.key), self.count)
            if self.cell < 0:
                return NULL
            self.shm._cell(self.row, self.cell + self.count - 1)
        return self.shm._cell(self.row, self.cell)


cdef class Counter(Series):
    """A number that only grows."""

    def __cinit__(self, Shm shm not None, int64_t row, bytes key not None):
        self.shm, self.row, self.key = shm, row, key
        self.cell, self.count = -1, 1

    def add(self, int64_t amount=1):
        """Adds to it."""
        cdef int64_t *cells = self._cells()
        if cells != NULL:
            smg_count(<uint64_t *>cells, <uint64_t>amount)


cdef class Histogram(Series):
    """Durations, counted by the first of the ascending `bounds` that is not below them, in seconds; at most 64 bounds."""

    cdef double bounds[BOUNDS]

    def __cinit__(self, Shm shm not None, int64_t row, bytes key not None, bounds not None):
        cdef Py_ssize_t i
        if len(bounds) > BOUNDS:
            raise ValueError("a histogram has at most 64 bounds")
        self.shm, self.row, self.key = shm, row, key
        self.cell, self.count = -1, len(bounds) + 2
        for i in range(len(bounds)):
            self.bounds[i] = bounds[i]

    def observe(self, double seconds):
        """Adds one duration."""
        cdef int64_t *cells = self._cells()
        cdef int64_t i = 0
        if cells == NULL:
            return
        while i < self.count - 2 and self.bounds[i] < seconds:
            i += 1
        smg_count(<uint64_t *>(cells + i), 1)
        smg_count(<uint64_t *>(cells + self.count - 1), <uint64_t><int64_t>(seconds * MICRO))
