"""Layout of the rule by which blocks of ASCII are cut into words, for `bpe_splits` and `bpe`."""

from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    BLOCK_BYTES = 64


cdef struct AsciiC:
    bint known                  # False: there is no such rule
    bint signs                  # a sign may begin a word of letters
    bint spaces                 # any space but a line's end may, not just a blank
    bint cased                  # a large letter behind a small one begins a word
    int digits                  # in a word, 1 or 3; 0 = any number, which a blank may begin unless they are cut out
    bint apart                  # digits are cut out before all else
    bint lines                  # spaces up to the last line's end are a word
    bint tail                   # lines' ends that follow signs belong to them
    bint slashes                # and slashes that follow those
    int contraction             # the numbers of `bpe_ascii.Contraction`
    bint folded                 # a contraction's letters may be large


cdef class Ascii:
    cdef AsciiC c


cdef uint64_t cut_block(const AsciiC *rule, const uint8_t *at, size_t size) noexcept nogil


cdef inline const uint8_t *contraction(const uint8_t *at, const uint8_t *end, bint folded) noexcept nogil:
    """The end of 's, 't, 're, 've, 'm, 'll or 'd at `at`; NULL when none is there."""
    cdef uint8_t first
    cdef uint8_t second
    cdef uint8_t fold = 0x20 if folded else 0
    if end - at < 2 or at[0] != 0x27:
        return NULL
    first = at[1] | fold
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:
        return at + 2
    if end - at < 3:
        return NULL
    if folded and at[1] == 0xC5 and at[2] == 0xBF:  # the long s, which is an s without its case
        return at + 3
    second = at[2] | fold
    if ((first == 0x72 or first == 0x76) and second == 0x65) or (first == 0x6C and second == 0x6C):
        return at + 3
    return NULL
