# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""What the native parsers share: pieces of one choice's output, collected, joined and counted; and the white space beside marks.

A parser is a `Collector` that reads: text in, in any division, pieces out, the same as its twin in `smg.parser` gives. `smg.parser.sink`,
`margin` and `citation` are the specification. Used by the parsers, their grammars and `smg_ext.events`.
"""

from libc.stdlib cimport free, realloc

from smg_ext.chars cimport PyUnicode_AsUCS4, blank, drop_first, put_ascii, put_char, put_chars, reserve, string_of
from smg_ext.chars cimport among, word_char
from smg_ext.marks cimport NO_MARK, begin_matcher, free_matcher, scan

__all__ = ["Citing", "Collector", "Shapes"]

CITATION_MARKS = MarkSet(("<co>", "<co:", "</co>", "</co:"))

cdef enum:
    SOURCES_MAX = 256           # characters of a citation mark


cdef class Shapes:
    """The classes of pieces: of (text), (text), (index, name, id) and (index, text)."""

    def __cinit__(self, text, thought, call, arguments):
        self.text, self.thought, self.call, self.arguments = text, thought, call, arguments


cdef class Collector:
    """One choice. `schemas`: of each known tool. `new_id` makes an id where the output names none; None leaves that to the caller.

    `single`: the answer ends where a second call begins; then `ended`. `forced`: the one tool whose bare arguments the output is. `work`:
    steps so far, of which there are never more than some a character.
    """

    def __cinit__(self, *_options, Shapes shapes not None, schemas, new_id=None, bint single=False, str forced="", **_more):
        self.shapes, self.schemas, self.new_id, self.single, self.forced = shapes, schemas, new_id, single, forced
        self.heads = []

    def __dealloc__(self):
        free(self.text.data)
        free(self.given.data)
        free(self.pieces)

    def feed(self, str text not None):
        """Gives the pieces that became certain with this text."""
        cdef Py_ssize_t size = len(text)
        if self.ended or size == 0:
            return []
        self.given.size = 0
        reserve(&self.given, size)
        PyUnicode_AsUCS4(text, self.given.data, size, 0)
        self.run(self.given.data, size)
        return self.take()

    def finish(self):
        """Gives what is left at the end of the output."""
        if self.ended:
            return []
        self.close_output()
        return self.take()

    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        """Reads more of the output."""
        raise NotImplementedError

    cdef int close_output(self) except -1:
        """The output has ended."""
        raise NotImplementedError

    cdef int show(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        """Text that a grammar gives back."""
        return self.put(TEXT, text, size)

    cdef int mark(self) except -1:
        """A mark of the format stands here."""
        return 0

    cdef int begun(self) except -1:
        """A call begins."""
        return 0

    cdef int emit(self, int kind, const Py_UCS4 *text, Py_ssize_t size) except -1:
        """Text past its margin."""
        return self.put(kind, text, size)

    cdef int put(self, int kind, const Py_UCS4 *text, Py_ssize_t size) except -1:
        """Adds to the last piece, or a new one where that is of another kind."""
        if size == 0 or self.ended:
            return 0
        self.work += size
        self.last = kind
        put_chars(&self.text, text, size)
        if self.count == 0 or self.pieces[self.count - 1].kind != kind:
            _new_piece(self, kind)
        self.pieces[self.count - 1].end = self.text.size
        return 0

    cdef int call(self, str name, object call_id) except -1:
        """A call begins; its whole name is known."""
        self.begun()
        self.mark()
        if self.ended or (self.single and self.calls):
            self.ended = True
            return 0
        if call_id is None and self.new_id is not None:
            call_id = self.new_id()
        self.calls += 1
        _new_piece(self, CALL)
        self.heads.append((name, call_id))
        self.last = CALL
        self.has_arguments = False
        return 0

    cdef int put_arguments(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        """The next piece of the last call's arguments."""
        if size:
            self.has_arguments = True
        return self.put(ARGUMENTS, text, size)

    cdef int put_ascii_arguments(self, const char *text) except -1:
        if self.ended:
            return 0
        cdef Py_ssize_t begin = self.text.size
        put_ascii(&self.text, text)
        self.work += self.text.size - begin
        if self.text.size == begin:
            return 0
        if self.count == 0 or self.pieces[self.count - 1].kind != ARGUMENTS:
            _new_piece(self, ARGUMENTS)
        self.pieces[self.count - 1].end = self.text.size
        self.last = ARGUMENTS
        self.has_arguments = True
        return 0

    cdef int close_call(self) except -1:
        """The last call is complete: one that never had arguments has none, and says so in JSON."""
        return 0 if self.has_arguments else self.put_ascii_arguments(b"{}")

    cdef int show_string(self, str text) except -1:
        cdef CharsC copy
        cdef Py_ssize_t size = len(text)
        copy.data, copy.size, copy.capacity = NULL, 0, 0
        if size == 0:
            return 0
        reserve(&copy, size)
        try:
            PyUnicode_AsUCS4(text, copy.data, size, 0)
            self.show(copy.data, size)
        finally:
            free(copy.data)
        return 0

    cdef list take(self):
        """Gives the pieces since the last time."""
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t head = 0
        cdef Py_ssize_t i
        cdef PieceC *piece
        cdef Shapes shapes = self.shapes
        taken = []
        for i in range(self.count):
            piece = &self.pieces[i]
            if piece.kind == CALL:
                name, call_id = self.heads[head]
                taken.append(shapes.call(piece.call, name, call_id))
                head += 1
                continue
            text = string_of(self.text.data + begin, piece.end - begin)
            if piece.kind == ARGUMENTS:
                taken.append(shapes.arguments(piece.call, text))
            else:
                taken.append(shapes.text(text) if piece.kind == TEXT else shapes.thought(text))
            begin = piece.end
        if head:
            self.heads = []
        self.count = self.text.size = 0
        return taken

    cdef int margin_text(self, MarginC *margin, const Py_UCS4 *text, Py_ssize_t size) except -1:
        """More of a channel's text: newlines beside a mark are dropped at the channel's outer ends."""
        cdef Py_ssize_t body = size
        while body and blank(text[body - 1]):
            body -= 1
        self.work += size - body + 1
        if body:
            _release(self, margin, text, body)
            margin.started = True
            margin.marked = False
        return _space(self, margin, text + body, size - body) if size > body else 0

    cdef int end_margin(self, MarginC *margin) except -1:
        """The output has ended: held white space is shown unless a mark stands beside it."""
        if not margin.marked:
            self.emit(margin.kind, margin.held.data, margin.held.size)
        margin.held.size = 0
        return 0


cdef int _new_piece(Collector pieces, int kind) except -1:
    cdef PieceC *larger
    if pieces.count == pieces.capacity:
        larger = <PieceC *>realloc(pieces.pieces, <size_t>(pieces.capacity * 2 + 4) * sizeof(PieceC))
        if larger == NULL:
            raise MemoryError()
        pieces.pieces = larger
        pieces.capacity = pieces.capacity * 2 + 4
    pieces.pieces[pieces.count].kind = kind
    pieces.pieces[pieces.count].end = pieces.text.size
    pieces.pieces[pieces.count].call = pieces.calls - 1
    pieces.count += 1
    return 0


cdef int _release(Collector pieces, MarginC *margin, const Py_UCS4 *text, Py_ssize_t body) except -1:
    """Shows what was held, but for lines that stand between a mark and the channel's first text; then the text."""
    cdef CharsC *held = &margin.held
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t line
    if not margin.started and margin.marked:
        while blank(text[first]):
            first += 1
        put_chars(held, text, first)
        line = held.size
        while line and held.data[line - 1] != '\n':
            line -= 1
        pieces.work += held.size
        drop_first(held, held.size if margin.spaces else line)
    pieces.emit(margin.kind, held.data, held.size)
    held.size = 0
    return pieces.emit(margin.kind, text + first, body - first)


cdef int _space(Collector pieces, MarginC *margin, const Py_UCS4 *text, Py_ssize_t size) except -1:
    """White space: held from the first newline on, for it may stand beside a mark."""
    cdef Py_ssize_t line = 0
    if not (margin.held.size or margin.marked or margin.spaces or not margin.started):
        while line < size and text[line] != '\n':
            line += 1
        pieces.emit(margin.kind, text, line)
    return put_chars(&margin.held, text + line, size - line)


cdef class Citing(Collector):
    """A collector that may take Cohere's citation marks out of visible text, and leave their inside: `<co: 0>…</co: 0>`."""

    def __cinit__(self, *_options, **_more):
        self.citation_marks = CITATION_MARKS
        begin_matcher(&self.citations, self.citation_marks, &self.work)

    def __dealloc__(self):
        free_matcher(&self.citations)
        free(self.citation.data)

    cdef int emit(self, int kind, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        if kind != TEXT or not self.cited:
            return self.put(kind, text, size)
        while at < size:
            if self.citation.size:
                at = self._sources(text, at)
                continue
            at = scan(&self.citations, text, at, size)
            self.put(TEXT, self.citations.released, self.citations.size)
            if self.citations.mark != NO_MARK:
                mark = self.citation_marks.marks[self.citations.mark]
                if mark.endswith(":"):
                    put_ascii(&self.citation, (<str>mark).encode())
        return 0

    cdef Py_ssize_t _sources(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        self.work += 1
        if text[at] == '>':
            self.citation.size = 0
        elif among(text[at], b" ,:[]") or (text[at] != '_' and word_char(text[at])):
            put_char(&self.citation, text[at])
            if self.citation.size > SOURCES_MAX:
                self.end_citations()
        else:
            self.end_citations()
            return at
        return at + 1

    cdef int end_citations(self) except -1:
        """No mark comes any more: what is held is text."""
        self.put(TEXT, self.citation.data, self.citation.size)
        self.citation.size = 0
        self.put(TEXT, self.citations.pending.data, self.citations.pending.size)
        self.citations.pending.size = 0
        return 0
