"""Layout of what follows JSON values and makes them of plain text, for the native grammars."""

from smg_ext.chars cimport CharsC
from smg_ext.collector cimport Collector


cdef struct JsonValueC:
    CharsC open                 # brackets
    Py_UCS4 kind                # first character, 0 before it
    bint done
    bint broken                 # the next character cannot be part of it
    bint in_string
    bint escaped


cdef struct TypedValueC:
    CharsC parts                # of a value that is wanted whole
    bint string                 # it can only be text
    bint maybe                  # or null
    bint trim
    bint streams
    bint fresh                  # a newline here is layout
    bint held                   # a newline that may be the last character


cdef void begin_json(JsonValueC *value) noexcept
cdef Py_ssize_t read_json(JsonValueC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1
cdef int put_quoted(CharsC *out, const Py_UCS4 *text, Py_ssize_t size) except -1
cdef int put_key(CharsC *out, str key, bint first) except -1
cdef bint is_number(const Py_UCS4 *text, Py_ssize_t size) noexcept

cdef int begin_typed(TypedValueC *value, Collector sink, object kinds, bint trim) except -1
cdef int add_typed(TypedValueC *value, Collector sink, const Py_UCS4 *text, Py_ssize_t size) except -1
cdef int end_typed(TypedValueC *value, Collector sink, object kinds, object as_json) except -1
cdef int cut_typed(TypedValueC *value, Collector sink) except -1
