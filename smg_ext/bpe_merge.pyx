# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""A vocabulary of byte pairs in few large blocks, and the merging of one word.

In: tokens and merges, as `bpe_vocabulary` reads them; then words, as `bpe_splits` cuts them. Out: ids, as the reference library's BPE
model gives them: the pair of the least rank is merged first, of several the leftmost. A word of up to SHORT bytes is merged by looking
at all its pairs, a longer one with a heap, so that no word costs more than n log n. `bpe_words` keeps what comes out.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from smg_ext.atomics cimport smg_scale

__all__: list[str] = []

cdef enum:
    SHORT = 40                  # above, a heap costs less

cdef extern from *:
    """
    static inline uint64_t smg_pair_hash(uint64_t pair) { return smg_mix(pair ^ 0x9E3779B97F4A7C15u, 0xD6E8FEB86659FD93u); }
    static inline uint8_t smg_peek_byte(const uint8_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
    static inline void smg_poke_byte(uint8_t *at, uint8_t to) { __atomic_store_n(at, to, __ATOMIC_RELAXED); }
    """
    uint64_t smg_pair_hash(uint64_t pair) noexcept nogil
    uint8_t smg_peek_byte(const uint8_t *at) noexcept nogil
    void smg_poke_byte(uint8_t *at, uint8_t to) noexcept nogil

cdef uint64_t EMPTY = 0xFFFFFFFFFFFFFFFF
cdef uint32_t NONE = 0xFFFFFFFF


cdef int add_token(TableC *table, uint32_t token_id, const uint8_t *content, uint32_t size, bint odd) noexcept nogil:
    """Keeps a token: 0; 1 without memory; -1 when the id is too large or taken. Those that are not odd are found once all are there."""
    if token_id >= IDS_MAX or size >= ODD or table.arena_size + size >= NONE:
        return -1
    if token_id >= table.room and _more_ids(table, token_id):
        return 1
    if table.starts[token_id] != NONE:
        return -1
    if table.arena_size + size > table.arena_room and _more_arena(table, size):
        return 1
    memcpy(table.arena + table.arena_size, content, size)
    table.starts[token_id] = <uint32_t>table.arena_size
    table.lengths[token_id] = size | (ODD if odd else 0)
    table.arena_size += size
    if token_id >= table.count:
        table.count = token_id + 1
    return 0


cdef int _more_ids(TableC *table, uint32_t token_id) noexcept nogil:
    cdef uint32_t room = table.room * 2 if table.room * 2 > token_id else token_id + 1024
    cdef uint32_t *starts = <uint32_t *>realloc(table.starts, room * sizeof(uint32_t))
    if starts == NULL:
        return 1
    table.starts = starts
    cdef uint32_t *lengths = <uint32_t *>realloc(table.lengths, room * sizeof(uint32_t))
    if lengths == NULL:
        return 1
    table.lengths = lengths
    memset(starts + table.room, 0xFF, (room - table.room) * sizeof(uint32_t))
    memset(lengths + table.room, 0xFF, (room - table.room) * sizeof(uint32_t))
    table.room = room
    return 0


cdef int _more_arena(TableC *table, uint32_t size) noexcept nogil:
    cdef size_t room = (table.arena_room + size) * 3 // 2 + 4096
    cdef uint8_t *arena = <uint8_t *>realloc(table.arena, room)
    if arena == NULL:
        return 1
    table.arena, table.arena_room = arena, room
    return 0


cdef int index_tokens(TableC *table) noexcept nogil:
    """Makes what finds tokens by their bytes. -1 when two are the same, or a byte has none."""
    cdef uint32_t i
    cdef uint64_t hashed
    cdef uint64_t *slot
    cdef const uint8_t *content
    table.name_slots = <size_t>table.count * 5 // 3 + 16
    table.names = <uint64_t *>calloc(table.name_slots, sizeof(uint64_t))
    table.whole = <uint8_t *>calloc(table.count + 1, 1)
    if table.names == NULL or table.whole == NULL:
        return 1
    for i in range(table.count):
        if table.starts[i] == NONE or table.lengths[i] & ODD or table.lengths[i] == 0:
            continue
        content = table.arena + table.starts[i]
        if find_token(table, content, table.lengths[i]) != NONE:
            return -1
        if table.lengths[i] == 1:
            table.bytes[content[0]] = i
        hashed = smg_hash(content, table.lengths[i])
        slot = table.names + smg_scale(hashed, table.name_slots)
        while slot[0]:
            slot += 1
            if slot == table.names + table.name_slots:
                slot = table.names
        slot[0] = hashed << 32 | (i + 1)
    for i in range(256):
        if table.bytes[i] == NONE and not table.drops:
            return -1
    return 0


cdef uint32_t find_token(const TableC *table, const uint8_t *content, size_t size) noexcept nogil:
    return _find(table, content, size, smg_hash(content, size)) if size else NONE


cdef inline uint32_t _find(const TableC *table, const uint8_t *content, size_t size, uint64_t hashed) noexcept nogil:
    cdef const uint64_t *slot = table.names + smg_scale(hashed, table.name_slots)
    cdef uint32_t half = <uint32_t>hashed
    cdef uint32_t token_id
    while slot[0]:
        if <uint32_t>(slot[0] >> 32) == half:
            token_id = <uint32_t>slot[0] - 1
            if table.lengths[token_id] == size and memcmp(table.arena + table.starts[token_id], content, size) == 0:
                return token_id
        slot += 1
        if slot == table.names + table.name_slots:
            slot = table.names
    return NONE


cdef int make_merges(TableC *table, size_t count) noexcept nogil:
    """Makes room for `count` merges."""
    if count > RANKS_MAX:
        return -1
    table.merge_slots = count * 5 // 3 + 16
    table.merges = <uint64_t *>malloc(table.merge_slots * sizeof(uint64_t))
    table.made = <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
    if table.merges == NULL or table.made == NULL:
        return 1
    memset(table.merges, 0xFF, table.merge_slots * sizeof(uint64_t))
    return 0


cdef int add_merge(TableC *table, uint32_t left, uint32_t right, uint32_t becomes) noexcept nogil:
    """Keeps the merge of the next rank; of two of one pair the last counts, as in the library."""
    cdef uint64_t pair = <uint64_t>left << 20 | right
    cdef uint64_t *slot = table.merges + smg_scale(smg_pair_hash(pair), table.merge_slots)
    while slot[0] != EMPTY and slot[0] >> 24 != pair:
        slot += 1
        if slot == table.merges + table.merge_slots:
            slot = table.merges
    slot[0] = pair << 24 | table.ranks
    table.made[table.ranks] = becomes
    table.ranks += 1
    return 0


cdef inline uint32_t _rank(const TableC *table, uint32_t left, uint32_t right) noexcept nogil:
    """The rank of a pair, NONE when it is not merged."""
    cdef uint64_t pair = <uint64_t>left << 20 | right
    cdef const uint64_t *slot = table.merges + smg_scale(smg_pair_hash(pair), table.merge_slots)
    while slot[0] != EMPTY:
        if slot[0] >> 24 == pair:
            return slot[0] & 0xFFFFFF
        slot += 1
        if slot == table.merges + table.merge_slots:
            slot = table.merges
    return NONE


cdef int make_room(CallC *call, size_t count) noexcept nogil:
    cdef size_t room = (call.room + count) * 2 + 64
    cdef uint32_t *ids = <uint32_t *>realloc(call.ids, room * sizeof(uint32_t))
    if ids == NULL:
        return 1
    call.ids, call.room = ids, room
    return 0


cdef int add_id(CallC *call, uint32_t token_id) noexcept nogil:
    if call.count == call.room and make_room(call, 1):
        return 1
    call.ids[call.count] = token_id
    call.count += 1
    return 0


cdef int add_ids(CallC *call, const uint32_t *ids, size_t count) noexcept nogil:
    if call.count + count > call.room and make_room(call, count):
        return 1
    if count:
        memcpy(call.ids + call.count, ids, count * sizeof(uint32_t))
    call.count += count
    return 0


cdef int merge_word(const TableC *table, CallC *call, const uint8_t *word, size_t size, uint64_t hashed) noexcept nogil:
    """Appends the ids of a word, whose `smg_hash` is known; 1 without memory."""
    cdef uint32_t token_id
    cdef size_t begin = call.count
    token_id = _find(table, word, size, hashed)
    if token_id != NONE and (table.whole_first or smg_peek_byte(table.whole + token_id) == 1):
        if add_id(call, token_id):
            return 1
    else:
        if _merge_short(table, call, word, size) if size <= SHORT else _merge_long(table, call, word, size):
            return 1
        if token_id != NONE and call.count - begin == 1 and call.ids[begin] == token_id:
            smg_poke_byte(table.whole + token_id, 1)
    return 0


cdef inline size_t _known_bytes(const TableC *table, uint32_t *ids, const uint8_t *word, size_t size) noexcept nogil:
    """The tokens of a word's bytes, without those that have none."""
    cdef size_t count = 0
    cdef size_t i
    for i in range(size):
        ids[count] = table.bytes[word[i]]
        count += ids[count] != NONE
    return count


cdef int _merge_short(const TableC *table, CallC *call, const uint8_t *word, size_t size) noexcept nogil:
    cdef uint32_t ids[SHORT]
    cdef uint32_t ranks[SHORT]
    cdef size_t count = _known_bytes(table, ids, word, size)
    cdef size_t i
    cdef size_t best
    for i in range(1, count):
        ranks[i - 1] = _rank(table, ids[i - 1], ids[i])
    while count > 1:
        best = 0
        for i in range(1, count - 1):
            if ranks[i] < ranks[best]:
                best = i
        call.steps += count
        if ranks[best] == NONE:
            break
        ids[best] = table.made[ranks[best]]
        count -= 1
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof(uint32_t))
        memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof(uint32_t))
        if best + 1 < count:
            ranks[best] = _rank(table, ids[best], ids[best + 1])
        if best:
            ranks[best - 1] = _rank(table, ids[best - 1], ids[best])
    return add_ids(call, ids, count)


cdef int _merge_long(const TableC *table, CallC *call, const uint8_t *word, size_t size) noexcept nogil:
    """With a heap of (rank, place) and a list of what is left; an entry of the heap that does not hold any more is passed over."""
    cdef size_t need = size * (3 * sizeof(uint32_t) + 2 * sizeof(uint64_t)) + 64
    cdef uint32_t *larger
    if size >= NONE:
        return 1
    if need > call.scratch_room:
        larger = <uint32_t *>realloc(call.scratch, need)
        if larger == NULL:
            return 1
        call.scratch, call.scratch_room = larger, need
    cdef uint64_t *heap = <uint64_t *>call.scratch
    cdef uint32_t *ids = <uint32_t *>(heap + 2 * size)
    cdef uint32_t *next = ids + size
    cdef uint32_t *previous = next + size
    cdef size_t pending = 0
    cdef size_t i
    size = _known_bytes(table, ids, word, size)
    for i in range(size):
        next[i] = <uint32_t>(i + 1)
        previous[i] = <uint32_t>i - 1
        if i:
            pending = _push(table, call, heap, pending, ids, i - 1, i)
    _merge_all(table, call, heap, pending, ids, next, previous, size)
    i = 0
    while i < size:
        if add_id(call, ids[i]):
            return 1
        i = next[i]
    return 0


cdef void _merge_all(
    const TableC *table, CallC *call, uint64_t *heap, size_t pending, uint32_t *ids, uint32_t *next, uint32_t *previous, size_t size
) noexcept nogil:
    cdef uint64_t top
    cdef size_t i
    cdef size_t right
    cdef uint32_t rank
    while pending:
        top = heap[0]
        pending -= 1
        _sink(call, heap, pending, heap[pending])
        i = <uint32_t>top
        rank = <uint32_t>(top >> 32)
        right = next[i]
        if ids[i] == NONE or right >= size or _rank(table, ids[i], ids[right]) != rank:
            continue
        ids[i] = table.made[rank]
        ids[right] = NONE
        next[i] = next[right]
        if next[i] < size:
            previous[next[i]] = <uint32_t>i
            pending = _push(table, call, heap, pending, ids, i, next[i])
        if i:
            pending = _push(table, call, heap, pending, ids, previous[i], i)


cdef inline size_t _push(
    const TableC *table, CallC *call, uint64_t *heap, size_t pending, const uint32_t *ids, size_t left, size_t right
) noexcept nogil:
    """Puts a pair on the heap if it can be merged; gives the heap's new size. There is room: each merge takes one pair and brings two."""
    cdef uint32_t rank = _rank(table, ids[left], ids[right])
    cdef uint64_t entry = <uint64_t>rank << 32 | left
    cdef size_t at = pending
    cdef size_t parent
    call.steps += 1
    if rank == NONE:
        return pending
    while at:
        parent = (at - 1) // 2
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
        call.steps += 1
    heap[at] = entry
    return pending + 1


cdef inline void _sink(CallC *call, uint64_t *heap, size_t pending, uint64_t entry) noexcept nogil:
    """Lets an entry sink from the top of a heap of `pending`."""
    cdef size_t at = 0
    cdef size_t child
    while True:
        child = 2 * at + 1
        call.steps += 1
        if child >= pending:
            break
        if child + 1 < pending and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry
