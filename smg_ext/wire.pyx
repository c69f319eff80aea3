# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Protobuf decoding of Generate messages, driven by field tables: bytes in, one `DeltaC` out.

The tables are made from the .proto descriptors (`smg.engine.fields`), so that a new field needs no change here: what a table does not name
is skipped. Wire format as in protobuf.dev/programming-guides/encoding. It accepts what protobuf accepts and gives the same values; what is
cut short or no wire format at all is an error, inside skipped messages excepted, which it does not look into.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from smg_ext.text cimport utf8_valid

__all__ = ["ACTIONS", "FieldTable", "decode_message"]

cdef enum:
    SKIP = 0
    ENTER = 1
    ENTER_COMPLETE = 2
    IDS = 3
    PROMPT_TOKENS = 4
    COMPLETION_TOKENS = 5
    CACHED_TOKENS = 6
    REASONING_TOKENS = 7
    CHOICE = 8
    FINISH = 9
    MATCHED_ID = 10
    MATCHED_TEXT = 11
    MAX_DEPTH = 100             # as protobuf's own limit
    MAX_SIZE = 0x7FFFFFFF       # likewise
    FIELDS = 64

ACTIONS = (
    "skip", "enter", "enter_complete", "ids", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "choice",
    "finish", "matched_id", "matched_text",
)


cdef class FieldTable:
    """One protocol's messages. `messages[i]` maps a field number to (action, index of the message to enter, or 0)."""

    def __cinit__(self, list messages not None):
        cdef size_t i
        self.count = len(messages)
        self.messages = <MessageC *>calloc(self.count, sizeof(MessageC))
        if self.messages == NULL:
            raise MemoryError()
        if self.count > 255:
            raise ValueError("too many messages")
        for i in range(self.count):
            for number, (action, sub) in messages[i].items():
                if not 0 < number < FIELDS or not 0 <= sub < len(messages):
                    raise ValueError(f"field {number} -> {sub} is outside the table")
                if action.startswith("enter") and (i or not sub):
                    raise ValueError("only the first message may enter others")
                self.messages[i].fields[<int>number] = FieldC(ACTIONS.index(action), <uint8_t>sub)

    def __dealloc__(self):
        free(self.messages)


def decode_message(FieldTable table not None, const unsigned char[::1] data):
    """Gives what one message says as a dict (for tests: the plane decodes without Python objects). ValueError when it is malformed."""
    cdef DeltaC delta
    cdef int failed
    cdef size_t i
    clear(&delta)
    delta.ids = NULL
    delta.capacity = 0
    with nogil:
        failed = decode(table.messages, &delta, &data[0] if data.shape[0] else NULL, <size_t>data.shape[0])
    try:
        if failed:
            raise ValueError("malformed message")
        return {
            "choice": delta.choice,
            "token_ids": [delta.ids[i] for i in range(delta.count)],
            "prompt_tokens": delta.prompt_tokens,
            "completion_tokens": delta.completion_tokens,
            "cached_tokens": delta.cached_tokens,
            "reasoning_tokens": delta.reasoning_tokens,
            "complete": bool(delta.complete),
            "finish": (<const char *>delta.finish)[:delta.finish_size] if delta.finish_size else b"",
            "matched": (
                delta.matched_id if delta.matched == 1
                else (<const char *>delta.matched_text)[:delta.matched_size] if delta.matched == 2
                else None
            ),
        }
    finally:
        free(delta.ids)


cdef void clear(DeltaC *delta) noexcept nogil:
    delta.body = 0
    delta.choice = 0
    delta.prompt_tokens = 0
    delta.completion_tokens = 0
    delta.cached_tokens = 0
    delta.reasoning_tokens = 0
    delta.complete = False
    delta.count = 0
    delta.finish = NULL
    delta.finish_size = 0
    delta.matched = 0
    delta.matched_id = 0
    delta.matched_text = NULL
    delta.matched_size = 0


cdef int decode(const MessageC *messages, DeltaC *delta, const uint8_t *data, size_t size) noexcept nogil:
    """Fills the delta from one message; 0, or -1 when it is malformed or memory is short."""
    clear(delta)
    return _message(messages, 0, delta, data, data + size)


cdef int _message(const MessageC *messages, uint8_t which, DeltaC *delta, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Reads one message. Messages enter others one level deep only: `FieldTable` sees to that."""
    cdef uint64_t key
    cdef uint64_t value
    cdef FieldC field
    while at < end:
        at = _key(at, end, &key)
        if at == NULL or key >> 3 == 0:  # inside a skipped group protobuf lets the number 0 pass
            return -1
        field = messages[which].fields[key >> 3] if key >> 3 < FIELDS else FieldC(SKIP, 0)
        if key & 7 == 0:
            at = _varint(at, end, &value)
            if at == NULL or _number(field.action, value, delta):
                return -1
        elif key & 7 == 2:
            at = _size(at, end, &value)
            if at == NULL:
                return -1
            if field.action == ENTER or field.action == ENTER_COMPLETE:
                if delta.body != field.sub:  # of several members of a oneof the last one counts; parts of one are merged
                    clear(delta)
                delta.body = field.sub
                delta.complete = field.action == ENTER_COMPLETE
                if _message(messages, field.sub, delta, at, at + value):
                    return -1
            elif _bytes(field.action, delta, at, at + value):
                return -1
            at += value
        else:
            at = _skip(at, end, key, 2 if which else 1)
            if at == NULL:
                return -1
    return 0


cdef int _number(uint8_t action, uint64_t value, DeltaC *delta) noexcept nogil:
    if action == IDS:
        return _id(delta, <uint32_t>value)
    if action == PROMPT_TOKENS:
        delta.prompt_tokens = <uint32_t>value
    elif action == COMPLETION_TOKENS:
        delta.completion_tokens = <uint32_t>value
    elif action == CACHED_TOKENS:
        delta.cached_tokens = <uint32_t>value
    elif action == REASONING_TOKENS:
        delta.reasoning_tokens = <uint32_t>value
    elif action == CHOICE:
        delta.choice = <uint32_t>value
    elif action == MATCHED_ID:
        delta.matched = 1
        delta.matched_id = <uint32_t>value
    return 0


cdef int _bytes(uint8_t action, DeltaC *delta, const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef uint64_t value
    if action == IDS:
        while at < end:
            at = _varint(at, end, &value)
            if at == NULL or _id(delta, <uint32_t>value):
                return -1
    elif (action == FINISH or action == MATCHED_TEXT) and not utf8_valid(at, <size_t>(end - at)):
        return -1
    elif action == FINISH:
        delta.finish = at
        delta.finish_size = <size_t>(end - at)
    elif action == MATCHED_TEXT:
        delta.matched = 2
        delta.matched_text = at
        delta.matched_size = <size_t>(end - at)
    return 0


cdef int _id(DeltaC *delta, uint32_t value) noexcept nogil:
    cdef uint32_t *larger
    if delta.count == delta.capacity:
        larger = <uint32_t *>realloc(delta.ids, (delta.capacity * 2 + 16) * sizeof(uint32_t))
        if larger == NULL:
            return -1
        delta.ids = larger
        delta.capacity = delta.capacity * 2 + 16
    delta.ids[delta.count] = value
    delta.count += 1
    return 0


cdef const uint8_t *_key(const uint8_t *at, const uint8_t *end, uint64_t *key) noexcept nogil:
    """Reads a field's number and wire type: at most 32 bits in five bytes."""
    cdef const uint8_t *after = _varint(at, end, key)
    return after if after != NULL and after - at <= 5 and key[0] >> 32 == 0 else NULL


cdef const uint8_t *_size(const uint8_t *at, const uint8_t *end, uint64_t *size) noexcept nogil:
    """Reads the size of what follows, all of which must be there: at most five bytes."""
    cdef const uint8_t *after = _varint(at, end, size)
    if after == NULL or after - at > 5 or size[0] > MAX_SIZE or size[0] > <uint64_t>(end - after):
        return NULL
    return after


cdef const uint8_t *_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) noexcept nogil:
    """Reads one varint; NULL when it is cut short or longer than ten bytes."""
    cdef int shift = 0
    cdef uint8_t byte
    value[0] = 0
    while at < end and shift < 70:
        byte = at[0]
        at += 1
        value[0] |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return at
        shift += 7
    return NULL


cdef const uint8_t *_skip(const uint8_t *at, const uint8_t *end, uint64_t key, int depth) noexcept nogil:
    """Skips a field of fixed size or a group; NULL when it is malformed."""
    cdef uint64_t inner
    cdef uint64_t value
    if key & 7 == 1 or key & 7 == 5:
        value = 8 if key & 7 == 1 else 4
        return at + value if <uint64_t>(end - at) >= value else NULL
    if key & 7 != 3 or depth > MAX_DEPTH:
        return NULL
    while at != NULL and at < end:
        at = _key(at, end, &inner)
        if at == NULL:
            return NULL
        if inner & 7 == 4:
            return at if inner >> 3 == key >> 3 else NULL
        if inner & 7 == 0:
            at = _varint(at, end, &value)
        elif inner & 7 == 2:
            at = _size(at, end, &value)
            at = at + value if at != NULL else NULL
        else:
            at = _skip(at, end, inner, depth + 1)
    return NULL
