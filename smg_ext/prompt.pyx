# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Prompts as the prefix index takes them: token ids or text come in, the names of their beginnings, block by block, go out.

A beginning is named by a polynomial over its units in a secret base modulo 2^61-1 (Carter and Wegman 1979), so that names chain from block
to block, do not depend on the block size, and cannot be made to collide by who does not know the base. `smg.kvindex.plain` is the twin.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

__all__ = ["Prompt"]

cdef extern from *:
    """
    #include <Python.h>
    static inline void smg_fetch(const void *at) { __builtin_prefetch(at); }
    /* 0, or -1 with an exception set */
    static inline int smg_id(PyObject *item, uint32_t *out) {
        unsigned long value;
    #if PY_VERSION_HEX < 0x030C0000
        if (PyLong_CheckExact(item) && Py_SIZE(item) == 1) {
            *out = ((PyLongObject *)item)->ob_digit[0];
            return 0;
        }
    #endif
        value = PyLong_AsUnsignedLong(item);
        if (value > UINT32_MAX) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_OverflowError, "a token id must be in 0..4294967295");
            return -1;
        }
        *out = (uint32_t)value;
        return 0;
    }
    """
    void smg_fetch(const void *at) noexcept
    int smg_id(PyObject *item, uint32_t *out) except -1

cdef extern from "Python.h":
    PyObject **smg_items "PySequence_Fast_ITEMS" (object sequence)

cdef enum:
    SMALLEST_STEP = 16
    MAX_UNITS = 1 << 17


cdef void hash_prompt(const uint64_t *powers, PromptC *prompt, int64_t step) noexcept nogil:
    """Names the beginning that ends with each whole block of `step` units, at least 16. Does nothing when that was done."""
    cdef int64_t i, done, part
    cdef uint64_t hash = 0
    if prompt.step == step:
        return
    prompt.step = step
    prompt.hash_count = prompt.unit_count // step
    for i in range(prompt.hash_count):
        done = 0
        while done < step:
            part = 16 if step - done >= 16 else step - done
            hash = smg_advance(powers, hash, prompt.units + i * step + done, part)
            done += part
        prompt.hashes[i] = hash


cdef Prompt _new(Py_ssize_t units, int64_t unit_size):
    cdef Prompt prompt = Prompt.__new__(Prompt)
    cdef size_t hashes
    units = min(units, <Py_ssize_t>MAX_UNITS)
    hashes = <size_t>(units // SMALLEST_STEP + 1) * sizeof(uint64_t)
    prompt.c.hashes = <uint64_t *>malloc(hashes + <size_t>units * sizeof(uint32_t))
    if prompt.c.hashes == NULL:
        raise MemoryError()
    prompt.c.units = <uint32_t *>(<char *>prompt.c.hashes + hashes)
    prompt.c.unit_count = units
    prompt.c.unit_size = unit_size
    return prompt


cdef Prompt _from_buffer(object ids):
    cdef Py_buffer view
    cdef Prompt prompt
    PyObject_GetBuffer(ids, &view, PyBUF_FORMAT | PyBUF_ND)
    try:
        if view.itemsize != 4 or view.ndim != 1 or view.format[0] not in b"iIlL":
            raise TypeError("token ids must be 32-bit integers")
        prompt = _new(view.shape[0], 1)
        memcpy(prompt.c.units, view.buf, <size_t>prompt.c.unit_count * 4)
    finally:
        PyBuffer_Release(&view)
    return prompt


cdef Prompt prompt_of_ids(object ids):
    """Takes a list or tuple of ids, or an array of 32-bit integers."""
    cdef Py_ssize_t i
    cdef Prompt prompt
    cdef PyObject **items
    if PyObject_CheckBuffer(ids):
        return _from_buffer(ids)
    sequence = PySequence_Fast(ids, "token ids must be a sequence")
    prompt = _new(PySequence_Fast_GET_SIZE(sequence), 1)
    items = smg_items(sequence)
    for i in range(prompt.c.unit_count):
        smg_fetch(items[min(i + 16, prompt.c.unit_count - 1)])
        smg_id(items[i], prompt.c.units + i)
    return prompt


cdef Prompt prompt_of_text(str text):
    """Takes a text, 4 bytes of its UTF-8 a unit."""
    cdef bytes data = text.encode("utf-8", "surrogatepass")
    cdef Prompt prompt = _new(len(data) // 4, 4)
    memcpy(prompt.c.units, <const char *>data, <size_t>prompt.c.unit_count * 4)
    return prompt


cdef class Prompt:
    """One prompt's units (tokens, or 4 bytes of text each), 2^17 at most, and the names of its beginnings. Made by `PrefixIndex`."""

    def __dealloc__(self):
        free(self.c.hashes)

    def __len__(self):
        return self.c.unit_count
