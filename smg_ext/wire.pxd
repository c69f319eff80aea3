"""Layout of a decoded Generate message, for `smg_ext.stream`."""

from libc.stdint cimport uint8_t, uint32_t


cdef struct DeltaC:
    uint8_t body                # the message that was entered, 0 = none
    uint32_t choice
    uint32_t prompt_tokens
    uint32_t completion_tokens
    uint32_t cached_tokens
    uint32_t reasoning_tokens
    bint complete               # the closing message of its choice
    uint32_t *ids               # owned by whoever owns the DeltaC, kept between messages
    size_t count
    size_t capacity
    const uint8_t *finish       # finish reason; points into the message
    size_t finish_size
    int matched                 # 0 nothing, 1 matched_id, 2 matched_text
    uint32_t matched_id
    const uint8_t *matched_text
    size_t matched_size


cdef struct FieldC:
    uint8_t action
    uint8_t sub                 # message to enter


cdef struct MessageC:
    FieldC fields[64]           # by field number; higher numbers are skipped


cdef class FieldTable:
    cdef MessageC *messages
    cdef size_t count


cdef int decode(const MessageC *messages, DeltaC *delta, const uint8_t *data, size_t size) noexcept nogil
