# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Finds protocol marks in text that comes in pieces; every native splitter and grammar looks through one of these.

`smg.parser.matcher` is the specification. What is held back is never longer than the longest mark.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from smg_ext.chars cimport CharsC, among, put_chars, put_string, string_of

__all__ = ["MarkSet", "scan_marks"]


cdef class MarkSet:
    """The marks of one matcher, none of which may begin another or lie inside one. Immutable: one serves every request."""

    def __cinit__(self, tuple marks not None):
        cdef int32_t i
        self.marks = tuple(dict.fromkeys(marks))
        for one in self.marks:
            if not one or any(one in other[:len(other) - 1] for other in self.marks if other != one):
                raise ValueError(f"a mark that begins or lies inside another: {one!r}")
        self.c.nodes = <NodeC *>calloc(sum(map(len, self.marks)) + 1, sizeof(NodeC))
        if self.c.nodes == NULL:
            raise MemoryError()
        self.c.nodes[0].mark = NO_MARK
        self.c.count = 1
        for i in range(<int32_t>len(self.marks)):
            _add(&self.c, self.marks[i], i)
        i = self.c.nodes[0].child
        while i:
            if self.c.nodes[i].char < 128:
                self.c.ascii[<size_t>self.c.nodes[i].char] = i
            i = self.c.nodes[i].sibling

    def __dealloc__(self):
        free(self.c.nodes)


cdef int _add(MarksC *marks, str mark, int32_t number) except -1:
    cdef int32_t node = 0
    cdef int32_t next_node
    cdef Py_UCS4 char
    for char in mark:
        next_node = _child(marks, node, char)
        if next_node == 0:
            next_node = marks.count
            marks.count += 1
            marks.nodes[next_node].char = char
            marks.nodes[next_node].mark = NO_MARK
            marks.nodes[next_node].sibling = marks.nodes[node].child
            marks.nodes[node].child = next_node
        node = next_node
    marks.nodes[node].mark = number


cdef inline int32_t _child(const MarksC *marks, int32_t node, Py_UCS4 char) noexcept:
    """The node after this character, 0 for none."""
    cdef int32_t child = marks.nodes[node].child
    while child and marks.nodes[child].char != char:
        child = marks.nodes[child].sibling
    return child


cdef void begin_matcher(MatcherC *m, MarkSet marks, long long *work) noexcept:
    """`marks` must outlive the matcher. `m` is all zero, or has been used before."""
    m.marks = &marks.c
    m.pending.size = 0
    m.work = work


cdef void free_matcher(MatcherC *m) noexcept:
    free(m.pending.data)
    free(m.joined.data)
    memset(m, 0, sizeof(MatcherC))


cdef Py_ssize_t scan(MatcherC *m, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop) except -1:
    """Reads `text[at:stop]` up to the end of the first mark; gives where it stopped. `m` has the text before the mark, and the mark."""
    cdef const MarksC *marks = m.marks
    cdef Py_ssize_t begin = at
    cdef Py_ssize_t look
    cdef int32_t node
    if m.pending.size:
        return _scan_held(m, text, at, stop)
    m.mark = NO_MARK
    m.released = text + begin
    m.work[0] += stop - begin
    while at < stop:
        node = marks.ascii[<size_t>text[at]] if text[at] < 128 else _child(marks, 0, text[at])
        look = at
        while node:
            look += 1
            if marks.nodes[node].mark != NO_MARK:
                m.mark = marks.nodes[node].mark
                m.size = at - begin
                m.work[0] -= stop - look
                return look
            if look == stop:
                put_chars(&m.pending, text + at, stop - at)
                m.size = at - begin
                return stop
            node = _child(marks, node, text[look])
        m.work[0] += look - at
        at += 1
    m.size = stop - begin
    return stop


cdef Py_ssize_t _scan_held(MatcherC *m, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop) except -1:
    """What is held goes before the text."""
    cdef Py_ssize_t held = m.pending.size
    cdef Py_ssize_t i
    cdef Py_ssize_t look
    cdef int32_t node
    m.mark = NO_MARK
    m.joined.size = 0
    for i in range(held):
        node = 0
        look = i
        while look < held + stop - at:
            node = _child(m.marks, node, m.pending.data[look] if look < held else text[at + look - held])
            if node == 0:
                break
            look += 1
            if m.marks.nodes[node].mark != NO_MARK:
                m.mark = m.marks.nodes[node].mark
                break
        m.work[0] += look - i
        if node:  # a mark, or all of this may still become one
            put_chars(&m.joined, m.pending.data, i)
            if m.mark == NO_MARK:
                put_chars(&m.joined, m.pending.data + i, held - i)
                put_chars(&m.joined, text + at, stop - at)
                m.pending.size = 0
                put_chars(&m.pending, m.joined.data + i, m.joined.size - i)
                look = held + stop - at
            else:
                m.pending.size = 0
            m.released, m.size = m.joined.data, i
            return at + look - held
    put_chars(&m.joined, m.pending.data, held)
    m.pending.size = 0
    at = scan(m, text, at, stop)
    put_chars(&m.joined, m.released, m.size)
    m.released, m.size = m.joined.data, m.joined.size
    return at


cdef Py_ssize_t expect(MatcherC *m, const Py_UCS4 *text, Py_ssize_t at, const char *tolerated) except -1:
    """Reads one character where only marks and `tolerated` ones should come; `m` has a mark, or what is neither."""
    if m.pending.size == 0 and among(text[at], tolerated):
        m.mark = NO_MARK
        m.size = 0
        return at + 1
    return scan(m, text, at, at + 1)


def scan_marks(MarkSet marks not None, list deltas not None):
    """Gives texts and marks in turn, as the specification's `scan` and `take` do (for tests)."""
    cdef MatcherC m
    cdef long long work = 0
    cdef Py_ssize_t at
    cdef Py_UCS4 *text
    cdef CharsC copy
    memset(&m, 0, sizeof(MatcherC))
    memset(&copy, 0, sizeof(CharsC))
    begin_matcher(&m, marks, &work)
    found, shown = [], ""
    try:
        for delta in deltas:
            copy.size = 0
            put_string(&copy, delta)
            text, at = copy.data, 0
            while at < copy.size:
                at = scan(&m, text, at, copy.size)
                shown += string_of(m.released, m.size)
                if m.mark != NO_MARK:
                    found += [shown, marks.marks[m.mark]]
                    shown = ""
        return [*found, shown + string_of(m.pending.data, m.pending.size)]
    finally:
        free(copy.data)
        free_matcher(&m)
