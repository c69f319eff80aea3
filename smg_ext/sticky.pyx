# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Which engine a routing key was given to, for all processes: a table of fixed size in shared memory, on C11 atomics without a lock.

In: 64-bit hashes of keys, slots of engines, the time. Out: the slot a key is bound to. `smg.kvindex.plain_sticky` is the twin. An entry is
one word, found in one of two neighbouring cache lines; when both are full, the key that was idle for longest is forgotten:

    tag 24 | slot 10 | epoch 8 | time of the last use 22 (units of 16 s)
"""

from libc.stdint cimport int64_t, uint64_t

from smg_ext.atomics cimport smg_count, smg_peek, smg_replace, smg_scale
from smg_ext.shm cimport Shm

__all__ = ["Sticky"]

cdef enum:
    ENGINES_EPOCH = 1
    ENGINE_WORDS = 16
    STICKY_AT = 15
    HEADER_WORDS = 8
    H_LINES = 0
    TAG = 40
    SLOT = 30
    EPOCH = 22
    SLOTS = 1024
    WAYS = 16
    UNIT_S = 16
    TIME = 0x3FFFFF


cdef inline uint64_t _word(StickyC *table, uint64_t key, int64_t slot, int64_t now_s) noexcept nogil:
    cdef uint64_t epoch = smg_peek(<uint64_t *>(table.engines + slot * ENGINE_WORDS + ENGINES_EPOCH))
    cdef uint64_t tag = key & 0xFFFFFF
    return (tag if tag else 1) << TAG | <uint64_t>slot << SLOT | (epoch & 0xFF) << EPOCH | (<uint64_t>(now_s // UNIT_S) & TIME)


cdef inline bint _alive(StickyC *table, uint64_t word, int64_t now_s, int64_t idle_s) noexcept nogil:
    """True for an entry that is not too old and whose engine still has its slot."""
    cdef uint64_t slot = word >> SLOT & (SLOTS - 1)
    cdef uint64_t epoch = smg_peek(<uint64_t *>(table.engines + slot * ENGINE_WORDS + ENGINES_EPOCH))
    cdef uint64_t idle = (<uint64_t>(now_s // UNIT_S) - word) & TIME
    return word != 0 and word >> EPOCH & 0xFF == epoch & 0xFF and <int64_t>idle * UNIT_S <= idle_s


cdef int64_t _find(StickyC *table, uint64_t key, int64_t now_s, int64_t idle_s) noexcept nogil:
    cdef int way
    cdef int64_t slot
    cdef uint64_t word
    cdef uint64_t *line = table.lines + smg_scale(key, table.line_count) * 8
    for way in range(WAYS):
        word = smg_peek(line + way)
        slot = <int64_t>(word >> SLOT & (SLOTS - 1))
        if word >> TAG == _word(table, key, slot, now_s) >> TAG and _alive(table, word, now_s, idle_s):
            smg_replace(line + way, word, word & ~<uint64_t>TIME | (<uint64_t>(now_s // UNIT_S) & TIME))
            return slot
    return -1


cdef void _put(StickyC *table, uint64_t key, int64_t slot, int64_t now_s) noexcept nogil:
    cdef int way, _tries
    cdef uint64_t word, age, seen, oldest
    cdef uint64_t fresh = _word(table, key, slot, now_s)
    cdef uint64_t *at
    cdef uint64_t *line = table.lines + smg_scale(key, table.line_count) * 8
    for _tries in range(64):
        at = line
        oldest = 0
        seen = smg_peek(line)
        for way in range(WAYS):
            word = smg_peek(line + way)
            age = TIME + 2 if word >> TAG == fresh >> TAG else TIME + 1 if word == 0 else (fresh - word) & TIME
            if age > oldest:
                at = line + way
                oldest = age
                seen = word
        if smg_replace(at, seen, fresh):
            smg_count(table.counts + slot, 1)
            if seen:
                smg_count(table.counts + (seen >> SLOT & (SLOTS - 1)), <uint64_t>-1)
            return


cdef int64_t _expire(StickyC *table, int64_t now_s, int64_t idle_s) noexcept nogil:
    cdef uint64_t i, word
    cdef int64_t gone = 0
    for i in range((table.line_count + 1) * 8):
        word = smg_peek(table.lines + i)
        if word and not _alive(table, word, now_s, idle_s) and smg_replace(table.lines + i, word, 0):
            smg_count(table.counts + (word >> SLOT & (SLOTS - 1)), <uint64_t>-1)
            gone += 1
    return gone


cdef class Sticky:
    """One process's view of the table in the block of `shm`. `key`: 64 bits that no client can choose."""

    def __cinit__(self, Shm shm not None):
        cdef uint64_t *table = <uint64_t *>(shm.c.words + shm.c.words[STICKY_AT])
        self.shm = shm
        self.c.header = table
        self.c.counts = table + HEADER_WORDS
        self.c.engines = shm.c.engines
        self.c.slot_count = min(shm.c.engine_count, <int64_t>SLOTS)
        self.c.lines = self.c.counts + (shm.c.engine_count + 7) // 8 * 8
        self.c.line_count = table[H_LINES]

    def find(self, uint64_t key, int64_t now_s, int64_t idle_s):
        """Gives the slot that a key is bound to and counts that as a use; -1 when there is none, or none that was used within `idle_s`."""
        cdef int64_t slot
        with nogil:
            slot = _find(&self.c, key, now_s, idle_s)
        return slot

    def put(self, uint64_t key, int64_t slot, int64_t now_s):
        """Binds a key to a slot's engine, in the place of what it was bound to. IndexError for a slot that cannot be."""
        if not 0 <= slot < self.c.slot_count:
            raise IndexError(f"no engine slot {slot}")
        with nogil:
            _put(&self.c, key, slot, now_s)

    def keys(self, int64_t slot):
        """Gives the number of keys that are bound to a slot, those that `expire` has not seen yet included."""
        if not 0 <= slot < self.c.slot_count:
            raise IndexError(f"no engine slot {slot}")
        return smg_peek(self.c.counts + slot)

    def expire(self, int64_t now_s, int64_t idle_s):
        """Frees the keys that were idle for too long or whose engine is gone; gives their number."""
        cdef int64_t gone
        with nogil:
            gone = _expire(&self.c, now_s, idle_s)
        return gone
