# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The ids of words, one after the other: those that were seen are kept, in tables of fixed size.

In: words, as `bpe_splits` and `bpe_ascii` cut them. Out: their ids, from the tables or else from `bpe_merge`. Many threads may read and
write the tables at once: what is being written is passed over.

Most words of a text are short and few tokens, so those have a table of their own. A line of it is that of the cache and has two places of
four numbers each: the word's bytes (120 bits) and size (8), twice; then the first id (32), how many (2) and how often the place was written
(the rest); then two more ids. A hit takes one comparison of the whole and no loop. Words that come one
by one are looked up some at a time, so that their lines are on the way from memory together; those of a block are near enough to each
other for the processor to see to that.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from smg_ext.atomics cimport smg_peek, smg_poke, smg_replace
from smg_ext.bpe_ascii cimport BLOCK_BYTES
from smg_ext.bpe_merge cimport WAITING_MAX, CallC, TableC, WordC, make_room, merge_word, smg_hash

__all__: list[str] = []

cdef enum:
    SHORT_LINES = 1 << 14       # 1 MB
    SHORT_BYTES = 15
    SHORT_IDS = 3
    PLACE_WORDS = 4
    COUNT_SHIFT = 32
    SHORT_WRITING = 1 << 2      # above COUNT_SHIFT
    LONG_LINES = 1 << 13        # half a MB
    LINE_WORDS = 8
    LONG_BYTES = 32
    LONG_IDS = 6
    KEY_WORDS = 4
    ID_WORDS = 3
    LONG_WRITING = 1

cdef extern from *:
    """
    #include <stdatomic.h>
    #define SMG_WRITING ((uint64_t)1 << 34)
    /* What of the first and second eight bytes counts for each size. */
    static const uint64_t smg_kept[16][2] = {
    #define SMG_LOW(size) {((uint64_t)1 << 8 * (size)) - 1, 0}
    #define SMG_HIGH(size) {UINT64_MAX, ((uint64_t)1 << 8 * ((size) - 8)) - 1}
        SMG_LOW(0), SMG_LOW(1), SMG_LOW(2), SMG_LOW(3), SMG_LOW(4), SMG_LOW(5), SMG_LOW(6), SMG_LOW(7),
        SMG_HIGH(8), SMG_HIGH(9), SMG_HIGH(10), SMG_HIGH(11), SMG_HIGH(12), SMG_HIGH(13), SMG_HIGH(14), SMG_HIGH(15),
    };
    /* A short word's key. Sixteen bytes are read where there are as many before `end`. */
    static inline void smg_key(const uint8_t *word, size_t size, const uint8_t *end, uint64_t *low, uint64_t *high) {
        uint64_t first, second;
        if (__builtin_expect(end - word >= 16, 1)) {
            memcpy(&first, word, 8);
            memcpy(&second, word + 8, 8);
        } else {
            uint64_t parts[2] = {0, 0};
            memcpy(parts, word, size);
            first = parts[0];
            second = parts[1];
        }
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        first = __builtin_bswap64(first);
        second = __builtin_bswap64(second);
    #endif
        *low = first & smg_kept[size][0];
        *high = (second & smg_kept[size][1]) | (uint64_t)size << 56;
    }
    static inline uint64_t smg_key_hash(uint64_t low, uint64_t high) {
        return smg_mix(low ^ 0x9E3779B97F4A7C15u, high ^ 0xD6E8FEB86659FD93u);
    }
    static inline uint64_t smg_read(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
    /* Writes three ids and gives how many of them count, -1 where the word is not kept. */
    static inline int smg_recall(const uint64_t *line, uint64_t low, uint64_t high, uint32_t *out) {
        const uint64_t *place = line + 4 * (((smg_read(line) ^ low) | (smg_read(line + 1) ^ high)) != 0);
        uint64_t head = __atomic_load_n(place + 2, __ATOMIC_ACQUIRE);
        uint64_t differ = (smg_read(place) ^ low) | (smg_read(place + 1) ^ high);
        uint64_t others = smg_read(place + 3);
        atomic_thread_fence(memory_order_acquire);
        if (__builtin_expect((differ | (smg_read(place + 2) ^ head) | (head & SMG_WRITING)) != 0, 0))
            return -1;
        out[0] = (uint32_t)head;
        memcpy(out + 1, &others, 8);
        return (int)(head >> 32 & 3);
    }
    static inline uint64_t smg_part(const uint8_t *word, size_t size, int i) {  /* the last part overlaps the one before */
        uint64_t part;
        if (size < 8)
            return smg_load(word, size);
        memcpy(&part, (size_t)i * 8 + 8 <= size ? word + i * 8 : word + size - 8, 8);
        return part;
    }
    static inline void smg_fetch(const void *at) { __builtin_prefetch(at); }
    static inline void *smg_lines(size_t lines) {
        void *at = aligned_alloc(64, lines * 64);
        return at ? memset(at, 0, lines * 64) : at;
    }
    static inline int smg_first_bit(uint64_t bits) { return __builtin_ctzll(bits); }
    """
    void smg_key(const uint8_t *word, size_t size, const uint8_t *end, uint64_t *low, uint64_t *high) noexcept nogil
    uint64_t smg_key_hash(uint64_t low, uint64_t high) noexcept nogil
    int smg_recall(const uint64_t *line, uint64_t low, uint64_t high, uint32_t *out) noexcept nogil
    uint64_t smg_part(const uint8_t *word, size_t size, int i) noexcept nogil
    void smg_fetch(const void *at) noexcept nogil
    void *smg_lines(size_t lines) noexcept nogil
    int smg_first_bit(uint64_t bits) noexcept nogil


cdef int make_words(TableC *table) noexcept nogil:
    """Makes the tables; 1 without memory."""
    table.words = <uint64_t *>smg_lines(SHORT_LINES + LONG_LINES)
    return table.words == NULL


cdef inline uint64_t *_line(const TableC *table, uint64_t low, uint64_t high) noexcept nogil:
    return table.words + (smg_key_hash(low, high) & (SHORT_LINES - 1)) * LINE_WORDS


cdef inline int _room(CallC *call, size_t words) noexcept nogil:
    """Makes room for the ids of short words, and for those that are written without being counted."""
    cdef size_t need = SHORT_IDS * (words + 1)
    return call.count + need > call.room and make_room(call, need)


cdef inline void _take(const TableC *table, WordC *waiting, const uint8_t *word, size_t size, const uint8_t *end) noexcept nogil:
    waiting.at, waiting.size = word, size
    if size > SHORT_BYTES:
        waiting.line = NULL
        return
    smg_key(word, size, end, &waiting.low, &waiting.high)
    waiting.line = _line(table, waiting.low, waiting.high)
    smg_fetch(waiting.line)


cdef int add_word(const TableC *table, CallC *call, const uint8_t *word, size_t size, const uint8_t *end) noexcept nogil:
    """Takes a word of text that goes on to `end`. It stays where it is until `add_waiting` appended its ids; 1 without memory."""
    _take(table, &call.words[call.waiting], word, size, end)
    call.waiting += 1
    return add_waiting(table, call) if call.waiting == WAITING_MAX else 0


cdef const uint8_t *add_block(
    const TableC *table, CallC *call, const uint8_t *at, const uint8_t *end, uint64_t cuts
) noexcept nogil:
    """Appends the ids of the words that end at `cuts`, of which there is one, and gives where the last one does; NULL without memory."""
    cdef const uint8_t *base = at
    cdef const uint8_t *cut
    cdef size_t size
    cdef int count
    cdef uint64_t low
    cdef uint64_t high
    cdef uint32_t *out
    if (call.waiting and add_waiting(table, call)) or _room(call, BLOCK_BYTES):
        return NULL
    out = call.ids + call.count
    while cuts:
        cut = base + smg_first_bit(cuts)
        cuts &= cuts - 1
        size = <size_t>(cut - at)
        if size <= SHORT_BYTES:
            smg_key(at, size, end, &low, &high)
            count = smg_recall(_line(table, low, high), low, high, out)
            if count >= 0:
                out += count
                at = cut
                continue
        call.count = <size_t>(out - call.ids)
        _take(table, &call.words[0], at, size, end)
        if _add_other(table, call, &call.words[0]) or _room(call, BLOCK_BYTES):
            return NULL
        out = call.ids + call.count
        at = cut
    call.count = <size_t>(out - call.ids)
    return at


cdef int add_waiting(const TableC *table, CallC *call) noexcept nogil:
    """Appends the ids of the words that were taken."""
    cdef size_t i
    cdef int count
    cdef const WordC *word
    cdef uint32_t *out
    if _room(call, call.waiting):
        return 1
    out = call.ids + call.count
    for i in range(call.waiting):
        word = &call.words[i]
        if word.line != NULL:
            count = smg_recall(word.line, word.low, word.high, out)
            if count >= 0:
                out += count
                continue
        call.count = <size_t>(out - call.ids)
        if _add_other(table, call, word) or _room(call, call.waiting):
            return 1
        out = call.ids + call.count
    call.count = <size_t>(out - call.ids)
    call.waiting = 0
    return 0


cdef int _add_other(const TableC *table, CallC *call, const WordC *word) noexcept nogil:
    """Appends the ids of a word that is not in the table of short ones, and keeps it where there is place."""
    cdef uint64_t hashed = smg_hash(word.at, word.size)
    cdef uint64_t *line = table.words + (SHORT_LINES + (hashed & (LONG_LINES - 1))) * LINE_WORDS
    cdef size_t begin = call.count
    cdef size_t count
    if word.size <= LONG_BYTES and _recall_long(call, line, word.at, word.size):
        return 0
    if merge_word(table, call, word.at, word.size, hashed):
        return 1
    count = call.count - begin
    if word.line != NULL and count <= SHORT_IDS:
        _keep_short(word, call.ids + begin, count)
    elif word.size <= LONG_BYTES and count <= LONG_IDS:
        _keep_long(line, word, call.ids + begin, count)
    return 0


cdef void _keep_short(const WordC *word, const uint32_t *ids, size_t count) noexcept nogil:
    """Puts a word in the place that was written less often."""
    cdef uint64_t *place = word.line
    cdef uint64_t head = smg_peek(place + 2)
    cdef uint64_t other = smg_peek(place + PLACE_WORDS + 2)
    cdef uint64_t writes
    cdef uint64_t others
    cdef uint32_t content[SHORT_IDS]
    if other >> COUNT_SHIFT + 3 < head >> COUNT_SHIFT + 3:
        place, head = place + PLACE_WORDS, other
    writes = head >> COUNT_SHIFT & ~<uint64_t>3
    if writes & SHORT_WRITING or not smg_replace(place + 2, head, (writes | SHORT_WRITING) << COUNT_SHIFT):
        return
    memset(content, 0, sizeof(content))
    memcpy(content, ids, count * sizeof(uint32_t))
    memcpy(&others, content + 1, sizeof(others))
    smg_poke(place, word.low)
    smg_poke(place + 1, word.high)
    smg_poke(place + 3, others)
    smg_poke(place + 2, (writes + 2 * SHORT_WRITING | count) << COUNT_SHIFT | content[0])


cdef bint _recall_long(CallC *call, uint64_t *line, const uint8_t *word, size_t size) noexcept nogil:
    """Appends the ids of a word that is kept. A line is: count of writes 32, bytes 16, ids 16; parts of the word; its ids."""
    cdef uint64_t head = smg_peek(line)
    cdef uint64_t ids[ID_WORDS]
    cdef size_t count = head & 0xFFFF
    cdef int i
    if head >> 32 & LONG_WRITING or (head >> 16 & 0xFFFF) != size:
        return False
    for i in range(<int>(size + 7) // 8):
        if smg_peek(line + 1 + i) != smg_part(word, size, i):
            return False
    if call.count + LONG_IDS > call.room and make_room(call, LONG_IDS):
        return False
    for i in range(<int>(count + 1) // 2):
        ids[i] = smg_peek(line + 1 + KEY_WORDS + i)
    if smg_peek(line) != head:
        return False
    memcpy(call.ids + call.count, ids, count * sizeof(uint32_t))
    call.count += count
    return True


cdef void _keep_long(uint64_t *line, const WordC *word, const uint32_t *ids, size_t count) noexcept nogil:
    cdef uint64_t head = smg_peek(line)
    cdef uint64_t writes = head >> 32
    cdef uint64_t content[ID_WORDS]
    cdef int i
    if writes & LONG_WRITING or not smg_replace(line, head, (writes | LONG_WRITING) << 32):
        return
    for i in range(<int>(word.size + 7) // 8):
        smg_poke(line + 1 + i, smg_part(word.at, word.size, i))
    memset(content, 0, sizeof(content))
    memcpy(content, ids, count * sizeof(uint32_t))
    for i in range(ID_WORDS):
        smg_poke(line + 1 + KEY_WORDS + i, content[i])
    smg_poke(line, (writes + 2) << 32 | word.size << 16 | count)
