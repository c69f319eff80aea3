"""Layout of the native grammar of calls as JSON objects, for the parsers that use it."""

from smg_ext.chars cimport CharsC
from smg_ext.collector cimport Collector
from smg_ext.grammar cimport Grammar, Reader
from smg_ext.marks cimport MarkSet, MatcherC
from smg_ext.value cimport JsonValueC


cdef class JsonGrammar(Grammar):
    cdef MarkSet closes
    cdef bint has_closes
    cdef tuple names
    cdef tuple arguments
    cdef tuple others
    cdef str id_key
    cdef str separators
    cdef bint keyed
    cdef object decoded
    cdef object unwrapped


cdef class _JsonCalls(Reader):
    cdef JsonGrammar form
    cdef bint bare              # only names of known tools are calls
    cdef MatcherC closes
    cdef int state
    cdef int role               # of the key that was read
    cdef Py_ssize_t lists
    cdef Py_ssize_t nested
    cdef CharsC blanks
    cdef CharsC key
    cdef bint escaped
    cdef JsonValueC value
    cdef CharsC parts           # of a value that is wanted whole
    cdef CharsC early           # arguments before the name
    cdef CharsC spare           # an object under another key, for a call that has none under the right one
    cdef str called
    cdef object call_id
    cdef bint seen_arguments
    cdef bint whole

    cdef int start(self) except -1
    cdef Py_ssize_t between(self, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef Py_ssize_t unexpected(self, Py_ssize_t at) except -1
    cdef Py_ssize_t before_key(self, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef Py_ssize_t in_key(self, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef int role_of(self, str key) except -1
    cdef Py_ssize_t before_colon(self, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef Py_ssize_t in_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
    cdef int take(self) except -1
    cdef int end_value(self) except -1
    cdef int end_arguments(self) except -1
    cdef int announce(self) except -1
    cdef Py_ssize_t after_value(self, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef Py_ssize_t end_object(self, Py_ssize_t at) except -1
    cdef Py_ssize_t break_off(self, Py_ssize_t at) except -1
    cdef Py_ssize_t broken(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1
