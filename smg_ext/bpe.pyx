# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Encodes text by byte pairs: finds the added tokens, cuts what is between them into words, and gives the words' ids.

In: text; a vocabulary, a program of splits and a table of added tokens, which `smg.tokenizer.native` reads from a tokenizer.json. Out:
ids, in a list or packed. The specification is the reference library, huggingface/tokenizers: added tokens that are not `normalized` are
looked for in the text as it is; each piece between them is composed, where the vocabulary does so; then the others are looked for in
it. Of several at one place the longest counts. Threads may encode at once; above LONG bytes the GIL is free meanwhile.

A piece that needs a step in Python (composing, or the cache of pieces) is handed out of the native part, and the rest goes on behind
it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from smg_ext.atomics cimport smg_peek, smg_poke
from smg_ext.bpe_ascii cimport cut_block
from smg_ext.bpe_characters cimport CharactersC, entry_at
from smg_ext.bpe_marks cimport Marks, MarkC, MarksC, next_mark
from smg_ext.bpe_merge cimport CallC, TableC, add_id, add_ids
from smg_ext.bpe_splits cimport STEPS_MAX, Splits, SplitsC, next_word, start_words
from smg_ext.bpe_vocabulary cimport Table
from smg_ext.bpe_words cimport add_block, add_waiting, add_word

__all__ = ["BytePairs"]

cdef enum:
    LONG = 16384                # bytes of a text for which it pays to free the GIL
    PIECE_BYTES = 384           # shorter pieces cost no more to encode than to look up
    SLOTS = 1 << 13             # pieces of which it is known that they came
    COMPOSED = 3 << 5           # of an entry: composing may change it, or is not to be left to Python
    DONE = 0
    NO_MEMORY = 1
    PIECE = 2


cdef struct EncoderC:
    const TableC *table
    const SplitsC *splits
    const MarksC *raw           # NULL where none are seen
    const MarksC *later
    bint composes
    size_t piece_bytes          # from which on a piece is looked up, 0 = none


cdef extern from *:
    """
    #include <string.h>
    #define smg_forget(object) Py_DECREF(object)
    static inline size_t smg_ascii(const unsigned char *at, size_t size) {  /* bytes of ASCII from `at` on */
        size_t i = 0;
        uint64_t eight;
        for (; i + 8 <= size; i += 8) {
            memcpy(&eight, at + i, 8);
            if (eight & 0x8080808080808080u)
                break;
        }
        while (i < size && at[i] < 0x80)
            i++;
        return i;
    }
    static inline uint64_t smg_piece_hash(const uint8_t *at, size_t size, uint64_t secret) {  /* of 32 bytes or more */
        uint64_t states[4] = {secret ^ size, secret + 0x9E3779B97F4A7C15u, secret ^ 0xA0761D6478BD642Fu, ~secret}, parts[4];
        const uint8_t *last = at + size - 32;
        for (;; at = at + 32 < last ? at + 32 : last) {
            memcpy(parts, at, 32);
            for (int i = 0; i < 4; i++)
                states[i] = smg_mix(states[i] ^ parts[i], 0xD6E8FEB86659FD93u);
            if (at == last)
                break;
        }
        states[0] = smg_mix(states[0] ^ states[1], 0xD6E8FEB86659FD93u);
        return smg_mix(states[0] ^ smg_mix(states[2] ^ states[3], secret | 1), 0xA0761D6478BD642Fu);
    }
    """
    uint64_t smg_piece_hash(const uint8_t *at, size_t size, uint64_t secret) noexcept nogil
    size_t smg_ascii(const uint8_t *at, size_t size) noexcept nogil
    void _forget "smg_forget"(PyObject *)


cdef class BytePairs:
    """An encoder. `raw` and `later`: added tokens that are looked for before and after composing. `compose`: None where nothing is."""

    cdef readonly Table table
    cdef readonly Splits splits
    cdef readonly Marks raw
    cdef readonly Marks later
    cdef object compose
    cdef object pieces
    cdef uint64_t *came         # keys of pieces that came
    cdef uint64_t secret
    cdef PyObject **numbers
    cdef uint32_t number_count

    def __cinit__(
        self, Table table not None, Splits splits not None, Marks raw not None, Marks later not None, *, uint32_t ids, compose=None
    ):
        self.table, self.splits, self.raw, self.later, self.compose = table, splits, raw, later, compose
        self.numbers = <PyObject **>calloc(ids + 1, sizeof(PyObject *))
        if self.numbers == NULL:
            raise MemoryError()
        self.number_count = ids

    def __dealloc__(self):
        cdef uint32_t i
        if self.numbers != NULL:
            for i in range(self.number_count):
                if self.numbers[i] != NULL:
                    _forget(self.numbers[i])
        free(self.numbers)
        free(self.came)

    def remember(self, pieces, *, uint64_t secret):
        """Looks pieces of some length up in a cache from their second coming on.

        `get(key)` gives what `put(key, …, size=…)` keeps, or None; `missed()` counts what is not looked for. The `secret` is for keys, that
        nobody may make two pieces take turns in one place.
        """
        if self.came == NULL:
            self.came = <uint64_t *>calloc(SLOTS, sizeof(uint64_t))
        if self.came == NULL:
            raise MemoryError()
        self.pieces, self.secret = pieces, secret

    def encode(self, str text not None):
        """Gives the ids of a text; UnicodeEncodeError when it has half a surrogate pair."""
        return self._encoded([(text, True)], False)

    def encode_packed(self, str text not None):
        """The same as bytes: four for an id, in the machine's order."""
        return self._encoded([(text, True)], True)

    def encode_segments(self, list segments not None):
        """Gives the ids of texts, one after the other; added tokens are seen only in those with True."""
        return self._encoded(segments, False)

    def encode_segments_packed(self, list segments not None):
        """The same as bytes."""
        return self._encoded(segments, True)

    def count_steps(self, str text not None):
        """Gives how many steps the merging of a text takes (for tests)."""
        cdef CallC call
        memset(&call, 0, sizeof(CallC) - sizeof(call.words))
        try:
            self._text(&call, text, True)
            return call.steps
        finally:
            free(call.ids)
            free(call.scratch)

    cdef object _encoded(self, list segments, bint packed):
        cdef CallC call
        memset(&call, 0, sizeof(CallC) - sizeof(call.words))
        try:
            for text, marked in segments:
                self._text(&call, text, marked)
            if packed:
                return PyBytes_FromStringAndSize(<char *>call.ids, <Py_ssize_t>(call.count * sizeof(uint32_t)))
            return self._listed(&call)
        finally:
            free(call.ids)
            free(call.scratch)

    cdef int _text(self, CallC *call, str text, bint marked) except -1:
        """Appends the ids of a text."""
        cdef Py_ssize_t length
        cdef const uint8_t *data = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &length)
        cdef EncoderC encoder
        cdef size_t begin = 0
        cdef size_t end = 0
        cdef int status
        self._encoder(&encoder, marked)
        while True:
            if length >= LONG:
                with nogil:
                    status = _encode_text(&encoder, call, data, <size_t>length, &begin, &end)
            else:
                status = _encode_text(&encoder, call, data, <size_t>length, &begin, &end)
            if status == DONE:
                return 0
            if status == NO_MEMORY:
                raise MemoryError()
            self._piece(&encoder, call, data + begin, end - begin, marked)
            begin = end

    cdef void _encoder(self, EncoderC *encoder, bint marked) noexcept:
        encoder.table = &self.table.c
        encoder.splits = &self.splits.c
        encoder.raw = &self.raw.c if marked and self.raw.c.count else NULL
        encoder.later = &self.later.c if marked and self.later.c.count else NULL
        encoder.composes = self.compose is not None
        encoder.piece_bytes = PIECE_BYTES if self.pieces is not None else 0

    cdef int _piece(self, EncoderC *encoder, CallC *call, const uint8_t *data, size_t size, bint marked) except -1:
        """Appends the ids of a piece between raw marks, from the cache or with what Python does to it."""
        cdef uint64_t key = 0
        cdef size_t begin = call.count
        cdef bint kept = self.pieces is not None and size >= PIECE_BYTES
        cdef bytes ids
        if kept:
            key = smg_piece_hash(data, size, self.secret + marked)
            kept = self._came_before(key)
            if kept and self._recalled(call, key, data, size, marked):
                return 0
        if self.compose is not None and _may_compose(encoder.splits.characters, data, data + size):
            piece = self.compose(data[:size].decode()).encode()
            self._whole_piece(encoder, call, <const uint8_t *>PyBytes_AS_STRING(piece), <size_t>PyBytes_GET_SIZE(piece))
        else:
            self._whole_piece(encoder, call, data, size)
        if kept:
            ids = PyBytes_FromStringAndSize(<char *>(call.ids + begin), <Py_ssize_t>((call.count - begin) * sizeof(uint32_t)))
            self.pieces.put(key, (data[:size], bool(marked), ids), size=size + <size_t>len(ids))
        return 0

    cdef bint _came_before(self, uint64_t key) except -1:
        """False at a piece's first coming: a flood of pieces that come once is neither copied nor kept."""
        cdef uint64_t *slot = &self.came[key % SLOTS]
        if smg_peek(slot) == key:
            return True
        smg_poke(slot, key)
        self.pieces.missed()
        return False

    cdef bint _recalled(self, CallC *call, uint64_t key, const uint8_t *data, size_t size, bint marked) except -1:
        """Appends the ids of a piece that is kept. It is compared whole: no text is taken for another."""
        cdef tuple known = self.pieces.get(key)
        cdef bytes piece
        cdef bytes ids
        if known is None:
            return False
        piece, ids = known[0], known[2]
        if known[1] != marked or <size_t>len(piece) != size or memcmp(PyBytes_AS_STRING(piece), data, size):
            return False
        if add_ids(call, <const uint32_t *>PyBytes_AS_STRING(ids), <size_t>len(ids) // sizeof(uint32_t)):
            raise MemoryError()
        return True

    cdef int _whole_piece(self, EncoderC *encoder, CallC *call, const uint8_t *data, size_t size) except -1:
        cdef int status
        if size >= LONG:
            with nogil:
                status = _encode_piece(encoder, call, data, data + size)
        else:
            status = _encode_piece(encoder, call, data, data + size)
        if status:
            raise MemoryError()
        return 0

    cdef list _listed(self, CallC *call):
        """The ids as a list; all lists share their numbers."""
        cdef list ids = PyList_New(<Py_ssize_t>call.count)
        cdef size_t i
        cdef object number
        for i in range(call.count):
            number = self._number(call.ids[i])
            Py_INCREF(number)
            PyList_SET_ITEM(ids, <Py_ssize_t>i, number)
        return ids

    cdef inline object _number(self, uint32_t token_id):
        cdef object number
        if token_id >= self.number_count:
            return token_id
        if self.numbers[token_id] == NULL:
            number = token_id
            Py_INCREF(number)
            self.numbers[token_id] = <PyObject *>number
        return <object>self.numbers[token_id]


cdef int _encode_text(
    const EncoderC *encoder, CallC *call, const uint8_t *data, size_t size, size_t *begin, size_t *end
) noexcept nogil:
    """Appends the ids of a text from `begin` on. PIECE: up to `begin` it is done, and Python is to see to the piece up to `end`."""
    cdef MarkC mark
    cdef size_t at = begin[0]
    cdef size_t stop
    cdef bint found
    while at < size:
        found = encoder.raw != NULL and next_mark(encoder.raw, encoder.splits.characters, data, size, at, &mark)
        stop = mark.begin if found else size
        if stop > at:
            if _needs_python(encoder, data + at, data + stop):
                begin[0], end[0] = at, stop
                return PIECE
            if _encode_piece(encoder, call, data + at, data + stop):
                return NO_MEMORY
        if not found:
            break
        if add_id(call, mark.token_id):
            return NO_MEMORY
        at = mark.end
    return DONE


cdef inline bint _needs_python(const EncoderC *encoder, const uint8_t *at, const uint8_t *end) noexcept nogil:
    if encoder.piece_bytes and <size_t>(end - at) >= encoder.piece_bytes:
        return True
    return encoder.composes and _may_compose(encoder.splits.characters, at, end)


cdef bint _may_compose(const CharactersC *table, const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef size_t width
    while True:
        at += smg_ascii(at, <size_t>(end - at))
        if at == end:
            return False
        if entry_at(table, at, &width) & COMPOSED:
            return True
        at += width


cdef int _encode_piece(const EncoderC *encoder, CallC *call, const uint8_t *data, const uint8_t *end) noexcept nogil:
    """Appends the ids of a piece that is composed."""
    cdef MarkC mark
    cdef size_t at = 0
    cdef size_t size = <size_t>(end - data)
    if encoder.later == NULL:
        return _encode_words(encoder, call, data, end)
    while at < size:
        if not next_mark(encoder.later, encoder.splits.characters, data, size, at, &mark):
            return _encode_words(encoder, call, data + at, end)
        if mark.begin > at and _encode_words(encoder, call, data + at, data + mark.begin):
            return NO_MEMORY
        if add_id(call, mark.token_id):
            return NO_MEMORY
        at = mark.end
    return 0


cdef int _encode_words(const EncoderC *encoder, CallC *call, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Appends the ids of text without added tokens."""
    cdef const SplitsC *splits = encoder.splits
    cdef const uint8_t *bounds[STEPS_MAX]
    cdef const uint8_t *cut
    cdef uint64_t cuts
    start_words(bounds, at)
    while at < end:
        if splits.ascii.known and at[0] < 0x80 and (end - at == 1 or at[1] < 0x80):  # else the first word is not of ASCII
            cuts = cut_block(&splits.ascii, at, <size_t>(end - at))
            if cuts:
                at = add_block(encoder.table, call, at, end, cuts)
                if at == NULL:
                    return NO_MEMORY
                continue
        cut = next_word(splits, bounds, at, end)
        if add_word(encoder.table, call, at, <size_t>(cut - at), end):
            return NO_MEMORY
        at = cut
    return add_waiting(encoder.table, call)
