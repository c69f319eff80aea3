"""The twin of `smg_ext.prefix` and `smg_ext.prompt`, and their specification: the same calls leave the same words of shared memory.

A prompt's beginning of k units u is named by the sum of (u[i] + 1) * r^(k-i) modulo 2^61-1, r being the block's secret base; so the name of
a longer beginning follows from that of a shorter one whatever the block size. An engine's entries are at the multiples of its step, its
block size or as many blocks as make 16 tokens. What an entry is, and where it lies, is said in `smg_ext.prefix`. Not atomic.
"""

from array import array
from collections.abc import Sequence

from smg.obs.shm import PREFIX_HEADER_WORDS, PREFIX_SLOT_WORDS, PlainShm

__all__ = ["PlainPrefixIndex", "PlainPrompt"]

P61 = (1 << 61) - 1
LINES, BASE, STORED, EVICTED = 0, 1, 3, 4
OWN_EPOCH, BLOCK_SIZE, USED = 0, 1, 2
COLUMNS, GROUPS, WAYS, STEP, OLDEST = 16, 64, 16, 16, 3
CONFIRMED, AGE, MARK = 16, 32, 34
MOST_UNITS = 1 << 17  # so that a prompt takes about a millisecond at most
LARGEST_BLOCK = 1 << 20
WORD = (1 << 64) - 1


class PlainPrompt:
    """One prompt: `units` are tokens, or 4 bytes of text each (`unit_size` 4)."""

    def __init__(self, units: Sequence[int], *, unit_size: int) -> None:
        self.units = units[:MOST_UNITS]
        self.unit_size = unit_size

    def __len__(self) -> int:
        return len(self.units)


class PlainPrefixIndex:
    """See `smg_ext.prefix.PrefixIndex`."""

    def __init__(self, shm: PlainShm) -> None:
        self._shm = shm
        self._words = shm.unsigned
        self._at = shm.prefix_at
        self._slots_at = self._at + PREFIX_HEADER_WORDS
        self._lines_at = self._slots_at + PREFIX_SLOT_WORDS * shm.engines
        self._lines = self._words[self._at + LINES]
        self._base = (self._words[self._at + BASE] >> 4) + (1 << 32)

    def prompt(self, ids: Sequence[int]) -> PlainPrompt:
        """Takes token ids. OverflowError, TypeError for what is no id."""
        return PlainPrompt(array("I", ids), unit_size=1)

    def text_prompt(self, text: str) -> PlainPrompt:
        """Takes a text."""
        data = text.encode("utf-8", "surrogatepass")
        return PlainPrompt(array("I", data[: len(data) // 4 * 4]), unit_size=4)

    def match(self, prompt: PlainPrompt, slots: "array[int]", out: "array[int]", rank: int = 0) -> None:
        """Fills `out` with how many tokens (bytes, for text) of the prompt's beginning each slot's engine holds."""
        if len(out) < len(slots):
            raise ValueError("out has no room for a number a slot")
        for slot in slots:
            self._slot(slot)
        for index, slot in enumerate(slots):
            held = 0
            if self._current(slot) and slot < COLUMNS * GROUPS:
                for name in self._names(prompt, self._step(slot)):
                    if not self._has(name, slot, rank):
                        break
                    held += self._step(slot) * prompt.unit_size
            out[index] = held

    def insert(self, prompt: PlainPrompt, slot: int, rank: int = 0) -> bool:
        """Predicts that an engine will hold the prompt."""
        if not self._open_here(slot):
            return False
        self._put_all(self._names(prompt, self._step(slot)), slot, rank, 0)
        return True

    def advance(self, start: int, ids: Sequence[int]) -> int:
        """Gives the name of a beginning that goes on with `ids` after the one named `start`."""
        if start >= P61:
            raise ValueError("no name of a beginning")
        for unit in self.prompt(ids).units:
            start = (start + unit + 1) * self._base % P61
        return start

    def confirm(self, hashes: "array[int]", slot: int, rank: int = 0) -> bool:
        """Takes an engine's word that it holds these blocks."""
        if not self._open_here(slot):
            return False
        self._put_all(hashes, slot, rank, CONFIRMED)
        return True

    def remove(self, hashes: "array[int]", slot: int, rank: int = 0) -> None:
        """Takes an engine's word that it holds them no more."""
        self._slot(slot)
        for name in hashes:
            line, mark, _ = self._place(name, slot, rank)
            at = self._find(line, mark)
            if at is not None and self._words[at] >> MARK == mark:
                self._words[at] &= ~(0x10001 << slot % COLUMNS) & WORD

    def forget(self, slot: int, predicted: bool = True) -> int:
        """Takes every entry of a slot away, or the confirmed ones alone; gives their number."""
        if not self._words[self._slot(slot) + USED]:
            return 0
        bits, cleared = (0x10001 if predicted else 0x10000) << slot % COLUMNS, 0
        for at in range(self._lines_at, self._lines_at + (self._lines + 1) * 8):
            word = self._words[at]
            if word >> MARK & (GROUPS - 1) == slot // COLUMNS & (GROUPS - 1) and word & bits:
                self._words[at] = word & ~bits
                cleared += 1
        return cleared

    def open(self, slot: int) -> None:
        """Begins the life of a slot's new engine, unless that was done."""
        at = self._slot(slot)
        if not self._current(slot):
            self._words[at + BLOCK_SIZE] = 0
            self.forget(slot)
            self._words[at + OWN_EPOCH] = self._shm.engine_epoch(slot)

    def step(self, slot: int) -> int:
        """Gives the tokens that an entry of a slot stands for."""
        self._slot(slot)
        return self._step(slot)

    def set_block_size(self, slot: int, tokens: int) -> None:
        """Takes an engine's block size, in tokens; 0 = not known."""
        if not 0 <= tokens <= LARGEST_BLOCK:
            raise ValueError("a block size must be in 0..1048576")
        self._words[self._slot(slot) + BLOCK_SIZE] = tokens

    def counts(self) -> tuple[int, int, int]:
        """Gives (entries that there is room for, entries made, entries given up for others)."""
        return self._lines * 8, self._words[self._at + STORED], self._words[self._at + EVICTED]

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self._shm.engines:
            raise IndexError(f"no engine slot {slot}")
        return self._slots_at + slot * PREFIX_SLOT_WORDS

    def _current(self, slot: int) -> bool:
        return self._words[self._slot(slot) + OWN_EPOCH] == self._shm.engine_epoch(slot)

    def _open_here(self, slot: int) -> bool:
        at = self._slot(slot)
        if slot >= COLUMNS * GROUPS:
            return False
        if self._words[at + OWN_EPOCH] == 0:
            self._words[at + OWN_EPOCH] = self._shm.engine_epoch(slot)
        if not self._current(slot):
            return False
        self._words[at + USED] = 1
        return True

    def _step(self, slot: int) -> int:
        block = self._words[self._slot(slot) + BLOCK_SIZE]
        return block * ((STEP + block - 1) // block) if block else STEP

    def _names(self, prompt: PlainPrompt, step: int) -> "array[int]":
        names, name = array("Q"), 0
        for index, unit in enumerate(prompt.units, start=1):
            name = (name + unit + 1) * self._base % P61
            if index % step == 0:
                names.append(name)
        return names

    def _place(self, name: int, slot: int, rank: int) -> tuple[int, int, int]:
        """Gives the window's first word, the mark an entry of the name has there, and where the search for a victim starts."""
        group = slot // COLUMNS | rank << 16
        key = (name ^ (group * 0x9E3779B97F4A7C15 & WORD)) * 0xD6E8FEB86659FD93 & WORD
        key = (key ^ key >> 32) * 0xA0761D6478BD642F & WORD
        mark = (key >> 3 & 0xFFFFFF or 1) << 6 | group & (GROUPS - 1)
        return self._lines_at + (key * self._lines >> 64) * 8, mark, key >> 27

    def _find(self, line: int, mark: int) -> int | None:
        """Gives the place of the entry with that mark, the first free one, or None when there is neither."""
        return next((at for at in range(line, line + WAYS) if self._words[at] >> MARK == mark or not self._words[at]), None)

    def _has(self, name: int, slot: int, rank: int) -> bool:
        line, mark, _ = self._place(name, slot, rank)
        at = self._find(line, mark)
        return at is not None and self._words[at] >> MARK == mark and bool(self._words[at] & 0x10001 << slot % COLUMNS)

    def _put_all(self, names: Sequence[int], slot: int, rank: int, shift: int) -> None:
        for name in names:
            line, mark, start = self._place(name, slot, rank)
            bit = 1 << slot % COLUMNS + shift
            at = self._find(line, mark)
            evicted = at is None
            if at is None:
                at = self._victim(line, start)
            if not evicted and self._words[at]:
                word = self._words[at] | bit
                self._words[at] = word + (1 << AGE) if word >> AGE & OLDEST < OLDEST else word
                continue
            self._words[at] = mark << MARK | 1 << AGE | bit
            self._words[self._at + STORED] += 1
            self._words[self._at + EVICTED] += evicted

    def _victim(self, line: int, start: int) -> int:
        """Gives the entry of a full window that is missed least: one that says nothing, else the first of the lowest age."""
        window = [line + (start + i & WAYS - 1) for i in range(WAYS)]
        ranks = [1 + (self._words[at] >> AGE & OLDEST) if self._words[at] & 0xFFFFFFFF else 0 for at in window]
        least = min(ranks)
        found = window[ranks.index(least)]
        for at in window if least > 1 else ():
            if at != found and (self._words[at] >> AGE & OLDEST) + 1 >= least:
                self._words[at] -= (least - 1) << AGE
        return found
