# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Splits the thinking block from the text of one choice: text in, in any division, runs of text and of thoughts out.

For families that think between marks and write nothing else of their own. `smg.parser.machine.Machine` with `smg.parser.margin.Margin` is
the specification. Used by `smg_ext.machine`.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from smg_ext.text cimport BufferC, StopsC, StopStrings, put, stop_feed

__all__ = ["ThoughtMarks"]

cdef enum:
    OPEN = 0                    # opens the block; inside it means nothing
    LAYOUT = 1                  # belongs to the format
    CLOSE = 2                   # closes the block
    CLOSE_SHOWN = 3             # closes the block and is text


cdef class ThoughtMarks:
    """A family's marks, as in `smg.parser.reasoning.ReasoningSpec`. Immutable: one serves every request."""

    def __cinit__(self, *, tuple starts not None, tuple ends not None, tuple also_ends=(), tuple layout=()):
        if not starts or not ends:
            raise ValueError("a thinking block needs its marks")
        outside = tuple(dict.fromkeys((*starts, *ends, *layout)))
        inside = tuple(dict.fromkeys((*starts, *ends, *also_ends)))
        self.outside, self.inside = StopStrings(outside), StopStrings(inside)
        self.c.outside, self.c.inside = &self.outside.c, &self.inside.c
        self.c.outside_roles = <uint8_t *>calloc(len(outside), 1)
        self.c.inside_roles = <uint8_t *>calloc(len(inside), 1)
        if self.c.outside_roles == NULL or self.c.inside_roles == NULL:
            raise MemoryError()
        for i, mark in enumerate(outside):
            self.c.outside_roles[<size_t>i] = OPEN if mark in starts else LAYOUT
        for i, mark in enumerate(inside):
            self.c.inside_roles[<size_t>i] = OPEN if mark in starts else CLOSE if mark in outside else CLOSE_SHOWN

    def __dealloc__(self):
        free(self.c.outside_roles)
        free(self.c.inside_roles)


cdef void begin_thoughts(ThoughtsC *t, bint inside) noexcept nogil:
    """`t` is all zero. `inside`: the prompt opened the block."""
    t.inside = t.thinking = t.content.marked = inside
    t.thoughts.marked = True


cdef void free_thoughts(ThoughtsC *t) noexcept nogil:
    free(t.pending.data)
    free(t.content.held.data)
    free(t.thoughts.held.data)
    free(t.withheld.data)
    free(t.text.data)
    free(t.runs.data)


cdef int feed_thoughts(const MarksC *marks, ThoughtsC *t, bint stream, const uint8_t *data, size_t size) noexcept nogil:
    """Takes more text; not `stream`: thoughts come in one piece, before what follows them."""
    cdef size_t old = t.pending.size
    cdef size_t end
    cdef const StopsC *found
    cdef int word
    if put(&t.pending, data, size):
        return -1
    while t.pending.size > old:
        found = marks.inside if t.inside else marks.outside
        word = stop_feed(found, &t.state, &t.pending, old, True, &end)
        if _show(t, stream, t.pending.data, end - <size_t>found.lengths[word] if word >= 0 else end):
            return -1
        if word < 0:
            _forget(&t.pending, end)
            return 0
        t.state = 0
        if _mark(marks, t, stream, word, t.pending.data + end - found.lengths[word], <size_t>found.lengths[word]):
            return -1
        _forget(&t.pending, end)
        old = 0
    return 0


cdef int finish_thoughts(ThoughtsC *t, bint stream) noexcept nogil:
    """The output has ended: a partial mark is text."""
    if _show(t, stream, t.pending.data, t.pending.size):
        return -1
    t.pending.size = 0
    if _end_margin(t, stream, True) or _end_margin(t, stream, False):
        return -1
    return _release(t)


cdef int _mark(const MarksC *marks, ThoughtsC *t, bint stream, int word, const uint8_t *mark, size_t size) noexcept nogil:
    cdef uint8_t role
    if not t.inside:
        t.content.marked = True
        if marks.outside_roles[word] == OPEN:
            t.inside = t.thoughts.marked = True
        return 0
    role = marks.inside_roles[word]
    if role == OPEN:
        return 0
    t.inside = False
    t.thoughts.marked = t.content.marked = True
    return _show(t, stream, mark, size) if role == CLOSE_SHOWN else 0


cdef void _forget(BufferC *buffer, size_t count) noexcept nogil:
    buffer.size -= count
    if buffer.size and count:
        memmove(buffer.data, buffer.data + count, buffer.size)


cdef bint _blank(uint8_t byte) noexcept nogil:
    return byte == 0x20 or byte == 0x09 or byte == 0x0D or byte == 0x0A


cdef int _show(ThoughtsC *t, bint stream, const uint8_t *data, size_t size) noexcept nogil:
    """Text of the open channel, past its margin."""
    cdef bint thought = t.inside
    cdef MarginC *margin = &t.thoughts if thought else &t.content
    cdef size_t body = size
    cdef size_t first = 0
    while body and _blank(data[body - 1]):
        body -= 1
    if body:
        if not margin.started and margin.marked:
            while _blank(data[first]):
                first += 1
            if put(&margin.held, data, first):
                return -1
            _forget(&margin.held, _last_line(&margin.held))
        if _emit(t, stream, thought, margin.held.data, margin.held.size) or _emit(t, stream, thought, data + first, body - first):
            return -1
        margin.held.size = 0
        margin.started = True
        margin.marked = False
    return _space(t, stream, thought, margin, data + body, size - body) if size > body else 0


cdef int _space(ThoughtsC *t, bint stream, bint thought, MarginC *margin, const uint8_t *data, size_t size) noexcept nogil:
    """White space: held from the first newline on, for it may stand beside a mark."""
    cdef size_t line = 0
    if margin.held.size or margin.marked or not margin.started:
        return put(&margin.held, data, size)
    while line < size and data[line] != 0x0A:
        line += 1
    if _emit(t, stream, thought, data, line):
        return -1
    return put(&margin.held, data + line, size - line)


cdef size_t _last_line(const BufferC *held) noexcept nogil:
    """Where the last line of held white space begins."""
    cdef size_t at = held.size
    while at and held.data[at - 1] != 0x0A:
        at -= 1
    return at


cdef int _end_margin(ThoughtsC *t, bint stream, bint thought) noexcept nogil:
    cdef MarginC *margin = &t.thoughts if thought else &t.content
    if margin.marked:
        return 0
    return _emit(t, stream, thought, margin.held.data, margin.held.size)


cdef int _emit(ThoughtsC *t, bint stream, bint thought, const uint8_t *data, size_t size) noexcept nogil:
    if size == 0:
        return 0
    t.thinking = thought
    if thought and not stream:
        return put(&t.withheld, data, size)
    return -1 if _release(t) or _run(t, thought, data, size) else 0


cdef int _release(ThoughtsC *t) noexcept nogil:
    if t.withheld.size == 0:
        return 0
    if _run(t, True, t.withheld.data, t.withheld.size):
        return -1
    t.withheld.size = 0
    return 0


cdef int _run(ThoughtsC *t, bint thought, const uint8_t *data, size_t size) noexcept nogil:
    """Appends to the last run, or to a new one where it is of the other kind."""
    cdef RunC *runs = <RunC *>t.runs.data
    cdef size_t count = t.runs.size // sizeof(RunC)
    cdef RunC run
    if put(&t.text, data, size):
        return -1
    if count and runs[count - 1].thought == <size_t>thought:
        runs[count - 1].end = t.text.size
        return 0
    run.end = t.text.size
    run.thought = <size_t>thought
    return put(&t.runs, <const uint8_t *>&run, sizeof(RunC))
