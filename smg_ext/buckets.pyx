# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Token buckets of all processes: a table of fixed size in shared memory, on C11 atomics without a lock.

In: 64-bit keys that no client can choose, costs and bursts in ns of refilling, the time. Out: how long to wait. A bucket is one word: the
moment at which it will be full again (the generic cell rate algorithm, ITU-T I.371). One that is full is as good as none, so its place goes
to whoever needs one; where eight neighbours are all in use, the one that is nearest to full is forgotten. `smg.obs.buckets` has the twin.
"""

from libc.stdint cimport int64_t, uint64_t

from smg_ext.atomics cimport smg_peek, smg_poke, smg_replace, smg_scale
from smg_ext.shm cimport Shm

__all__ = ["Buckets"]

cdef enum:
    BUCKETS_AT = 18
    HEADER_WORDS = 8
    WAYS = 8

# No debt is longer than a day.
cdef int64_t LONGEST_NS = 86400 * <int64_t>1000000000


cdef uint64_t *_find(BucketsC *t, uint64_t key, int64_t now_ns, bint make) noexcept nogil:
    """The word of a bucket, made when absent; NULL for one that is absent and not to be made."""
    cdef uint64_t *first = t.entries + 2 * smg_scale(key, t.room)
    cdef uint64_t *at
    cdef uint64_t *oldest
    cdef uint64_t seen
    cdef int way, _tries
    for _tries in range(64):
        oldest = first
        for way in range(WAYS):
            at = first + 2 * way
            if smg_peek(at) == key:
                return at + 1
            if smg_peek(at + 1) < smg_peek(oldest + 1):
                oldest = at
        if not make:
            return NULL
        seen = smg_peek(oldest)
        if smg_replace(oldest, seen, key):
            if <int64_t>smg_peek(oldest + 1) > now_ns:
                smg_poke(oldest + 1, 0)
            return oldest + 1
    return first + 1


cdef int64_t _take(uint64_t *at, int64_t cost, int64_t burst, int64_t now_ns) noexcept nogil:
    cdef uint64_t seen
    cdef int64_t full, wait
    while True:
        seen = smg_peek(at)
        full = max(<int64_t>seen, now_ns)
        wait = full - now_ns + min(cost, burst) - burst
        if wait > 0:
            return wait
        if smg_replace(at, seen, <uint64_t>min(full + cost, now_ns + LONGEST_NS)):
            return 0


cdef void _charge(uint64_t *at, int64_t cost, int64_t now_ns) noexcept nogil:
    cdef uint64_t seen
    cdef int64_t full
    while True:
        seen = smg_peek(at)
        full = max(<int64_t>seen, now_ns)
        if smg_replace(at, seen, <uint64_t>max(min(full + cost, now_ns + LONGEST_NS), 0)):
            return


cdef class Buckets:
    """One process's view of the table in the block of `shm`. Costs are cut to a day; `now_ns` is of the same clock in all processes."""

    def __cinit__(self, Shm shm not None):
        cdef uint64_t *table = <uint64_t *>(shm.c.words + shm.c.words[BUCKETS_AT])
        self.shm = shm
        self.c.room = table[0]
        self.c.entries = table + HEADER_WORDS

    def take(self, uint64_t key, int64_t cost_ns, int64_t burst_ns, int64_t now_ns):
        """Takes from a bucket that is full at `burst_ns`; gives 0, or the ns after which there may be enough, and then takes nothing.

        What costs more than a full bucket holds is let pass when it is full, and leaves a debt.
        """
        cdef int64_t wait
        _check(cost_ns, burst_ns, now_ns)
        with nogil:
            wait = _take(_find(&self.c, key or 1, now_ns, True), min(cost_ns, LONGEST_NS), burst_ns, now_ns)
        return wait

    def charge(self, uint64_t key, int64_t cost_ns, int64_t now_ns):
        """Takes from a bucket whatever there is in it; gives back where the cost is below 0."""
        cdef uint64_t *at
        _check(abs(cost_ns), 0, now_ns)
        with nogil:
            at = _find(&self.c, key or 1, now_ns, cost_ns > 0)
            if at != NULL:
                _charge(at, max(min(cost_ns, LONGEST_NS), -LONGEST_NS), now_ns)

    def debt(self, uint64_t key, int64_t now_ns):
        """Gives the ns until a bucket is full."""
        cdef uint64_t *at
        _check(0, 0, now_ns)
        with nogil:
            at = _find(&self.c, key or 1, now_ns, False)
        return 0 if at == NULL else max(<int64_t>smg_peek(at) - now_ns, 0)


cdef int _check(int64_t cost, int64_t burst, int64_t now) except -1:
    if cost < 0 or not 0 <= burst <= LONGEST_NS or not 0 <= now < <int64_t>1 << 62:
        raise ValueError("costs, bursts and times are ns, not below 0, and bursts at most a day")
    return 0
