"""The twin of `smg_ext.sticky` and its specification: the same calls leave the same words of shared memory. Not atomic."""

from smg.obs.shm import STICKY_HEADER_WORDS, PlainShm

__all__ = ["PlainSticky"]

TAG, SLOT, EPOCH_SHIFT = 40, 30, 22
SLOTS, WAYS, UNIT_S, TIME = 1024, 16, 16, 0x3FFFFF
WORD = (1 << 64) - 1


class PlainSticky:
    """See `smg_ext.sticky.Sticky`."""

    def __init__(self, shm: PlainShm) -> None:
        self._shm = shm
        self._words = shm.unsigned
        self._slots = min(shm.engines, SLOTS)
        at = shm.sticky_at
        self._lines = self._words[at]
        self._counts_at = at + STICKY_HEADER_WORDS
        self._lines_at = self._counts_at + (shm.engines + 7) // 8 * 8

    def find(self, key: int, now_s: int, idle_s: int) -> int:
        """Gives the slot that a key is bound to and counts that as a use; -1 when there is none, or it was idle for longer."""
        for at in self._window(key):
            word = self._words[at]
            if word >> TAG == (key & 0xFFFFFF or 1) and self._alive(word, now_s, idle_s):
                self._words[at] = word & ~TIME | now_s // UNIT_S & TIME
                return word >> SLOT & (SLOTS - 1)
        return -1

    def put(self, key: int, slot: int, now_s: int) -> None:
        """Binds a key to a slot's engine, in the place of what it was bound to."""
        self._slot(slot)
        tag = key & 0xFFFFFF or 1
        fresh = tag << TAG | slot << SLOT | (self._shm.engine_epoch(slot) & 0xFF) << EPOCH_SHIFT | now_s // UNIT_S & TIME
        window = self._window(key)
        ages = [self._age(self._words[at], fresh) for at in window]
        at = window[ages.index(max(ages))] if max(ages) else window[0]
        seen, self._words[at] = self._words[at], fresh
        self._count(slot, 1)
        if seen:
            self._count(seen >> SLOT & (SLOTS - 1), -1)

    def keys(self, slot: int) -> int:
        """Gives the number of keys that are bound to a slot."""
        return self._words[self._counts_at + self._slot(slot)]

    def expire(self, now_s: int, idle_s: int) -> int:
        """Frees the keys that were idle for too long or whose engine is gone; gives their number."""
        gone = 0
        for at in range(self._lines_at, self._lines_at + (self._lines + 1) * 8):
            word = self._words[at]
            if word and not self._alive(word, now_s, idle_s):
                self._words[at] = 0
                self._count(word >> SLOT & (SLOTS - 1), -1)
                gone += 1
        return gone

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self._slots:
            raise IndexError(f"no engine slot {slot}")
        return slot

    def _window(self, key: int) -> range:
        first = self._lines_at + (key * self._lines >> 64) * 8
        return range(first, first + WAYS)

    def _alive(self, word: int, now_s: int, idle_s: int) -> bool:
        same = word >> EPOCH_SHIFT & 0xFF == self._shm.engine_epoch(word >> SLOT & (SLOTS - 1)) & 0xFF
        return word != 0 and same and (now_s // UNIT_S - word & TIME) * UNIT_S <= idle_s

    @staticmethod
    def _age(word: int, fresh: int) -> int:
        """The key itself goes first, then a free place, then who was idle for longest."""
        if word >> TAG == fresh >> TAG:
            return TIME + 2
        return fresh - word & TIME if word else TIME + 1

    def _count(self, slot: int, by: int) -> None:
        self._words[self._counts_at + slot] = self._words[self._counts_at + slot] + by & WORD
