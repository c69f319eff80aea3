# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Cuts ASCII into words 64 bytes at once: what `bpe_splits` does one character after the other, for the patterns of most vocabularies.

In: a rule, which `smg.tokenizer.blocks` makes of a program of splits, and text that begins at a word. Out: a bit for each place at which a
word begins. Of each class of characters a mask of 64 bits is made, and the places follow from the masks by shifts and sums, without a
branch that would have to be guessed. What depends on a character that is not seen (behind the block, not of ASCII, or a control
character) is left out; then the block's last word is where the next one begins.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memset

__all__ = ["Ascii"]

cdef enum Contraction:
    NEVER
    ALONE                       # one that begins a word is a word
    ENDING                      # one that follows letters belongs to them

CONTRACTIONS = {"": NEVER, "alone": ALONE, "ending": ENDING}

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    typedef uint8_t smg_sixteen __attribute__((vector_size(16)));
    typedef struct { uint64_t letters, large, digits, blanks, ends, spaces, strange, quotes, slashes; } smg_classes;
    static inline uint32_t smg_bits(smg_sixteen found) {  /* one of each byte, all of whose bits are the same */
    #if defined(__SSE2__)
        typedef char smg_chars __attribute__((vector_size(16)));
        return (uint32_t)__builtin_ia32_pmovmskb128((smg_chars)found);
    #elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        uint64_t half[2];
        memcpy(half, &found, 16);
        half[0] = (half[0] & 0x0101010101010101u) * 0x0102040810204080u >> 56;
        half[1] = (half[1] & 0x0101010101010101u) * 0x0102040810204080u >> 56;
        return (uint32_t)(half[0] | half[1] << 8);
    #else
        uint32_t bits = 0;
        for (int i = 0; i < 16; i++)
            bits |= (uint32_t)(found[i] & 1) << i;
        return bits;
    #endif
    }
    #define SMG_IS(bytes, byte) ((smg_sixteen)((bytes) == (uint8_t)(byte)))
    #define SMG_FROM(bytes, first, count) ((smg_sixteen)((bytes) - (uint8_t)(first) < (uint8_t)(count)))
    #define SMG_LETTER(bytes) SMG_FROM((bytes) | 0x20, 'a', 26)
    #define SMG_LARGE(bytes) SMG_FROM(bytes, 'A', 26)
    #define SMG_DIGIT(bytes) SMG_FROM(bytes, '0', 10)
    #define SMG_BLANK(bytes) SMG_IS(bytes, ' ')
    #define SMG_END(bytes) (SMG_IS(bytes, '\\n') | SMG_IS(bytes, '\\r'))
    #define SMG_SPACE(bytes) (SMG_FROM(bytes, '\\t', 5) | SMG_BLANK(bytes))
    #define SMG_STRANGE(bytes) (~(SMG_FROM(bytes, '!', 94) | SMG_SPACE(bytes)))
    #define SMG_QUOTE(bytes) SMG_IS(bytes, '\\'')
    #define SMG_SLASH(bytes) SMG_IS(bytes, '/')
    #define SMG_ALL(test) ((uint64_t)(smg_bits(test(b[2])) | smg_bits(test(b[3])) << 16) << 32 \
                           | (smg_bits(test(b[0])) | smg_bits(test(b[1])) << 16))
    /* `more`: large letters and slashes too. */
    static inline void smg_classify(const uint8_t *at, smg_classes *out, int more) {
        smg_sixteen b[4], any;
        memcpy(b, at, 64);
        any = SMG_STRANGE(b[0]) | SMG_STRANGE(b[1]) | SMG_STRANGE(b[2]) | SMG_STRANGE(b[3]);
        out->strange = smg_bits(any) ? SMG_ALL(SMG_STRANGE) : 0;
        out->letters = SMG_ALL(SMG_LETTER);
        out->digits = SMG_ALL(SMG_DIGIT);
        out->blanks = SMG_ALL(SMG_BLANK);
        out->ends = SMG_ALL(SMG_END);
        out->spaces = SMG_ALL(SMG_SPACE);
        out->quotes = SMG_ALL(SMG_QUOTE);
        out->large = more ? SMG_ALL(SMG_LARGE) : 0;
        out->slashes = more ? SMG_ALL(SMG_SLASH) : 0;
    }
    static inline int smg_first_bit(uint64_t bits) { return __builtin_ctzll(bits); }
    static inline int smg_last_bit(uint64_t bits) { return 63 - __builtin_clzll(bits); }
    """
    ctypedef struct ClassesC "smg_classes":
        uint64_t letters
        uint64_t large
        uint64_t digits
        uint64_t blanks
        uint64_t ends
        uint64_t spaces
        uint64_t strange
        uint64_t quotes
        uint64_t slashes
    void smg_classify(const uint8_t *at, ClassesC *out, bint more) noexcept nogil
    int smg_first_bit(uint64_t bits) noexcept nogil
    int smg_last_bit(uint64_t bits) noexcept nogil

cdef uint64_t ALL = 0xFFFFFFFFFFFFFFFF


cdef class Ascii:
    """A rule; what its parts mean is said in `AsciiC`."""

    def __cinit__(
        self, *, bint signs, bint spaces, bint cased, int digits, bint apart, bint lines, bint tail, bint slashes,
        str contraction, bint folded,
    ):
        self.c = AsciiC(
            True, signs, spaces, cased, digits, apart, lines, tail, slashes, CONTRACTIONS[contraction], folded
        )

    def cuts(self, const unsigned char[::1] data):
        """Gives the places of the first block at which words begin, but the first, and the end where it is seen (for tests)."""
        cdef uint64_t found = cut_block(&self.c, &data[0], <size_t>data.shape[0]) if data.shape[0] else 0
        return [i for i in range(BLOCK_BYTES) if found >> i & 1]


cdef uint64_t cut_block(const AsciiC *rule, const uint8_t *at, size_t size) noexcept nogil:
    """Where words begin in the next bytes of text, in whose first one does; the text's end too, where it is within the block."""
    cdef uint8_t copy[BLOCK_BYTES]
    cdef ClassesC found
    cdef size_t seen
    cdef uint64_t strange
    if size < BLOCK_BYTES:
        memset(copy, 0, BLOCK_BYTES)
        memcpy(copy, at, size)
        at = copy
    smg_classify(at, &found, rule.cased)
    strange = found.strange
    if rule.slashes:
        strange |= found.slashes & found.ends << 1
    seen = <size_t>smg_first_bit(strange) if strange else BLOCK_BYTES
    return _cuts(rule, &found, at, seen, seen == size) if seen else 0


cdef inline uint64_t _cuts(const AsciiC *rule, const ClassesC *found, const uint8_t *at, size_t seen, bint whole) noexcept nogil:
    """`seen`: bytes that count; `whole`: behind them the text ends."""
    cdef uint64_t valid = ALL if seen == BLOCK_BYTES else (<uint64_t>1 << seen) - 1
    cdef uint64_t letters = found.letters & valid
    cdef uint64_t digits = found.digits & valid
    cdef uint64_t spaces = found.spaces & valid
    cdef uint64_t signs = valid & ~(letters | digits | spaces)
    cdef uint64_t begun = signs & ~(signs << 1 | found.blanks << 1)
    cdef uint64_t sure = valid
    cdef uint64_t other = valid & ~spaces
    cdef uint64_t prefix = spaces & ~found.ends if rule.spaces else found.blanks
    cdef uint64_t starts
    cdef uint64_t quotes
    if rule.signs:
        prefix |= begun
    starts = begun | letters & ~(letters << 1 | prefix << 1) | _digit_words(rule, digits, found.blanks)
    if rule.cased:
        starts |= found.large & letters & (letters & ~found.large) << 1
    starts |= _space_words(rule, spaces, found.ends & valid, signs, other & ~digits if rule.apart else other)
    if not whole and spaces >> (seen - 1) & 1:
        sure = (<uint64_t>2 << (smg_last_bit(other) + 1 if other else 0)) - 1
    if found.quotes & valid and rule.contraction != NEVER:
        quotes = found.quotes & valid & (begun if rule.contraction == ALONE else letters << 1)
        starts = _contracted(rule, quotes, starts, at, seen, whole, &sure)
    return (starts & sure & valid & ~<uint64_t>1) | (<uint64_t>1 << seen if whole and seen < BLOCK_BYTES else 0)


cdef inline uint64_t _digit_words(const AsciiC *rule, uint64_t digits, uint64_t blanks) noexcept nogil:
    cdef uint64_t starts
    cdef uint64_t more
    if rule.digits == 1:
        return digits
    starts = digits & ~(digits << 1)
    if rule.digits:
        more = starts
        while more:
            more = more << 3 & digits & digits << 1 & digits << 2
            starts |= more
    elif not rule.apart:
        starts &= ~(blanks << 1)
    return starts


cdef inline uint64_t _space_words(const AsciiC *rule, uint64_t spaces, uint64_t ends, uint64_t signs, uint64_t other) noexcept nogil:
    """`other`: characters before which the last of several spaces is a word's beginning."""
    cdef uint64_t starts = spaces & ~(spaces << 1)
    cdef uint64_t plain = spaces & ~ends
    cdef uint64_t tails
    cdef uint64_t behind
    cdef uint64_t inner
    if not rule.lines:
        return starts | spaces & other >> 1
    if rule.tail:
        tails = ends & signs << 1
        starts = starts & ~tails | (ends + tails) & plain
    behind = plain & ends << 1
    inner = (plain + behind) & ends  # spaces behind a line's end belong to the word when another follows
    while inner:
        behind &= ~(<uint64_t>1 << smg_last_bit(behind & ((inner & -inner) - 1)))
        inner &= inner - 1
    return starts | behind | plain & other >> 1


cdef uint64_t _contracted(
    const AsciiC *rule, uint64_t quotes, uint64_t starts, const uint8_t *at, size_t seen, bint whole, uint64_t *sure
) noexcept nogil:
    """Starts with contractions seen; of the `quotes` one that may begin what is not seen whole makes what follows unsure."""
    cdef size_t place
    cdef size_t size
    cdef size_t done = 0
    cdef const uint8_t *end
    while quotes:
        place = <size_t>smg_first_bit(quotes)
        quotes &= quotes - 1
        if place + 3 > seen and not whole:
            sure[0] &= (<uint64_t>(2 if rule.contraction == ALONE else 1) << place) - 1
            break
        if rule.contraction == ENDING and place == done:
            continue
        end = contraction(at + place, at + seen, rule.folded)
        if end == NULL:
            continue
        size = <size_t>(end - at) - place
        done = place + size
        starts &= ~(((<uint64_t>1 << size) - 1) << place)
        if rule.contraction == ALONE:
            starts |= <uint64_t>1 << place
        if done < BLOCK_BYTES:
            starts |= <uint64_t>1 << done
    return starts
