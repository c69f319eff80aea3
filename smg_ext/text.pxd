"""Layout of what turns token ids into text and finds stop strings in it, for `smg_ext.stream`."""

from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef struct BufferC:
    uint8_t *data
    size_t size
    size_t capacity


cdef enum:
    PIECE_TEXT                  # a token's bytes are whole characters
    PIECE_BYTE                  # they are a byte of a character
    PIECE_NONE                  # the id has no token


cdef struct VocabularyC:
    uint32_t *offsets           # of token i: data[offsets[i]] up to data[offsets[i + 1]]
    uint8_t *data
    uint8_t *special
    uint8_t *kinds              # PIECE_* of each token; NULL where all tokens together are one UTF-8 text
    size_t count
    uint8_t strip               # character that the beginning of the text loses,
    uint32_t strips             # so often


cdef struct StopStateC:
    uint8_t byte
    int32_t child               # first child, 0 = none
    int32_t sibling             # next child of the same parent, 0 = none
    int32_t fail
    int32_t depth
    int32_t word                # index of the stop string that ends here, -1 = none


cdef struct StopsC:
    StopStateC *states
    int32_t count
    int32_t *lengths            # of each string, in bytes
    int32_t *begins             # where it stands in `strings`
    BufferC strings
    uint8_t starts[256]


cdef struct Utf8C:
    uint8_t held[4]
    uint8_t size


cdef struct DecoderC:
    Utf8C utf8
    BufferC run                 # byte tokens in a row; freed by the owner
    uint32_t stripped
    bint begun                  # nothing is stripped any more


cdef class Vocabulary:
    cdef VocabularyC c


cdef class StopStrings:
    cdef StopsC c


cdef int put(BufferC *buffer, const uint8_t *data, size_t size) noexcept nogil
cdef int put_json(BufferC *buffer, const uint8_t *text, size_t size) noexcept nogil
cdef int put_number(BufferC *buffer, long long value) noexcept nogil
cdef int decode_token(const VocabularyC *vocabulary, DecoderC *state, BufferC *out, uint32_t token_id) noexcept nogil
cdef int decode_finish(const VocabularyC *vocabulary, DecoderC *state, BufferC *out) noexcept nogil
cdef int utf8_feed(Utf8C *state, BufferC *out, const uint8_t *data, size_t size) noexcept nogil
cdef int utf8_finish(Utf8C *state, BufferC *out) noexcept nogil
cdef bint utf8_valid(const uint8_t *data, size_t size) noexcept nogil
cdef int stop_feed(const StopsC *stops, int32_t *state, BufferC *held, size_t old, bint armed, size_t *end) noexcept nogil
