# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The prefix index: which engine holds the KV of which prompt beginnings, in shared memory, on C11 atomics without a lock.

In: prompts (token ids, or text for engines behind HTTP) and the engine each went to; blocks that engines say they hold. Out: how much of a
prompt each engine has. `smg.kvindex.plain` is the twin and says what each word means.

A prompt's beginning has a 61-bit name (`smg_ext.prompt`). An entry is one word, so that no reader ever sees half of one:

    tag 26 | group of slots 6 | confirmed 16 | predicted 16 (one bit for each slot of the group)

and is one of seven in a cache line, in the line that its name gives or the next. The line's first word holds their ages, in two planes of
bits. Ages are written without care for other writers: they are only a hint to who is missed least. When both lines are full, one of the
lowest age gives way, and the others age by that much (clock). A free place is never free again, so whoever meets one has seen all entries.

Two writers that make room for one name at the same time may both make an entry. So `remove` looks at all, and what is read is the first:
less may be known than was said, never more.
"""

from array import array

from libc.stdint cimport int64_t, uint32_t, uint64_t

from smg_ext.atomics cimport smg_count, smg_fence, smg_peek, smg_poke, smg_prefetch, smg_replace, smg_scale
from smg_ext.lines cimport smg_first, smg_scan
from smg_ext.prompt cimport P61, Prompt, PromptC, make_keys, name_prompt, name_units, prompt_of_ids, prompt_of_text
from smg_ext.shm cimport Shm

__all__ = ["PrefixIndex"]

cdef enum:
    # words of the block's header, of an engine slot there, of this table's header and of a slot here
    ENGINES_EPOCH = 1
    ENGINE_WORDS = 16
    PREFIX_AT = 14
    H_LINES = 0
    H_SECRET = 1
    H_STORED = 3
    H_EVICTED = 4
    H_BLOCK = 5
    HEADER_WORDS = 16
    SLOT_WORDS = 8
    S_EPOCH = 0
    S_BLOCK = 1
    S_USED = 2
    S_RANKS = 3
    # shifts within an entry
    CONFIRMED = 16
    MARK = 32
    COLUMNS = 16
    GROUPS = 64
    LINE = 8
    WAYS = 7
    PLANE = 8
    WAYS_MASK = 0x7F
    WINDOW_MASK = 0x3FFF
    STEP = 16
    AHEAD = 32
    MAX_BLOCK = 1 << 20
    MOST_RANKS = 256
    NO_RANK = 0xFFFF
    NONE = -1
    SWEEPING = -1

cdef uint64_t BITS = 0xFFFFFFFF


cdef inline uint64_t _key(uint64_t hash, uint64_t group) noexcept nogil:
    """The name as a place, spread once more: the names of prompts that differ by a count are in steps, which may be narrow ones."""
    hash = (hash ^ (group * <uint64_t>0x9E3779B97F4A7C15)) * <uint64_t>0xD6E8FEB86659FD93
    return (hash ^ (hash >> 32)) * <uint64_t>0xA0761D6478BD642F


cdef inline uint32_t _mark(uint64_t key, uint64_t group) noexcept nogil:
    cdef uint64_t tag = key >> 3 & 0x3FFFFFF
    return <uint32_t>((tag if tag else 1) << 6 | (group & (GROUPS - 1)))


cdef inline uint64_t *_line(PrefixC *index, uint64_t key) noexcept nogil:
    return index.lines + smg_scale(key, index.line_count) * LINE


cdef inline int _find(uint64_t *line, uint32_t mark) noexcept nogil:
    """The word of the window that is the entry with that mark, the first free one, or NONE when there is neither."""
    cdef uint32_t found = smg_scan(line, mark)
    if found & 0xFF:
        return smg_first(found)
    if found:
        return smg_first(found >> 8)
    found = smg_scan(line + LINE, mark)
    if found & 0xFF:
        return LINE + smg_first(found)
    return LINE + smg_first(found >> 8) if found else NONE


cdef inline void _rejuvenate(uint64_t *line, int way) noexcept nogil:
    """One more use of an entry: 3 is as young as one can be."""
    cdef uint64_t low = <uint64_t>1 << ((way & 7) - 1)
    cdef uint64_t ages = smg_peek(line + (way & 8))
    if ages & (low | low << PLANE) != (low | low << PLANE):
        smg_poke(line + (way & 8), ages ^ low ^ (ages & low) << PLANE)


cdef inline void _set_age(uint64_t *line, int way, uint64_t age) noexcept nogil:
    """Gives an entry the age 0, which nobody misses, or 1."""
    cdef uint64_t low = <uint64_t>1 << ((way & 7) - 1)
    smg_poke(line + (way & 8), smg_peek(line + (way & 8)) & ~(low | low << PLANE) | low * age)


cdef inline int _victim(uint64_t *line, uint64_t start) noexcept nogil:
    """The entry of a full window that is missed least, the first of the lowest age; the others age by as much."""
    cdef uint64_t one = smg_peek(line), other = smg_peek(line + LINE)
    cdef uint64_t low = one & WAYS_MASK | (other & WAYS_MASK) << WAYS
    cdef uint64_t high = one >> PLANE & WAYS_MASK | (other >> PLANE & WAYS_MASK) << WAYS
    cdef uint64_t found = ~(low | high) & WINDOW_MASK
    cdef uint64_t way
    while not found:  # at most three times
        high &= low
        low ^= WINDOW_MASK
        found = ~(low | high) & WINDOW_MASK
        smg_poke(line, low & WAYS_MASK | (high & WAYS_MASK) << PLANE)
        smg_poke(line + LINE, low >> WAYS | (high >> WAYS) << PLANE)
    start = smg_scale(start, 2 * WAYS)
    way = <uint64_t>smg_first(<uint32_t>((found | found << (2 * WAYS)) >> start)) + start
    way = way - 2 * WAYS if way >= 2 * WAYS else way
    return <int>way + 1 + (way >= WAYS)


cdef int _put(uint64_t *line, uint32_t mark, uint64_t bit, uint64_t start) noexcept nogil:
    """Sets a bit of an entry, making the entry: 0 = it was there, 1 = made, 2 = made in another's place, 3 = lost a race."""
    cdef int _tries, way
    cdef uint64_t seen
    cdef uint64_t fresh = <uint64_t>mark << MARK | bit
    for _tries in range(64):
        way = _find(line, mark)
        if way == NONE:
            way = _victim(line, start)
            seen = smg_peek(line + way)
            if seen >> MARK != mark and smg_replace(line + way, seen, fresh):
                _set_age(line, way, 1)
                return 2
            continue
        seen = smg_peek(line + way)
        if seen == 0:
            if smg_replace(line + way, 0, fresh):
                _set_age(line, way, 1)
                return 1
        elif seen >> MARK == mark and (seen & bit or smg_replace(line + way, seen, seen | bit)):
            _rejuvenate(line, way)
            return 0
    return 3


cdef inline void _take(PrefixC *index, uint64_t *keys, uint64_t name, uint64_t group, int64_t i, bint whole) noexcept nogil:
    """Keeps the place of a name for `AHEAD` names later and has its line fetched, or both."""
    cdef uint64_t *line
    keys[i % AHEAD] = _key(name, group)
    line = _line(index, keys[i % AHEAD])
    smg_prefetch(line)
    if whole:
        smg_prefetch(line + LINE)


cdef void _put_all(PrefixC *index, const uint64_t *names, int64_t count, int64_t slot, int64_t rank, int shift) noexcept nogil:
    cdef int64_t i
    cdef int outcome
    cdef uint64_t key, stored = 0, evicted = 0
    cdef uint64_t keys[AHEAD]
    cdef bint full = smg_peek(index.header + H_EVICTED) != 0
    cdef uint64_t group = <uint64_t>(slot // COLUMNS | rank << 16)
    cdef uint64_t bit = <uint64_t>1 << (slot % COLUMNS + shift)
    for i in range(min(count, AHEAD)):
        _take(index, keys, names[i], group, i, full)
    for i in range(count):
        key = keys[i % AHEAD]
        if i + AHEAD < count:
            _take(index, keys, names[i + AHEAD], group, i, full)
        outcome = _put(_line(index, key), _mark(key, group), bit, key << 35)
        stored += outcome != 0 and outcome != 3
        evicted += outcome == 2
    if stored:
        smg_count(index.header + H_STORED, stored)
    if evicted:
        smg_count(index.header + H_EVICTED, evicted)


cdef bint _clear(uint64_t *line, int way, uint32_t mark, uint64_t bits) noexcept nogil:
    """Takes bits out of an entry, if it still is that one; True when it had one of them."""
    cdef uint64_t seen = smg_peek(line + way)
    while seen >> MARK == mark and seen & bits:
        if smg_replace(line + way, seen, seen & ~bits):
            if not seen & ~bits & BITS:
                _set_age(line, way, 0)
            return True
        seen = smg_peek(line + way)
    return False


cdef void _remove_all(PrefixC *index, const uint64_t *names, int64_t count, int64_t slot, int64_t rank) noexcept nogil:
    cdef int64_t i
    cdef int _number
    cdef uint32_t found, hits
    cdef uint64_t key
    cdef uint64_t *line
    cdef uint64_t group = <uint64_t>(slot // COLUMNS | rank << 16)
    cdef uint64_t bits = <uint64_t>0x10001 << (slot % COLUMNS)
    for i in range(count):
        key = _key(names[i], group)
        line = _line(index, key)
        for _number in range(2):
            found = smg_scan(line, _mark(key, group))
            hits = found & 0xFF
            while hits:
                _clear(line, smg_first(hits), _mark(key, group), bits)
                hits &= hits - 1
            if found >> 8:
                break
            line += LINE


cdef int64_t _sweep(PrefixC *index, int64_t slot, uint64_t bits) noexcept nogil:
    """Takes a slot's bits out of every entry of its group."""
    cdef uint64_t _number, seen
    cdef int way
    cdef uint64_t *line = index.lines
    cdef int64_t cleared = 0
    cdef uint64_t group = <uint64_t>(slot // COLUMNS) & (GROUPS - 1)
    for _number in range(index.line_count + 1):
        for way in range(1, WAYS + 1):
            seen = smg_peek(line + way)
            if seen >> MARK & (GROUPS - 1) == group and seen & bits:
                cleared += _clear(line, way, <uint32_t>(seen >> MARK), bits)
        line += LINE
    return cleared


cdef void _walk(PrefixC *index, PromptC *prompt, const int64_t *slots, int64_t *out, int64_t count, int64_t rank) noexcept nogil:
    """Fills `out` for slots of one group and one step: how many units of the prompt's beginning each has. -1 there = do not look."""
    cdef int64_t i, number
    cdef int way
    cdef uint64_t key, held
    cdef uint64_t keys[AHEAD]
    cdef uint64_t alive = 0
    cdef uint64_t group = <uint64_t>(slots[0] // COLUMNS | rank << 16)
    cdef uint64_t *line
    for i in range(count):
        alive |= <uint64_t>(out[i] == 0) << (slots[i] % COLUMNS)
    for number in range(min(prompt.name_count, AHEAD)):
        _take(index, keys, prompt.names[number], group, number, False)
    for number in range(prompt.name_count):
        key = keys[number % AHEAD]
        if number + AHEAD < prompt.name_count:
            _take(index, keys, prompt.names[number + AHEAD], group, number, False)
        line = _line(index, key)
        way = _find(line, _mark(key, group))
        held = smg_peek(line + way) if way != NONE else 0
        held = alive & (held | held >> CONFIRMED) if held >> MARK == _mark(key, group) else 0
        if held != alive:
            for i in range(count):
                if (alive ^ held) >> (slots[i] % COLUMNS) & 1:
                    out[i] = number * prompt.step * prompt.unit_size
            alive = held
        if alive == 0:
            return
    for i in range(count):
        if alive >> (slots[i] % COLUMNS) & 1:
            out[i] = prompt.name_count * prompt.step * prompt.unit_size


cdef inline bint _current(PrefixC *index, int64_t slot) noexcept nogil:
    """True when what the table says of a slot is of the engine that has the slot now."""
    cdef uint64_t *own = <uint64_t *>(index.slots + slot * SLOT_WORDS + S_EPOCH)
    return smg_peek(own) == smg_peek(<uint64_t *>(index.engines + slot * ENGINE_WORDS + ENGINES_EPOCH))


cdef inline int64_t _step(PrefixC *index, int64_t slot) noexcept nogil:
    """Units of an entry: the engine's block, or as many of them as make 16."""
    cdef int64_t block = <int64_t>smg_peek(<uint64_t *>(index.slots + slot * SLOT_WORDS + S_BLOCK))
    if block <= 0:
        block = <int64_t>smg_peek(index.header + H_BLOCK)
    return block * ((STEP + block - 1) // block) if block > 0 else STEP


cdef inline int64_t _ranks(PrefixC *index, int64_t slot) noexcept nogil:
    return <int64_t>smg_peek(<uint64_t *>(index.slots + slot * SLOT_WORDS + S_RANKS))


cdef int64_t _best_rank(PrefixC *index, PromptC *prompt, int64_t slot, int64_t *most) noexcept nogil:
    """The rank of a slot that has most of a prompt, -1 when none has any or it is not known which; `most` is what it has."""
    cdef int64_t held, rank
    cdef int64_t best = NO_RANK
    most[0] = 0
    _walk(index, prompt, &slot, most, 1, NO_RANK)
    for rank in range(_ranks(index, slot)):
        held = 0
        _walk(index, prompt, &slot, &held, 1, rank)
        if held > 0 and held >= most[0] + (best != NO_RANK):
            best = rank
            most[0] = held
    return best if best != NO_RANK else -1


cdef void _match(PrefixC *index, PromptC *prompt, const int64_t *slots, int64_t *out, int64_t count) noexcept nogil:
    """Goes through the slots in runs of one group and one step, so that each name is looked up once a run."""
    cdef int64_t first = 0
    cdef int64_t last, step
    cdef bint apart
    for last in range(count):
        out[last] = 0 if _current(index, slots[last]) and slots[last] < COLUMNS * GROUPS else -1
    while first < count:
        step = _step(index, slots[first])
        apart = _ranks(index, slots[first]) > 1
        last = first + 1
        while last < count and not apart and slots[last] // COLUMNS == slots[first] // COLUMNS and _step(index, slots[last]) == step:
            if _ranks(index, slots[last]) > 1:
                break
            last += 1
        name_prompt(index.keys, prompt, step)
        if not apart:
            _walk(index, prompt, slots + first, out + first, last - first, 0)
        elif out[first] == 0:
            _best_rank(index, prompt, slots[first], out + first)
        first = last
    for last in range(count):
        out[last] = max(out[last], 0)


cdef class PrefixIndex:
    """One process's view of the index in the block of `shm`. IndexError for a slot that cannot be.

    A data-parallel rank's entries are apart. Those of an engine that has several and of which it is not known who got the prompt are under
    a rank of their own.
    """

    def __cinit__(self, Shm shm not None):
        cdef int64_t *table = shm.c.words + shm.c.words[PREFIX_AT]
        self.shm = shm
        self.c.header = <uint64_t *>table
        self.c.engines = shm.c.engines
        self.c.slot_count = shm.c.engine_count
        self.c.slots = table + HEADER_WORDS
        self.c.lines = <uint64_t *>(self.c.slots + self.c.slot_count * SLOT_WORDS)
        self.c.line_count = <uint64_t>table[H_LINES]
        make_keys(self.c.keys, <uint64_t>table[H_SECRET], <uint64_t>table[H_SECRET + 1])

    cdef int64_t *_slot(self, int64_t slot) except NULL:
        if not 0 <= slot < self.c.slot_count:
            raise IndexError(f"no engine slot {slot}")
        return self.c.slots + slot * SLOT_WORDS

    cdef int64_t _opened(self, int64_t slot, int64_t wanted) except -2:
        """Gives the epoch for which entries of the slot may be made, -1 = none; a slot that never had any needs no more than its epoch.

        `wanted`: the only epoch that may be, -1 = whichever it is.
        """
        cdef uint64_t *own = <uint64_t *>(self._slot(slot) + S_EPOCH)
        cdef uint64_t epoch = smg_peek(<uint64_t *>(self.c.engines + slot * ENGINE_WORDS + ENGINES_EPOCH))
        if slot >= COLUMNS * GROUPS or (wanted >= 0 and <uint64_t>wanted != epoch):
            return -1
        if smg_peek(own) == 0:
            smg_replace(own, 0, epoch)
        if smg_peek(own) != epoch:
            return -1
        smg_poke(own + S_USED, 1)
        return <int64_t>epoch

    cdef bint _put(self, const uint64_t *names, int64_t count, int64_t slot, int64_t rank, int shift, int64_t epoch) noexcept nogil:
        """Makes entries for the engine of an epoch. If it left meanwhile, they may have come behind `open`, and are taken back."""
        _put_all(&self.c, names, count, slot, rank, shift)
        smg_fence()
        if smg_peek(<uint64_t *>(self.c.slots + slot * SLOT_WORDS + S_EPOCH)) == <uint64_t>epoch:
            return True
        _remove_all(&self.c, names, count, slot, rank)
        return False

    def prompt(self, ids not None):
        """Takes token ids: a list or tuple, or a buffer of 32-bit integers (an array, or bytes of the machine's order), used where it is.

        OverflowError, TypeError for what is no id.
        """
        return prompt_of_ids(ids)

    def text_prompt(self, str text not None):
        """Takes a text, 4 bytes of its UTF-8 a unit, for engines that tokenize themselves. A text that is not UTF-8 has no beginning."""
        return prompt_of_text(text)

    def match(self, Prompt prompt not None, const int64_t[::1] slots, int64_t[::1] out):
        """Fills `out` with how many tokens (bytes, for text) of the prompt's beginning each slot's engine holds, at its best rank."""
        cdef Py_ssize_t i
        if out.shape[0] < slots.shape[0]:
            raise ValueError("out has no room for a number a slot")
        for i in range(slots.shape[0]):
            self._slot(slots[i])
        if slots.shape[0]:
            with nogil:
                _match(&self.c, &prompt.c, &slots[0], &out[0], slots.shape[0])

    def rank(self, Prompt prompt not None, int64_t slot):
        """Gives the data-parallel rank that holds most of a prompt; -1 when none does, none is known to, or the engine has but one."""
        cdef int64_t most, best = -1
        self._slot(slot)
        if _ranks(&self.c, slot) > 1 and _current(&self.c, slot) and slot < COLUMNS * GROUPS:
            with nogil:
                name_prompt(self.c.keys, &prompt.c, _step(&self.c, slot))
                best = _best_rank(&self.c, &prompt.c, slot, &most)
        return best

    def insert(self, Prompt prompt not None, int64_t slot, int64_t rank=-1, int64_t epoch=-1):
        """Predicts that an engine will hold the prompt; rank -1 = it is not known where, epoch -1 = whichever engine has the slot.

        False when the slot's engine is new and `open` has not run for it yet, or is not that of the epoch.
        """
        epoch = self._opened(slot, epoch)
        cdef bint made = False
        if rank < 0:
            rank = NO_RANK if _ranks(&self.c, slot) > 1 else 0
        if epoch >= 0:
            with nogil:
                name_prompt(self.c.keys, &prompt.c, _step(&self.c, slot))
                made = self._put(prompt.c.names, prompt.c.name_count, slot, rank, 0, epoch)
        return made

    def names(self, uint64_t start, ids not None, int64_t step):
        """Gives an array of 64-bit names: of what ends with each whole step of `ids` after the beginning `start`, 0 = the empty one.

        Those of ids after the 131072nd are left out.
        """
        cdef Prompt prompt = prompt_of_ids(ids)
        if start >= P61 or not STEP <= step <= 2 * MAX_BLOCK:
            raise ValueError("no name of a beginning, or no step")
        with nogil:
            prompt.c.name_count = name_units(self.c.keys, start, prompt.c.units, prompt.c.unit_count, step, prompt.c.names)
        return array("Q", (<char *>prompt.c.names)[:prompt.c.name_count * 8])

    def confirm(self, const uint64_t[::1] names, int64_t slot, int64_t rank=0, int64_t epoch=-1):
        """Takes an engine's word that it holds the blocks at whose end the beginnings with these names are. False as `insert`."""
        epoch = self._opened(slot, epoch)
        cdef bint made = epoch >= 0
        if made and names.shape[0]:
            with nogil:
                made = self._put(&names[0], names.shape[0], slot, rank, CONFIRMED, epoch)
        return made

    def remove(self, const uint64_t[::1] names, int64_t slot, int64_t rank=0):
        """Takes an engine's word that it holds them no more; predictions of the same blocks go too."""
        self._slot(slot)
        if names.shape[0]:
            with nogil:
                _remove_all(&self.c, &names[0], names.shape[0], slot, rank)

    def forget(self, int64_t slot, bint predicted=True, bint confirmed=True):
        """Takes every entry of a slot away, or one kind alone; gives their number. Reads the table, for milliseconds.

        Of a slot that never had any it reads nothing: reading takes memory for the whole table.
        """
        cdef uint64_t bits = (<uint64_t>predicted | <uint64_t>confirmed << CONFIRMED) << (slot % COLUMNS)
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
        smg_fence()  # who does not see this now has made its entries before they are looked for
        smg_poke(<uint64_t *>(at + S_BLOCK), 0)
        smg_poke(<uint64_t *>(at + S_RANKS), 0)
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

    def set_ranks(self, int64_t slot, int64_t ranks):
        """Takes how many data-parallel ranks an engine has, 256 at most. What was predicted while that seemed to be one is forgotten."""
        cdef uint64_t *at = <uint64_t *>(self._slot(slot) + S_RANKS)
        if not 0 <= ranks <= MOST_RANKS:
            raise ValueError("ranks must be in 0..256")
        if ranks > 1 and smg_peek(at) <= 1:
            smg_poke(at, <uint64_t>ranks)
            self.forget(slot, True, False)
        smg_poke(at, <uint64_t>ranks)

    def counts(self):
        """Gives (entries that there is room for, entries made, entries given up for others)."""
        return self.c.line_count * WAYS, smg_peek(self.c.header + H_STORED), smg_peek(self.c.header + H_EVICTED)
