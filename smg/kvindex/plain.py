"""The twin of `smg_ext.prefix` and `smg_ext.prompt`, and their specification: the same calls leave the same words of shared memory.

A prompt's beginning is named step by step: of each chunk of 16 units, filled up with zeros at the end of a step, which are 8 words w of 64
bits, n = sum of (w[i] + k[i]) * (w[i+1] + k[i+1]) modulo 2^128, i even; the name is then name * k[8] + low half of n * k[9] + high half of
n * k[10] modulo 2^61-1, the name of the empty beginning being the step. An engine's step is its block size, or as many blocks as make 16
tokens. What an entry is, and where it lies, is said in `smg_ext.prefix`. Not atomic.
"""

from array import array
from collections.abc import Sequence

from smg.obs.shm import PREFIX_HEADER_WORDS, PREFIX_SLOT_WORDS, PlainShm

__all__ = ["PlainPrefixIndex", "PlainPrompt"]

P61 = (1 << 61) - 1
LINES, SECRET, STORED, EVICTED, BLOCK = 0, 1, 3, 4, 5
OWN_EPOCH, BLOCK_SIZE, USED, RANKS = 0, 1, 2, 3
COLUMNS, GROUPS, LINE, WAYS, STEP, CHUNK = 16, 64, 8, 7, 16, 16
CONFIRMED, MARK, PLANE = 16, 32, 8
MOST_UNITS = 1 << 17  # so that a prompt takes about a millisecond at most
LARGEST_BLOCK = 1 << 20
MOST_RANKS, NO_RANK = 256, 0xFFFF
WORD = (1 << 64) - 1


class PlainPrompt:
    """One prompt: `units` are tokens, or 4 bytes of text each (`unit_size` 4)."""

    def __init__(self, units: Sequence[int], *, unit_size: int) -> None:
        self.units = units[:MOST_UNITS]
        self.unit_size = unit_size
        self.named: dict[int, array[int]] = {}  # by step, what is asked for once an engine

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
        self._keys = keys_of(*self._words[self._at + SECRET : self._at + SECRET + 2])

    def prompt(self, ids: Sequence[int] | bytes) -> PlainPrompt:
        """Takes token ids. OverflowError, TypeError for what is no id."""
        if isinstance(ids, bytes) and len(ids) % 4:
            raise TypeError("token ids must be 32-bit integers")
        return PlainPrompt(array("I", ids), unit_size=1)

    def text_prompt(self, text: str) -> PlainPrompt:
        """Takes a text."""
        data = text.encode("utf-8", "surrogatepass")
        return PlainPrompt(array("I", data[: len(data) // 4 * 4]), unit_size=4)

    def match(self, prompt: PlainPrompt, slots: "array[int]", out: "array[int]") -> None:
        """Fills `out` with how many tokens (bytes, for text) of the prompt's beginning each slot's engine holds."""
        if len(out) < len(slots):
            raise ValueError("out has no room for a number a slot")
        for slot in slots:
            self._slot(slot)
        for index, slot in enumerate(slots):
            out[index] = self._best(prompt, slot)[0]

    def rank(self, prompt: PlainPrompt, slot: int) -> int:
        """Gives the data-parallel rank that holds most of a prompt, -1 when there is none to name."""
        return self._best(prompt, slot)[1] if self._words[self._slot(slot) + RANKS] > 1 else -1

    def insert(self, prompt: PlainPrompt, slot: int, rank: int = -1, epoch: int = -1) -> bool:
        """Predicts that an engine will hold the prompt."""
        if not self._open_here(slot, epoch):
            return False
        if rank < 0:
            rank = NO_RANK if self._words[self._slot(slot) + RANKS] > 1 else 0
        self._put_all(self._named(prompt, self._step(slot)), slot, rank, 0)
        return True

    def names(self, start: int, ids: Sequence[int] | bytes, step: int) -> "array[int]":
        """Gives the names of the beginnings that end with each whole step of `ids` after the one named `start`."""
        prompt = self.prompt(ids)
        if start >= P61 or not STEP <= step <= 2 * LARGEST_BLOCK:
            raise ValueError("no name of a beginning, or no step")
        return self._names(start, prompt, step)

    def confirm(self, names: "array[int]", slot: int, rank: int = 0, epoch: int = -1) -> bool:
        """Takes an engine's word that it holds these blocks."""
        if not self._open_here(slot, epoch):
            return False
        self._put_all(names, slot, rank, CONFIRMED)
        return True

    def remove(self, names: "array[int]", slot: int, rank: int = 0) -> None:
        """Takes an engine's word that it holds them no more."""
        self._slot(slot)
        for name in names:
            line, mark, _ = self._place(name, slot, rank)
            at = self._find(line, mark)
            if at is not None and self._words[at] >> MARK == mark:
                self._clear(at, 0x10001 << slot % COLUMNS)

    def forget(self, slot: int, predicted: bool = True, confirmed: bool = True) -> int:
        """Takes every entry of a slot away, or one kind alone; gives their number."""
        if not self._words[self._slot(slot) + USED]:
            return 0
        bits, cleared = (predicted | confirmed << CONFIRMED) << slot % COLUMNS, 0
        for line in range(self._lines_at, self._lines_at + (self._lines + 1) * LINE, LINE):
            for at in range(line + 1, line + LINE):
                word = self._words[at]
                if word >> MARK & (GROUPS - 1) == slot // COLUMNS & (GROUPS - 1) and word & bits:
                    self._clear(at, bits)
                    cleared += 1
        return cleared

    def open(self, slot: int) -> None:
        """Begins the life of a slot's new engine, unless that was done."""
        at = self._slot(slot)
        if not self._current(slot):
            self._words[at + BLOCK_SIZE] = self._words[at + RANKS] = 0
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

    def set_ranks(self, slot: int, ranks: int) -> None:
        """Takes how many data-parallel ranks an engine has."""
        at = self._slot(slot) + RANKS
        if not 0 <= ranks <= MOST_RANKS:
            raise ValueError("ranks must be in 0..256")
        if ranks > 1 and self._words[at] <= 1:
            self.forget(slot, True, False)
        self._words[at] = ranks

    def counts(self) -> tuple[int, int, int]:
        """Gives (entries that there is room for, entries made, entries given up for others)."""
        return self._lines * WAYS, self._words[self._at + STORED], self._words[self._at + EVICTED]

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self._shm.engines:
            raise IndexError(f"no engine slot {slot}")
        return self._slots_at + slot * PREFIX_SLOT_WORDS

    def _current(self, slot: int) -> bool:
        return self._words[self._slot(slot) + OWN_EPOCH] == self._shm.engine_epoch(slot)

    def _open_here(self, slot: int, epoch: int) -> bool:
        at = self._slot(slot)
        if slot >= COLUMNS * GROUPS or epoch not in (-1, self._shm.engine_epoch(slot)):
            return False
        if self._words[at + OWN_EPOCH] == 0:
            self._words[at + OWN_EPOCH] = self._shm.engine_epoch(slot)
        if not self._current(slot):
            return False
        self._words[at + USED] = 1
        return True

    def _step(self, slot: int) -> int:
        block = self._words[self._slot(slot) + BLOCK_SIZE] or self._words[self._at + BLOCK]
        return block * ((STEP + block - 1) // block) if block else STEP

    def _names(self, name: int, prompt: PlainPrompt, step: int) -> "array[int]":
        names, keys, name = array("Q"), self._keys, name or step
        for end in range(step, len(prompt.units) + 1, step):
            for first in range(end - step, end, CHUNK):
                units = [*prompt.units[first : min(first + CHUNK, end)], *[0] * CHUNK][:CHUNK]
                words = [(low | high << 32) + key & WORD for low, high, key in zip(units[::2], units[1::2], keys, strict=False)]
                summed = sum(one * other for one, other in zip(words[::2], words[1::2], strict=True))
                name = (name * keys[8] + (summed & WORD) * keys[9] + (summed >> 64 & WORD) * keys[10]) % P61
            names.append(name)
        return names

    def _named(self, prompt: PlainPrompt, step: int) -> "array[int]":
        if step not in prompt.named:
            prompt.named[step] = self._names(0, prompt, step)
        return prompt.named[step]

    def _best(self, prompt: PlainPrompt, slot: int) -> tuple[int, int]:
        """Gives how much of a prompt a slot's engine holds, and at which rank; -1 = it is not known where."""
        if not self._current(slot) or slot >= COLUMNS * GROUPS:
            return 0, -1
        ranks = self._words[self._slot(slot) + RANKS]
        if ranks <= 1:
            return self._held(prompt, slot, 0), 0
        most, best = self._held(prompt, slot, NO_RANK), -1
        for rank in range(ranks):
            held = self._held(prompt, slot, rank)
            if held > most or (0 < held == most and best < 0):
                most, best = held, rank
        return most, best

    def _held(self, prompt: PlainPrompt, slot: int, rank: int) -> int:
        step = self._step(slot)
        names = self._named(prompt, step)
        known = next((number for number, name in enumerate(names) if not self._has(name, slot, rank)), len(names))
        return known * step * prompt.unit_size

    def _place(self, name: int, slot: int, rank: int) -> tuple[int, int, int]:
        """Gives a window's first word, the mark an entry of the name has there, and at which way the search for a victim starts."""
        group = slot // COLUMNS | rank << 16
        key = (name ^ (group * 0x9E3779B97F4A7C15 & WORD)) * 0xD6E8FEB86659FD93 & WORD
        key = (key ^ key >> 32) * 0xA0761D6478BD642F & WORD
        mark = (key >> 3 & 0x3FFFFFF or 1) << 6 | group & (GROUPS - 1)
        return self._lines_at + (key * self._lines >> 64) * LINE, mark, (key << 35 & WORD) * 2 * WAYS >> 64

    def _find(self, line: int, mark: int) -> int | None:
        """Gives the place of the entry with that mark, the first free one, or None when there is neither."""
        return next((at for at in window_of(line) if self._words[at] >> MARK == mark or not self._words[at]), None)

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
                self._words[at] |= bit
                self._set_age(at, min(self._age(at) + 1, 3))
                continue
            self._words[at] = mark << MARK | bit
            self._set_age(at, 1)
            self._words[self._at + STORED] += 1
            self._words[self._at + EVICTED] += evicted

    def _clear(self, at: int, bits: int) -> None:
        self._words[at] &= ~bits & WORD
        if not self._words[at] & 0xFFFFFFFF:
            self._set_age(at, 0)

    def _victim(self, line: int, start: int) -> int:
        """Gives the entry of a full window that is missed least, the first of the lowest age; the others age by as much."""
        window = window_of(line)
        ages = [self._age(at) for at in window]
        least = min(ages)
        for at, age in zip(window, ages, strict=True):
            self._set_age(at, age - least)
        return window[next(way % (2 * WAYS) for way in range(start, start + 2 * WAYS) if ages[way % (2 * WAYS)] == least)]

    def _age(self, at: int) -> int:
        shift = (at - self._lines_at) % LINE - 1
        ages = self._words[at - shift - 1] >> shift
        return ages & 1 | (ages >> PLANE & 1) << 1

    def _set_age(self, at: int, age: int) -> None:
        shift = (at - self._lines_at) % LINE - 1
        ages = self._words[at - shift - 1] & ~((1 | 1 << PLANE) << shift)
        self._words[at - shift - 1] = ages | ((age & 1) | (age >> 1) << PLANE) << shift


def window_of(line: int) -> list[int]:
    """Gives the words of two lines that are entries."""
    return [*range(line + 1, line + LINE), *range(line + LINE + 1, line + 2 * LINE)]


def keys_of(one: int, other: int) -> list[int]:
    """Gives the 11 keys of names of a secret: 8 for a chunk's words, then the three factors of the polynomial."""
    keys = [mixed(one ^ mixed(other + number * 0x9E3779B97F4A7C15 & WORD)) for number in range(1, 12)]
    return [*keys[:8], (keys[8] >> 4) + (1 << 32), (keys[9] >> 7) + 1, (keys[10] >> 7) + 1]


def mixed(word: int) -> int:
    """One word of SplitMix64 (Steele and others 2014)."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31
