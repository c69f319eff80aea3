"""Kinds of characters, looked up in valid UTF-8, for `bpe_splits` and `bpe`."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef enum:
    PAGES = 0x1100
    KIND_BITS = 0x1F
    # the numbers of smg.tokenizer.characters.Kind
    UPPER = 1 << 1
    LOWER = 1 << 2
    LETTER = 1 << 3
    MARK = 1 << 4
    NUMBER = 1 << 5
    PUNCTUATION = 1 << 6
    SYMBOL = 1 << 7
    SPACE = 1 << 8
    NEWLINE = 1 << 9
    BLANK = 1 << 10
    APOSTROPHE = 1 << 15
    SLASH = 1 << 16
    ANY_SPACE = SPACE | NEWLINE | BLANK


cdef struct CharactersC:
    uint8_t ascii[128]
    uint16_t pages[PAGES]       # of each 256 code points: which page of `entries`
    uint8_t *entries


cdef class Characters:
    cdef CharactersC c


cdef inline size_t width_of(uint8_t lead) noexcept nogil:
    """Bytes of the character that begins with `lead`."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


cdef inline uint32_t code_at(const uint8_t *at, size_t width) noexcept nogil:
    if width == 1:
        return at[0]
    if width == 2:
        return (at[0] & 0x1F) << 6 | at[1] & 0x3F
    if width == 3:
        return (at[0] & 0x0F) << 12 | (at[1] & 0x3F) << 6 | at[2] & 0x3F
    return (at[0] & 0x07) << 18 | (at[1] & 0x3F) << 12 | (at[2] & 0x3F) << 6 | at[3] & 0x3F


cdef inline uint8_t entry_of(const CharactersC *table, uint32_t code) noexcept nogil:
    return table.entries[<size_t>table.pages[code >> 8] << 8 | code & 0xFF]


cdef inline uint8_t entry_at(const CharactersC *table, const uint8_t *at, size_t *width) noexcept nogil:
    """The entry of the character at `at`, and its bytes."""
    if at[0] < 0x80:
        width[0] = 1
        return table.ascii[at[0]]
    width[0] = width_of(at[0])
    return entry_of(table, code_at(at, width[0]))


cdef inline uint32_t kind_at(const CharactersC *table, const uint8_t *at, size_t *width) noexcept nogil:
    """The kind of the character at `at` as one bit, and its bytes."""
    return <uint32_t>1 << (entry_at(table, at, width) & KIND_BITS)
