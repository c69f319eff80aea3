# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The prefix index: which engine holds the KV of which prompt beginnings, in shared memory, on C11 atomics without a lock.

In: prompts (token ids, or text for engines behind HTTP) and the engine each went to; blocks that engines say they hold. Out: how much of a
prompt each engine has. `smg.kvindex.plain` is the twin and says what each word means.

A prompt's beginning is named by a 61-bit hash (`smg_ext.prompt`). An entry is one word, so that no reader ever sees half of one:

    tag 24 | group of slots 6 | age 2 | confirmed 16 | predicted 16 (one bit for each slot of the group)

and lies in one of two neighbouring cache lines. A full pair of lines gives up its youngest in age, which ages the others (clock).
"""

from libc.stdint cimport int64_t, uint64_t

from smg_ext.atomics cimport smg_count, smg_peek, smg_poke, smg_prefetch, smg_replace, smg_scale
from smg_ext.prompt cimport P61, Prompt, PromptC, hash_prompt, prompt_of_ids, prompt_of_text, smg_advance, smg_times
from smg_ext.shm cimport Shm

__all__ = ["PrefixIndex"]

cdef enum:
    # words of the block's header, of an engine slot there, of this table's header and of a slot here
    ENGINES_EPOCH = 1
    ENGINE_WORDS = 16
    PREFIX_AT = 14
    H_LINES = 0
    H_BASE = 1
    H_SECRET = 2
    H_STORED = 3
    H_EVICTED = 4
    HEADER_WORDS = 16
    SLOT_WORDS = 8
    S_EPOCH = 0
    S_BLOCK = 1
    S_USED = 2
    # shifts within an entry
    CONFIRMED = 16
    AGE = 32
    MARK = 34
    COLUMNS = 16
    GROUPS = 64
    OLDEST = 3
    WAYS = 16
    STEP = 16
    AHEAD = 32
    MAX_BLOCK = 1 << 20
    SWEEPING = -1

cdef uint64_t BITS = 0xFFFFFFFF


cdef inline uint64_t _key(uint64_t hash, uint64_t group) noexcept nogil:
    """The name as a place, spread once more: the names of prompts that differ by a count are in steps, which may be narrow ones."""
    hash = (hash ^ (group * <uint64_t>0x9E3779B97F4A7C15)) * <uint64_t>0xD6E8FEB86659FD93
    return (hash ^ (hash >> 32)) * <uint64_t>0xA0761D6478BD642F


cdef inline uint64_t _mark(uint64_t key, uint64_t group) noexcept nogil:
    cdef uint64_t tag = key >> 3 & 0xFFFFFF
    return (tag if tag else 1) << 6 | (group & (GROUPS - 1))


cdef inline uint64_t *_line(PrefixC *index, uint64_t key) noexcept nogil:
    return index.lines + smg_scale(key, index.line_count) * 8


cdef inline uint64_t *_find(uint64_t *line, uint64_t mark) noexcept nogil:
    """The entry with that mark, the first free one, or NULL when there is neither."""
    cdef int way
    cdef uint64_t word
    for way in range(WAYS):
        word = smg_peek(line + way)
        if word >> MARK == mark or word == 0:
            return line + way
    return NULL


cdef inline uint64_t _aged(uint64_t word) noexcept nogil:
    return word + (<uint64_t>1 << AGE) if word >> AGE & OLDEST < OLDEST else word


cdef uint64_t *_victim(uint64_t *line, uint64_t start, uint64_t *seen) noexcept nogil:
    """The entry of a full window that is missed least, as it was `seen`: one that says nothing, else the first of the lowest age."""
    cdef int i
    cdef uint64_t word, rank
    cdef uint64_t least = 1 << 10
    cdef uint64_t *found = line
    for i in range(WAYS):
        word = smg_peek(line + ((start + <uint64_t>i) & (WAYS - 1)))
        rank = 1 + (word >> AGE & OLDEST) if word & BITS else 0
        if rank < least:
            least = rank
            found = line + ((start + <uint64_t>i) & (WAYS - 1))
            seen[0] = word
    if least > 1:
        for i in range(WAYS):
            word = smg_peek(line + i)
            if line + i != found and (word >> AGE & OLDEST) + 1 >= least:
                smg_replace(line + i, word, word - ((least - 1) << AGE))
    return found


cdef int _put(uint64_t *line, uint64_t mark, uint64_t bit, uint64_t start) noexcept nogil:
    """Sets a bit of an entry, making the entry: 0 = it was there, 1 = made, 2 = made in another's place, 3 = lost a race."""
    cdef int _tries
    cdef uint64_t seen, wanted
    cdef uint64_t *at
    for _tries in range(64):
        at = _find(line, mark)
        if at == NULL:
            at = _victim(line, start, &seen)
            if smg_replace(at, seen, mark << MARK | <uint64_t>1 << AGE | bit):
                return 2
            continue
        seen = smg_peek(at)
        if seen == 0:
            if smg_replace(at, 0, mark << MARK | <uint64_t>1 << AGE | bit):
                return 1
        elif seen >> MARK == mark:
            wanted = _aged(seen | bit)
            if wanted == seen or smg_replace(at, seen, wanted):
                return 0
    return 3


cdef inline void _prefetch(PrefixC *index, const uint64_t *hashes, int64_t count, uint64_t group, bint whole) noexcept nogil:
    cdef int64_t i
    cdef uint64_t *line
    for i in range(min(count, AHEAD)):
        line = _line(index, _key(hashes[i], group))
        smg_prefetch(line)
        if whole:
            smg_prefetch(line + 8)


cdef void _put_all(PrefixC *index, const uint64_t *hashes, int64_t count, int64_t slot, int64_t rank, int shift) noexcept nogil:
    cdef int64_t i
    cdef int outcome
    cdef uint64_t key, stored = 0, evicted = 0
    cdef uint64_t group = <uint64_t>(slot // COLUMNS | rank << 16)
    cdef uint64_t bit = <uint64_t>1 << (slot % COLUMNS + shift)
    for i in range(count):
        if i % AHEAD == 0:
            _prefetch(index, hashes + i, count - i, group, True)
        key = _key(hashes[i], group)
        outcome = _put(_line(index, key), _mark(key, group), bit, key >> 27)
        stored += outcome != 0 and outcome != 3
        evicted += outcome == 2
    if stored:
        smg_count(index.header + H_STORED, stored)
    if evicted:
        smg_count(index.header + H_EVICTED, evicted)


cdef void _remove_all(PrefixC *index, const uint64_t *hashes, int64_t count, int64_t slot, int64_t rank) noexcept nogil:
    cdef int64_t i
    cdef uint64_t key, seen
    cdef uint64_t *at
    cdef uint64_t group = <uint64_t>(slot // COLUMNS | rank << 16)
    cdef uint64_t bits = <uint64_t>0x10001 << (slot % COLUMNS)
    for i in range(count):
        key = _key(hashes[i], group)
        at = _find(_line(index, key), _mark(key, group))
        while at != NULL:
            seen = smg_peek(at)
            if seen >> MARK != _mark(key, group) or smg_replace(at, seen, seen & ~bits):
                break


cdef int64_t _sweep(PrefixC *index, int64_t slot, uint64_t bits) noexcept nogil:
    """Takes a slot's bits out of every entry of its group."""
    cdef uint64_t i, seen
    cdef int64_t cleared = 0
    cdef uint64_t group = <uint64_t>(slot // COLUMNS) & (GROUPS - 1)
    for i in range((index.line_count + 1) * 8):
        seen = smg_peek(index.lines + i)
        while seen >> MARK & (GROUPS - 1) == group and seen & bits:
            if smg_replace(index.lines + i, seen, seen & ~bits):
                cleared += 1
            seen = smg_peek(index.lines + i)
    return cleared


cdef void _walk(PrefixC *index, PromptC *prompt, const int64_t *slots, int64_t *out, int64_t count, int64_t rank) noexcept nogil:
    """Fills `out` for slots of one group and one step: how many units of the prompt's beginning each has. -1 there = do not look."""
    cdef int64_t i, block
    cdef uint64_t key, held
    cdef uint64_t alive = 0
    cdef uint64_t group = <uint64_t>(slots[0] // COLUMNS | rank << 16)
    cdef uint64_t *at
    for i in range(count):
        alive |= <uint64_t>(out[i] == 0) << (slots[i] % COLUMNS)
    for block in range(prompt.hash_count):
        if block % AHEAD == 0:
            _prefetch(index, prompt.hashes + block, prompt.hash_count - block, group, False)
        key = _key(prompt.hashes[block], group)
        at = _find(_line(index, key), _mark(key, group))
        held = smg_peek(at) if at != NULL else 0
        held = alive & (held | held >> CONFIRMED) if held >> MARK == _mark(key, group) else 0
        if held != alive:
            for i in range(count):
                if (alive ^ held) >> (slots[i] % COLUMNS) & 1:
                    out[i] = block * prompt.step * prompt.unit_size
            alive = held
        if alive == 0:
            return
    for i in range(count):
        if alive >> (slots[i] % COLUMNS) & 1:
            out[i] = prompt.hash_count * prompt.step * prompt.unit_size


cdef inline bint _current(PrefixC *index, int64_t slot) noexcept nogil:
    """True when what the table says of a slot is of the engine that has the slot now."""
    cdef uint64_t *own = <uint64_t *>(index.slots + slot * SLOT_WORDS + S_EPOCH)
    return smg_peek(own) == smg_peek(<uint64_t *>(index.engines + slot * ENGINE_WORDS + ENGINES_EPOCH))


cdef inline int64_t _step(PrefixC *index, int64_t slot) noexcept nogil:
    """Units of an entry: the engine's block, or as many of them as make 16."""
    cdef int64_t block = <int64_t>smg_peek(<uint64_t *>(index.slots + slot * SLOT_WORDS + S_BLOCK))
    return STEP if block <= 0 else block * ((STEP + block - 1) // block)


cdef void _match(PrefixC *index, PromptC *prompt, const int64_t *slots, int64_t *out, int64_t count, int64_t rank) noexcept nogil:
    """Goes through the slots in runs of one group and one step, so that each block is looked up once a run."""
    cdef int64_t first = 0
    cdef int64_t last, step
    for last in range(count):
        out[last] = 0 if _current(index, slots[last]) and slots[last] < COLUMNS * GROUPS else -1
    while first < count:
        step = _step(index, slots[first])
        last = first + 1
        while last < count and slots[last] // COLUMNS == slots[first] // COLUMNS and _step(index, slots[last]) == step:
            last += 1
        hash_prompt(index.powers, prompt, step)
        _walk(index, prompt, slots + first, out + first, last - first, rank)
        first = last
    for last in range(count):
        out[last] = max(out[last], 0)


cdef class PrefixIndex:
    """One process's view of the index in the block of `shm`. IndexError for a slot that cannot be."""

    def __cinit__(self, Shm shm not None):
        cdef int64_t *table = shm.c.words + shm.c.words[PREFIX_AT]
        cdef int i
        self.shm = shm
        self.c.header = <uint64_t *>table
        self.c.engines = shm.c.engines
        self.c.slot_count = shm.c.engine_count
        self.c.slots = table + HEADER_WORDS
        self.c.lines = <uint64_t *>(self.c.slots + self.c.slot_count * SLOT_WORDS)
        self.c.line_count = <uint64_t>table[H_LINES]
        self.c.powers[0] = 1
        self.c.powers[1] = (<uint64_t>table[H_BASE] >> 4) + (<uint64_t>1 << 32)
        for i in range(2, 17):
            self.c.powers[i] = smg_times(self.c.powers[i - 1], self.c.powers[1])
        for i in range(1, 17):
            self.c.powers[17 + i] = (self.c.powers[16 + i] + self.c.powers[i]) % P61

    cdef int64_t *_slot(self, int64_t slot) except NULL:
        if not 0 <= slot < self.c.slot_count:
            raise IndexError(f"no engine slot {slot}")
        return self.c.slots + slot * SLOT_WORDS

    cdef bint _open_here(self, int64_t slot) except -1:
        """True when entries of the slot may be made; a slot that never had any needs no more than its epoch."""
        cdef uint64_t *own = <uint64_t *>(self._slot(slot) + S_EPOCH)
        if slot >= COLUMNS * GROUPS:
            return False
        if smg_peek(own) == 0:
            smg_replace(own, 0, smg_peek(<uint64_t *>(self.c.engines + slot * ENGINE_WORDS + ENGINES_EPOCH)))
        if not _current(&self.c, slot):
            return False
        smg_poke(own + S_USED, 1)
        return True

    def prompt(self, ids not None):
        """Takes token ids: a list or tuple, or, cheapest, an array of 32-bit integers. OverflowError, TypeError for what is no id."""
        return prompt_of_ids(ids)

    def text_prompt(self, str text not None):
        """Takes a text, 4 bytes of its UTF-8 a unit, for engines that tokenize themselves. A text that is not UTF-8 has no beginning."""
        return prompt_of_text(text)

    def match(self, Prompt prompt not None, const int64_t[::1] slots, int64_t[::1] out, int64_t rank=0):
        """Fills `out` with how many tokens (bytes, for text) of the prompt's beginning each slot's engine holds at a data-parallel rank."""
        cdef Py_ssize_t i
        if out.shape[0] < slots.shape[0]:
            raise ValueError("out has no room for a number a slot")
        for i in range(slots.shape[0]):
            self._slot(slots[i])
        if slots.shape[0]:
            with nogil:
                _match(&self.c, &prompt.c, &slots[0], &out[0], slots.shape[0], rank)

    def insert(self, Prompt prompt not None, int64_t slot, int64_t rank=0):
        """Predicts that an engine will hold the prompt. False when the slot's engine is new and `open` has not run for it yet."""
        if not self._open_here(slot):
            return False
        with nogil:
            hash_prompt(self.c.powers, &prompt.c, _step(&self.c, slot))
            _put_all(&self.c, prompt.c.hashes, prompt.c.hash_count, slot, rank, 0)
        return True

    def advance(self, uint64_t start, ids not None):
        """Gives the name of a beginning that goes on with `ids` after the one named `start`; 0 names the empty one."""
        cdef Prompt prompt = prompt_of_ids(ids)
        cdef int64_t done = 0
        if start >= P61:
            raise ValueError("no name of a beginning")
        with nogil:
            while done < prompt.c.unit_count:
                start = smg_advance(self.c.powers, start, prompt.c.units + done, min(16, prompt.c.unit_count - done))
                done += 16
        return start

    def confirm(self, const uint64_t[::1] hashes, int64_t slot, int64_t rank=0):
        """Takes an engine's word that it holds the blocks at whose end the beginnings with these names are. False as `insert`."""
        if not self._open_here(slot):
            return False
        if hashes.shape[0]:
            with nogil:
                _put_all(&self.c, &hashes[0], hashes.shape[0], slot, rank, CONFIRMED)
        return True

    def remove(self, const uint64_t[::1] hashes, int64_t slot, int64_t rank=0):
        """Takes an engine's word that it holds them no more; predictions of the same blocks go too."""
        self._slot(slot)
        if hashes.shape[0]:
            with nogil:
                _remove_all(&self.c, &hashes[0], hashes.shape[0], slot, rank)

    def forget(self, int64_t slot, bint predicted=True):
        """Takes every entry of a slot away, or the confirmed ones alone; gives their number. Reads the table, for milliseconds.

        Of a slot that never had any it reads nothing: reading takes memory for the whole table.
        """
        cdef uint64_t bits = (<uint64_t>0x10001 if predicted else <uint64_t>0x10000) << (slot % COLUMNS)
        cdef int64_t cleared
        if smg_peek(<uint64_t *>(self._slot(slot) + S_USED)) == 0:
            return 0
        with nogil:
            cleared = _sweep(&self.c, slot, bits)
        return cleared

    def open(self, int64_t slot):
        """Begins the life of a slot's new engine, unless that was done: what was there is gone. Only the control process calls it."""
        cdef int64_t *at = self._slot(slot)
        cdef uint64_t epoch = smg_peek(<uint64_t *>(self.c.engines + slot * ENGINE_WORDS + ENGINES_EPOCH))
        if smg_peek(<uint64_t *>(at + S_EPOCH)) == epoch:
            return
        smg_poke(<uint64_t *>(at + S_EPOCH), <uint64_t>SWEEPING)
        smg_poke(<uint64_t *>(at + S_BLOCK), 0)
        self.forget(slot)
        smg_poke(<uint64_t *>(at + S_EPOCH), epoch)

    def step(self, int64_t slot):
        """Gives the tokens that an entry of a slot stands for."""
        self._slot(slot)
        return _step(&self.c, slot)

    def set_block_size(self, int64_t slot, int64_t tokens):
        """Takes an engine's block size, in tokens; 0 = not known. Entries made under another size are not found any more."""
        if not 0 <= tokens <= MAX_BLOCK:
            raise ValueError("a block size must be in 0..1048576")
        smg_poke(<uint64_t *>(self._slot(slot) + S_BLOCK), <uint64_t>tokens)

    def counts(self):
        """Gives (entries that there is room for, entries made, entries given up for others)."""
        return self.c.line_count * 8, smg_peek(self.c.header + H_STORED), smg_peek(self.c.header + H_EVICTED)
