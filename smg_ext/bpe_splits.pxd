"""Layout of a program that cuts text into words, for `bpe`."""

from libc.stdint cimport uint8_t, uint32_t

from smg_ext.bpe_ascii cimport AsciiC
from smg_ext.bpe_characters cimport Characters, CharactersC

cdef enum:
    OPS_MAX = 16
    STEPS_MAX = 4


cdef struct OpC:
    int kind
    uint32_t prefix             # kinds of a character that may stand before
    uint32_t body               # kinds of what is repeated
    uint32_t lower              # of cased words: kinds that follow the body
    uint32_t tail               # kinds that may follow
    uint32_t most               # characters of the body at most, 0 = any number
    bint ending                 # a contraction may follow
    bint folded                 # a contraction's letters may be large


cdef struct StepC:
    OpC ops[OPS_MAX]
    int count
    uint32_t starts[32]         # of each kind of character: which ops can begin with it


cdef struct SplitsC:
    const CharactersC *characters
    StepC steps[STEPS_MAX]
    int count
    AsciiC ascii


cdef class Splits:
    cdef SplitsC c
    cdef readonly Characters characters


cdef void start_words(const uint8_t **bounds, const uint8_t *at) noexcept nogil
cdef const uint8_t *next_word(const SplitsC *splits, const uint8_t **bounds, const uint8_t *at, const uint8_t *end) noexcept nogil
