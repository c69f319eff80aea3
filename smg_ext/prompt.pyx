# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Prompts as the prefix index takes them: token ids or text come in, the names of their beginnings, step by step, go out.

A name is a keyed hash, so that names chain from step to step and cannot be made to collide by who does not know the keys: chunks of 16
units are hashed by NH (Black and others, UMAC, 1999) to 128 bits, these by a polynomial modulo 2^61-1 (as VMAC does, Krovetz and Dai
2007). `smg.kvindex.plain` is the twin.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

__all__ = ["Prompt"]

cdef extern from *:
    """
    #include <Python.h>
    /* 0, or -1 with an exception set */
    static int smg_id(PyObject *item, uint32_t *out) {
        unsigned long value = PyLong_AsUnsignedLong(item);
        if (value > UINT32_MAX) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_OverflowError, "a token id must be in 0..4294967295");
            return -1;
        }
        *out = (uint32_t)value;
        return 0;
    }
    #if PY_VERSION_HEX < 0x030C0000
    static inline int smg_is_small(PyObject *item) { return !(Py_SIZE(item) & ~(Py_ssize_t)1); }
    static inline uint32_t smg_small(PyObject *item) { return ((PyLongObject *)item)->ob_digit[0] & -(uint32_t)Py_SIZE(item); }
    #else
    static inline int smg_is_small(PyObject *item) {
        return PyUnstable_Long_IsCompact((PyLongObject *)item) && PyUnstable_Long_CompactValue((PyLongObject *)item) >= 0;
    }
    static inline uint32_t smg_small(PyObject *item) { return (uint32_t)PyUnstable_Long_CompactValue((PyLongObject *)item); }
    #endif
    /* Four at once, which are nearly always small integers. The objects of a list may lie anywhere, so they are fetched ahead. */
    static int smg_ids(PyObject **items, Py_ssize_t count, uint32_t *out) {
        Py_ssize_t i = 0;
        for (; i + 4 <= count; i += 4) {
            PyObject *a = items[i], *b = items[i + 1], *c = items[i + 2], *d = items[i + 3];
            if (i + 20 <= count) {
                __builtin_prefetch(items[i + 16]);
                __builtin_prefetch(items[i + 17]);
                __builtin_prefetch(items[i + 18]);
                __builtin_prefetch(items[i + 19]);
            }
            if (PyLong_CheckExact(a) & PyLong_CheckExact(b) & PyLong_CheckExact(c) & PyLong_CheckExact(d)
                && smg_is_small(a) & smg_is_small(b) & smg_is_small(c) & smg_is_small(d)) {
                out[i] = smg_small(a);
                out[i + 1] = smg_small(b);
                out[i + 2] = smg_small(c);
                out[i + 3] = smg_small(d);
            } else if (smg_id(a, out + i) || smg_id(b, out + i + 1) || smg_id(c, out + i + 2) || smg_id(d, out + i + 3)) return -1;
        }
        for (; i < count; i++) if (smg_id(items[i], out + i)) return -1;
        return 0;
    }
    """
    int smg_ids(PyObject **items, Py_ssize_t count, uint32_t *out) except -1

cdef extern from "Python.h":
    PyObject **smg_items "PySequence_Fast_ITEMS" (object sequence)

cdef enum:
    CHUNK = 16
    MAX_UNITS = 1 << 17


cdef uint64_t _mixed(uint64_t word) noexcept nogil:
    """One word of SplitMix64 (Steele and others 2014)."""
    word = (word ^ (word >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * <uint64_t>0x94D049BB133111EB
    return word ^ (word >> 31)


cdef void make_keys(uint64_t *keys, uint64_t one, uint64_t other) noexcept nogil:
    """Makes the 11 keys of names of a secret: 8 for a chunk's words, then the three factors of the polynomial."""
    cdef uint64_t i
    for i in range(11):
        keys[i] = _mixed(one ^ _mixed(other + (i + 1) * <uint64_t>0x9E3779B97F4A7C15))
    keys[8] = (keys[8] >> 4) + (<uint64_t>1 << 32)
    keys[9] = (keys[9] >> 7) + 1
    keys[10] = (keys[10] >> 7) + 1


cdef int64_t name_units(const uint64_t *keys, uint64_t start, const char *units, int64_t count, int64_t step, uint64_t *out) noexcept nogil:
    """Names the beginning that ends with each whole step of units after the one named `start`, 0 = the empty one; gives their number."""
    cdef int64_t i, left
    cdef uint64_t name = start if start else <uint64_t>step
    cdef char rest[CHUNK * 4]
    if step == CHUNK:  # the usual one, in a loop that needs nothing but registers
        for i in range(count // CHUNK):
            name = smg_chunk(keys, name, units + i * CHUNK * 4)
            out[i] = smg_name(name)
        return count // CHUNK
    for i in range(count // step):
        left = step
        while left >= CHUNK:
            name = smg_chunk(keys, name, units)
            units += CHUNK * 4
            left -= CHUNK
        if left:
            memset(rest, 0, CHUNK * 4)
            memcpy(rest, units, <size_t>left * 4)
            name = smg_chunk(keys, name, rest)
            units += left * 4
        out[i] = smg_name(name)
    return count // step


cdef void name_prompt(const uint64_t *keys, PromptC *prompt, int64_t step) noexcept nogil:
    """Names a prompt's beginnings for a step of at least 16 units. Does nothing when that was done."""
    if prompt.step != step:
        prompt.step = step
        prompt.name_count = name_units(keys, 0, prompt.units, prompt.unit_count, step, prompt.names)


cdef int _make_room(Prompt prompt, Py_ssize_t units, bint copy) except -1:
    """Gives a prompt room for its names, and for its units where they are copied."""
    cdef size_t names
    prompt.c.unit_count = min(units, <Py_ssize_t>MAX_UNITS)
    names = <size_t>(prompt.c.unit_count // CHUNK + 1) * sizeof(uint64_t)
    prompt.c.names = <uint64_t *>malloc(names + (<size_t>prompt.c.unit_count * sizeof(uint32_t) if copy else 0))
    if prompt.c.names == NULL:
        raise MemoryError()
    prompt.c.units = <char *>prompt.c.names + names if copy else <char *>prompt.view.buf
    return 0


cdef Prompt _of_buffer(object data):
    """Uses a buffer where it is, for as long as the prompt lives."""
    cdef Prompt prompt = Prompt.__new__(Prompt)
    prompt.c.unit_size = 1
    PyObject_GetBuffer(data, &prompt.view, PyBUF_FORMAT | PyBUF_ND)
    cdef bint words = prompt.view.itemsize == 4 and prompt.view.format[0] in b"iIlL"
    if prompt.view.ndim != 1 or not (words or prompt.view.format[0] == c"B" and prompt.view.len % 4 == 0):
        raise TypeError("token ids must be 32-bit integers")
    _make_room(prompt, prompt.view.len // 4, False)
    return prompt


cdef Prompt prompt_of_ids(object ids):
    """Takes a list or tuple of ids, or a buffer of 32-bit integers, which may be bytes."""
    cdef Prompt prompt
    if PyObject_CheckBuffer(ids):
        return _of_buffer(ids)
    sequence = PySequence_Fast(ids, "token ids must be a sequence")
    prompt = Prompt.__new__(Prompt)
    prompt.c.unit_size = 1
    _make_room(prompt, PySequence_Fast_GET_SIZE(sequence), True)
    smg_ids(smg_items(sequence), prompt.c.unit_count, <uint32_t *>prompt.c.units)
    return prompt


cdef Prompt prompt_of_text(str text):
    """Takes a text, 4 bytes of its UTF-8 a unit."""
    cdef Prompt prompt = Prompt.__new__(Prompt)
    data = text.encode("utf-8", "surrogatepass")
    prompt.c.unit_size = 4
    PyObject_GetBuffer(data, &prompt.view, PyBUF_SIMPLE)
    _make_room(prompt, prompt.view.len // 4, False)
    return prompt


cdef class Prompt:
    """One prompt's units (tokens, or 4 bytes of text each), 2^17 at most, and the names of its beginnings. Made by `PrefixIndex`."""

    def __dealloc__(self):
        free(self.c.names)
        PyBuffer_Release(&self.view)

    def __len__(self):
        return self.c.unit_count
