# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""What is under way at engines, as routing weighs it: counts and reports in shared memory in, prompt tokens to compute out.

Reads what all processes have counted and what engines report beyond that, without a lock; a few ns an engine and process. `smg.obs.loads`
has the twin.
"""

from libc.stdint cimport int64_t, uint64_t

from smg_ext.atomics cimport smg_peek
from smg_ext.shm cimport BREAKER_STATE, E_BREAKER, E_EPOCH, E_LOAD, E_STATE, E_WORDS, Shm, ShmC, sum_slot

__all__ = ["Loads", "least_of"]

cdef enum:
    # words of what an engine reports
    L_RUNNING = 0
    L_WAITING = 1
    L_USED = 2
    L_MAX = 3
    L_UNCACHED = 4
    L_POLLED = 6
    L_REQUESTS = 7
    L_TOKENS = 8
    SURVEY_FIELDS = 8
    WEIGHTS = 4
    # No report weighs more than these: an engine may say anything.
    MOST_REQUESTS = 1 << 24

cdef int64_t MOST_TOKENS = <int64_t>1 << 40
cdef int64_t MOST_USED = <int64_t>1 << 50
cdef int64_t OVERLOADED = <int64_t>1 << 56
cdef double FULLEST = 0.999

cdef struct SeenC:
    int64_t requests
    int64_t tokens
    int64_t foreign_requests
    int64_t foreign_tokens
    int64_t foreign_untold
    int64_t usage_milli


cdef int64_t _load(int64_t *at) noexcept nogil:
    return <int64_t>smg_peek(<uint64_t *>at)


cdef int64_t _beyond(int64_t reported, int64_t counted, int64_t most) noexcept nogil:
    return min(reported - counted, most) if reported > counted else 0


cdef void _see(ShmC *shm, int64_t slot, int64_t fresh_ms, SeenC *seen) noexcept nogil:
    cdef int64_t *load = shm.engines + slot * E_WORDS + E_LOAD
    sum_slot(shm, slot, &seen.requests, &seen.tokens)
    seen.foreign_requests = 0
    seen.foreign_tokens = 0
    seen.foreign_untold = 0
    seen.usage_milli = 0
    if _load(load + L_POLLED) <= fresh_ms:
        return
    seen.foreign_requests = _beyond(_load(load + L_RUNNING) + _load(load + L_WAITING), _load(load + L_REQUESTS), MOST_REQUESTS)
    seen.foreign_tokens = _beyond(_load(load + L_UNCACHED), _load(load + L_TOKENS), MOST_TOKENS)
    if _load(load + L_UNCACHED) == 0:
        seen.foreign_untold = min(_load(load + L_WAITING), seen.foreign_requests)
    if _load(load + L_MAX) > 0:
        seen.usage_milli = 1000 * min(_load(load + L_USED), MOST_USED) // _load(load + L_MAX)


cdef int64_t _work(const SeenC *seen, const double *weights) noexcept nogil:
    cdef double usage = min(<double>seen.usage_milli / 1000, FULLEST)
    cdef int64_t request = <int64_t>weights[0]
    cdef int64_t work = seen.tokens + seen.foreign_tokens + (seen.requests + seen.foreign_requests) * request
    work += seen.foreign_untold * <int64_t>weights[1]
    if usage > 0:
        work += <int64_t>(weights[2] * usage / (1 - usage))
        if usage > weights[3]:
            work += OVERLOADED
    return work


cdef int64_t _least(int64_t *works, int64_t count, const int64_t *saved, int64_t unit, int64_t draw) noexcept nogil:
    """Index of the least of works less savings, the draw-th of those that are equal. Savings are taken off in place."""
    cdef int64_t i
    cdef int64_t ties = 0
    cdef int64_t least = 0
    for i in range(count):
        if saved:
            works[i] -= saved[i] // unit
        if ties == 0 or works[i] < least:
            least = works[i]
            ties = 1
        elif works[i] == least:
            ties += 1
    draw %= ties
    for i in range(count):
        if works[i] == least:
            if draw == 0:
                return i
            draw -= 1
    return -1


def least_of(int64_t[::1] works not None, int64_t draw, const int64_t[::1] saved=None, int64_t unit=1):
    """Gives the index of the least of `works`, the one that `draw`, a random number, says among equals.

    `saved`: what is taken off each before, in place, in parts of `unit`; it may be longer. ValueError when there is nothing to choose.
    """
    cdef int64_t count = works.shape[0]
    if count == 0 or draw < 0 or unit < 1 or (saved is not None and saved.shape[0] < count):
        raise ValueError("no engines, or a saving, a draw or a unit that cannot be")
    with nogil:
        count = _least(&works[0], count, &saved[0] if saved is not None else NULL, unit, draw)
    return count


cdef class Loads:
    """Reads the loads of the block; every slot is checked, IndexError when it is out of range."""

    cdef Shm shm

    def __cinit__(self, Shm shm not None):
        self.shm = shm

    def survey(self, const int64_t[::1] slots, const int64_t[::1] epochs, int64_t state, int64_t fresh_ms, int64_t[::1] out):
        """Fills `out` with what routing asks of each slot, in the order of `smg.obs.loads.SURVEY_FIELDS`.

        `usable` is 1 where the slot has that state and epoch. What engines report counts when it was polled after `fresh_ms`, and only as
        far as it goes beyond what this gateway itself had there when it asked.
        """
        cdef Py_ssize_t i
        cdef SeenC seen
        cdef int64_t *at
        cdef int64_t *found
        if epochs.shape[0] < slots.shape[0] or out.shape[0] < SURVEY_FIELDS * slots.shape[0]:
            raise ValueError("no room for the fields of every slot")
        for i in range(slots.shape[0]):
            self.shm._engine(slots[i])
        with nogil:
            for i in range(slots.shape[0]):
                at = self.shm.c.engines + slots[i] * E_WORDS
                _see(&self.shm.c, slots[i], fresh_ms, &seen)
                found = &out[SURVEY_FIELDS * i]
                found[0] = seen.requests
                found[1] = seen.tokens
                found[2] = _load(at + E_STATE) == state and _load(at + E_EPOCH) == epochs[i]
                found[3] = _load(at + E_BREAKER) & BREAKER_STATE
                found[4] = seen.foreign_requests
                found[5] = seen.foreign_tokens
                found[6] = seen.foreign_untold
                found[7] = seen.usage_milli

    def works(self, const int64_t[::1] slots, int64_t fresh_ms, const double[::1] weights, int64_t[::1] out):
        """Fills `out` with what is queued at each slot, in prompt tokens to compute; `smg.types.candidate.Cost` says how it is weighed."""
        cdef Py_ssize_t i
        cdef SeenC seen
        if weights.shape[0] != WEIGHTS or out.shape[0] < slots.shape[0]:
            raise ValueError("no room for a number a slot, or not all weights")
        for i in range(slots.shape[0]):
            self.shm._engine(slots[i])
        with nogil:
            for i in range(slots.shape[0]):
                _see(&self.shm.c, slots[i], fresh_ms, &seen)
                out[i] = _work(&seen, &weights[0])
