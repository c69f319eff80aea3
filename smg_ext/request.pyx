# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Protobuf encoding of what each GenerateRequest has for itself: its id, and its prompt as text and token ids.

The rest comes serialized: parts of a message that follow each other are merged by whoever parses them, so that a request is what it has in
common with others, and then its own (protobuf.dev/programming-guides/encoding, "Last One Wins"). Used by `smg.engine.writer`, which
takes the field numbers from the .proto descriptors.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

__all__ = ["RequestLayout", "packed_ids"]

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    ON_STACK = 1024             # ids of a short prompt need no memory of their own
    VARINT_BYTES = 5            # of a number of 32 bits at most
    NUMBER_MAX = 536870911      # of a field


cdef class RequestLayout:
    """Field numbers: of the request's id and its prompt, and within the prompt of its text (string) and its ids (repeated uint32)."""

    def __cinit__(self, *, uint32_t request_id, uint32_t prompt, uint32_t text, uint32_t ids):
        for number in (request_id, prompt, text, ids):
            if not 0 < number <= NUMBER_MAX:
                raise ValueError(f"{number} is no field number")
        self.request_id, self.prompt, self.text, self.ids = _key(request_id), _key(prompt), _key(text), _key(ids)

    def write(self, bytes fixed not None, *, str request_id not None, str text not None, bytes packed not None):
        """Gives `fixed` with the fields added; `packed` as `packed_ids` gives it. Raises ValueError for half a character."""
        cdef Py_ssize_t id_size, text_size
        cdef const char *id_text = PyUnicode_AsUTF8AndSize(request_id, &id_size)
        cdef const char *prompt_text = PyUnicode_AsUTF8AndSize(text, &text_size)
        return self._write(fixed, id_text, <size_t>id_size, prompt_text, <size_t>text_size, packed)

    cdef bytes _write(self, bytes fixed, const char *id_text, size_t id_size, const char *text, size_t text_size, bytes packed):
        cdef size_t packed_size = <size_t>PyBytes_GET_SIZE(packed)
        cdef size_t inner = _sized(&self.text, text_size) + _sized(&self.ids, packed_size)
        cdef size_t whole = <size_t>PyBytes_GET_SIZE(fixed) + _sized(&self.request_id, id_size) + _sized(&self.prompt, inner)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>whole)
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(out)
        memcpy(at, PyBytes_AS_STRING(fixed), <size_t>PyBytes_GET_SIZE(fixed))
        at += PyBytes_GET_SIZE(fixed)
        if id_size:
            at = _put_text(_put_head(at, &self.request_id, id_size), id_text, id_size)
        if inner:
            at = _put_head(at, &self.prompt, inner)
        if text_size:
            at = _put_text(_put_head(at, &self.text, text_size), text, text_size)
        if packed_size:
            _put_text(_put_head(at, &self.ids, packed_size), PyBytes_AS_STRING(packed), packed_size)
        return out


def packed_ids(ids not None):
    """Gives token ids as protobuf packs a repeated uint32: of a list, or of an array of 32-bit numbers, of which no objects are made.

    Raises ValueError for an id outside 32 bits, TypeError for no int.
    """
    if not isinstance(ids, list):
        return _packed_array(ids)
    cdef size_t count = <size_t>len(ids)
    cdef uint32_t few[ON_STACK]
    cdef uint32_t *values = few
    if count > ON_STACK:
        values = <uint32_t *>malloc(count * sizeof(uint32_t))
        if values == NULL:
            raise MemoryError()
    try:
        _take(ids, values)
        return _packed(values, count)
    except OverflowError:
        raise ValueError("a token id does not fit 32 bits") from None
    finally:
        if values != few:
            free(values)


cdef bytes _packed_array(ids):
    cdef Py_buffer view
    PyObject_GetBuffer(ids, &view, PyBUF_FORMAT | PyBUF_ND)
    try:
        if view.ndim != 1 or view.itemsize != sizeof(uint32_t) or view.format[0] != c"I":
            raise TypeError("token ids must be 32-bit integers")
        return _packed(<const uint32_t *>view.buf, <size_t>view.len // sizeof(uint32_t))
    finally:
        PyBuffer_Release(&view)


cdef int _take(list ids, uint32_t *values) except -1:
    """Takes the ids over into `values`."""
    cdef Py_ssize_t i
    for i in range(len(ids)):
        token_id = ids[i]
        if not isinstance(token_id, int):
            raise TypeError(f"a token id is an int, not {type(token_id).__name__}")
        values[i] = <uint32_t>token_id
    return 0


cdef bytes _packed(const uint32_t *values, size_t count):
    cdef uint8_t few[ON_STACK * VARINT_BYTES]
    cdef uint8_t *out = few
    if count > ON_STACK:
        out = <uint8_t *>malloc(count * VARINT_BYTES)
        if out == NULL:
            raise MemoryError()
    try:
        return PyBytes_FromStringAndSize(<char *>out, <Py_ssize_t>(_put_ids(out, values, count) - out))
    finally:
        if out != few:
            free(out)


cdef uint8_t *_put_ids(uint8_t *at, const uint32_t *values, size_t count) noexcept nogil:
    """Writes varints. What is below 2^21, as any vocabulary's ids are, without a branch: three bytes, of which one or two may not count."""
    cdef size_t i
    cdef uint32_t value
    cdef uint32_t two
    cdef uint32_t three
    for i in range(count):
        value = values[i]
        if value >= 1 << 21:
            at = _put_varint(at, value)
            continue
        two, three = value > 0x7F, value > 0x3FFF
        at[0] = <uint8_t>(value & 0x7F | two << 7)
        at[1] = <uint8_t>(value >> 7 & 0x7F | three << 7)
        at[2] = <uint8_t>(value >> 14)
        at += 1 + two + three
    return at


cdef KeyC _key(uint32_t number) noexcept:
    cdef KeyC key
    key.size = <size_t>(_put_varint(key.bytes, (<uint64_t>number << 3) | 2) - key.bytes)
    return key


cdef size_t _sized(const KeyC *key, size_t size) noexcept nogil:
    """Size of a field of `size` bytes with its head; an empty one is left out."""
    return key.size + _varint_size(size) + size if size else 0


cdef size_t _varint_size(uint64_t value) noexcept nogil:
    cdef size_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef uint8_t *_put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef uint8_t *_put_head(uint8_t *at, const KeyC *key, size_t size) noexcept nogil:
    memcpy(at, key.bytes, key.size)
    return _put_varint(at + key.size, size)


cdef uint8_t *_put_text(uint8_t *at, const char *text, size_t size) noexcept nogil:
    memcpy(at, text, size)
    return at + size
