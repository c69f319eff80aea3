"""Layout of what the native parsers share: where grammars put what they find, and the white space beside marks."""

from smg_ext.chars cimport CharsC
from smg_ext.marks cimport MarkSet, MatcherC


cdef enum Kind:
    NO_PIECE
    TEXT
    THOUGHT
    ARGUMENTS
    CALL


cdef struct PieceC:
    int kind
    Py_ssize_t end              # of its text; it begins where the piece before ends
    Py_ssize_t call             # its index


cdef struct MarginC:
    CharsC held                 # white space that is layout where a mark follows
    bint started
    bint marked
    bint spaces                 # they too are layout
    int kind                    # of what is shown


cdef class Shapes:
    cdef object text
    cdef object thought
    cdef object call
    cdef object arguments


cdef class Collector:
    cdef CharsC text            # of the pieces that were not taken yet
    cdef CharsC given           # what is being fed
    cdef PieceC *pieces
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef list heads             # (name, id) of the calls among them
    cdef Shapes shapes
    cdef object schemas
    cdef object new_id
    cdef str forced             # the one tool whose arguments the output is
    cdef bint single            # the answer ends where a second call begins
    cdef readonly bint ended    # it did
    cdef bint has_arguments     # of the last call
    cdef Py_ssize_t calls
    cdef int last               # kind of the latest piece
    cdef readonly long long work

    # what a parser is
    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1
    cdef int close_output(self) except -1
    cdef int show(self, const Py_UCS4 *text, Py_ssize_t size) except -1
    cdef int mark(self) except -1
    cdef int begun(self) except -1
    cdef int emit(self, int kind, const Py_UCS4 *text, Py_ssize_t size) except -1

    # what grammars and parsers call
    cdef int put(self, int kind, const Py_UCS4 *text, Py_ssize_t size) except -1
    cdef int call(self, str name, object call_id) except -1
    cdef int put_arguments(self, const Py_UCS4 *text, Py_ssize_t size) except -1
    cdef int put_ascii_arguments(self, const char *text) except -1
    cdef int close_call(self) except -1
    cdef int show_string(self, str text) except -1
    cdef list take(self)

    cdef int margin_text(self, MarginC *margin, const Py_UCS4 *text, Py_ssize_t size) except -1
    cdef int end_margin(self, MarginC *margin) except -1


cdef class Citing(Collector):
    cdef bint cited             # visible text has citation marks
    cdef MarkSet citation_marks
    cdef MatcherC citations
    cdef CharsC citation        # the mark whose sources are being read
    cdef Py_ssize_t _sources(self, const Py_UCS4 *text, Py_ssize_t at) except -1
    cdef int end_citations(self) except -1
