# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Finds added tokens in text: at each place the longest, one after the other, as the reference library's automaton does.

In: their contents, and whether they take spaces beside them along; then valid UTF-8. Out: where the next one stands. A tree of bytes is
walked from each place at which one may begin, so a byte is looked at as often as the longest token has bytes at most, and nearly always
once.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr

from smg_ext.bpe_characters cimport ANY_SPACE, CharactersC, kind_at

__all__ = ["Marks"]

cdef enum:
    MARK_BYTES = 1024           # a longer one is refused


cdef class Marks:
    """Added tokens, each `(content, id, left, right)`; `left`, `right`: it takes the spaces on that side along. ValueError for one that is
    empty or too long."""

    def __cinit__(self, list tokens not None):
        cdef bytes content
        cdef uint32_t i = 0
        cdef int byte
        total = sum(len(token[0].encode()) for token in tokens)
        self.c.nodes = <NodeC *>calloc(<size_t>total + 1, sizeof(NodeC))
        self.c.words = <WordC *>calloc(<size_t>len(tokens) + 1, sizeof(WordC))
        if self.c.nodes == NULL or self.c.words == NULL:
            raise MemoryError()
        self.c.node_count = 1
        self.c.count = <uint32_t>len(tokens)
        for text, token_id, left, right in tokens:
            content = text.encode()
            if not 0 < len(content) <= MARK_BYTES:
                raise ValueError("an added token is empty or too long")
            self.c.words[i].token_id, self.c.words[i].left, self.c.words[i].right = token_id, left, right
            _add(&self.c, content, <size_t>len(content), i)
            i += 1
        self.c.first = -1
        firsts = [byte for byte in range(256) if self.c.starts[byte]]
        if len(firsts) == 1:
            self.c.first = firsts[0]

    def __dealloc__(self):
        free(self.c.nodes)
        free(self.c.words)

    def __len__(self):
        return self.c.count


cdef void _add(MarksC *marks, const uint8_t *content, size_t size, uint32_t word) noexcept nogil:
    cdef uint32_t *link = &marks.starts[content[0]]
    cdef size_t i
    for i in range(size):
        while link[0] and marks.nodes[link[0]].byte != content[i]:
            link = &marks.nodes[link[0]].sibling
        if not link[0]:
            link[0] = marks.node_count
            marks.nodes[marks.node_count].byte = content[i]
            marks.node_count += 1
        if i + 1 < size:
            link = &marks.nodes[link[0]].child
    marks.nodes[link[0]].word = word + 1


cdef bint next_mark(
    const MarksC *marks, const CharactersC *table, const uint8_t *data, size_t size, size_t at, MarkC *mark
) noexcept nogil:
    """Finds the first mark from `at` on, the spaces that it takes along included."""
    cdef size_t i = at
    cdef size_t end
    cdef const uint8_t *place
    cdef const WordC *word
    while i < size:
        if marks.first >= 0:
            place = <const uint8_t *>memchr(data + i, marks.first, size - i)
            if place == NULL:
                return False
            i = <size_t>(place - data)
        elif marks.starts[data[i]] == 0:
            i += 1
            continue
        word = _longest(marks, data, size, i, &end)
        if word == NULL:
            i += 1
            continue
        mark.token_id = word.token_id
        mark.begin = _spaces_before(table, data, at, i) if word.left else i
        mark.end = _spaces_behind(table, data, size, end) if word.right else end
        return True
    return False


cdef const WordC *_longest(const MarksC *marks, const uint8_t *data, size_t size, size_t at, size_t *end) noexcept nogil:
    cdef const WordC *found = NULL
    cdef uint32_t node = marks.starts[data[at]]
    while node:
        at += 1
        if marks.nodes[node].word:
            found = &marks.words[marks.nodes[node].word - 1]
            end[0] = at
        if at == size:
            break
        node = marks.nodes[node].child
        while node and marks.nodes[node].byte != data[at]:
            node = marks.nodes[node].sibling
    return found


cdef size_t _spaces_before(const CharactersC *table, const uint8_t *data, size_t begin, size_t at) noexcept nogil:
    cdef size_t place
    cdef size_t width
    while at > begin:
        place = at - 1
        while place > begin and data[place] & 0xC0 == 0x80:
            place -= 1
        if not kind_at(table, data + place, &width) & ANY_SPACE:
            break
        at = place
    return at


cdef size_t _spaces_behind(const CharactersC *table, const uint8_t *data, size_t size, size_t at) noexcept nogil:
    cdef size_t width
    while at < size and kind_at(table, data + at, &width) & ANY_SPACE:
        at += width
    return at
