# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Bytes of tokens, UTF-8 in pieces, stop strings, JSON escapes: what the native stream machine is made of.

Each has a plain-Python twin: `smg.tokenizer.decoder.BytesDecoder`, `smg.pipeline.stop.StopMatcher`, msgspec's JSON encoder.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

__all__ = ["StopStrings", "Utf8Decoder", "Vocabulary", "escape_json"]

cdef const char *HEX = b"0123456789abcdef"


cdef class Vocabulary:
    """A vocabulary: token i stands for `pieces[i]`; `special` ids are those that can be left out of the text.

    Without `text` the bytes of all tokens are one UTF-8 text. With it, a piece is text, or bytes for a token of a byte of a character, or
    None for an id without a token; and the beginning of the text loses up to `strips` characters `strip`.
    """

    def __cinit__(self, list pieces not None, special, *, bint text=False, str strip not None="", uint32_t strips=0):
        cdef size_t i
        cdef size_t total = 0
        cdef bytes piece
        self.c.count = len(pieces)
        self.c.offsets = <uint32_t *>malloc((self.c.count + 1) * sizeof(uint32_t))
        self.c.special = <uint8_t *>calloc(self.c.count + 1, 1)
        self.c.kinds = <uint8_t *>calloc(self.c.count + 1, 1) if text else NULL
        if self.c.offsets == NULL or self.c.special == NULL or (text and self.c.kinds == NULL):
            raise MemoryError()
        if strips:
            self.c.strip, self.c.strips = <uint8_t>strip.encode("ascii")[0], strips
        for one in pieces:
            total += 0 if one is None else len(one.encode()) if isinstance(one, str) else len(one)
        self.c.data = <uint8_t *>malloc(total + 1)
        if self.c.data == NULL:
            raise MemoryError()
        total = 0
        for i in range(self.c.count):
            one = pieces[i]
            piece = b"" if one is None else one.encode() if isinstance(one, str) else one
            if text:
                self.c.kinds[i] = PIECE_NONE if one is None else PIECE_TEXT if isinstance(one, str) else PIECE_BYTE
            self.c.offsets[i] = <uint32_t>total
            memcpy(self.c.data + total, PyBytes_AS_STRING(piece), <size_t>PyBytes_GET_SIZE(piece))
            total += <size_t>PyBytes_GET_SIZE(piece)
        self.c.offsets[self.c.count] = <uint32_t>total
        for token_id in special:
            if 0 <= token_id < len(pieces):
                self.c.special[<size_t>token_id] = 1

    def __dealloc__(self):
        free(self.c.offsets)
        free(self.c.data)
        free(self.c.special)
        free(self.c.kinds)

    def decode(self, *groups, bint skip_special=False):
        """Gives the text that became certain with each group of ids, and at last what was held back (for tests)."""
        cdef DecoderC state
        cdef BufferC out
        memset(&state, 0, sizeof(DecoderC))
        memset(&out, 0, sizeof(BufferC))
        texts = []
        try:
            for group in groups:
                for token_id in group:
                    if skip_special and token_id < len(self) and self.c.special[<size_t>token_id]:
                        continue
                    if decode_token(&self.c, &state, &out, token_id):
                        raise MemoryError()
                texts.append(PyBytes_FromStringAndSize(<char *>out.data, <Py_ssize_t>out.size).decode())
                out.size = 0
            if decode_finish(&self.c, &state, &out):
                raise MemoryError()
            return [*texts, PyBytes_FromStringAndSize(<char *>out.data, <Py_ssize_t>out.size).decode()]
        finally:
            free(out.data)
            free(state.run.data)

    def __len__(self):
        return self.c.count


cdef class StopStrings:
    """The Aho-Corasick automaton of some stop strings, over their UTF-8 bytes. Immutable: one can serve every choice of a request.

    Bytes serve as well as characters, for it is fed whole characters and no character's bytes begin inside another's.
    """

    def __cinit__(self, tuple strings not None):
        cdef int32_t i
        cdef bytes string
        encoded = [text.encode("utf-8", "surrogatepass") for text in strings]
        self.c.states = <StopStateC *>calloc(sum(map(len, encoded)) + 1, sizeof(StopStateC))
        self.c.lengths = <int32_t *>calloc(len(encoded) + 1, sizeof(int32_t))
        self.c.begins = <int32_t *>calloc(len(encoded) + 1, sizeof(int32_t))
        if self.c.states == NULL or self.c.lengths == NULL or self.c.begins == NULL:
            raise MemoryError()
        self.c.states[0].word = -1
        self.c.count = 1
        for i in range(<int32_t>len(encoded)):
            string = encoded[i]
            self.c.lengths[i] = <int32_t>PyBytes_GET_SIZE(string)
            if self.c.lengths[i] == 0:
                raise ValueError("a stop string is empty")
            self.c.begins[i] = <int32_t>self.c.strings.size
            if put(&self.c.strings, <const uint8_t *>PyBytes_AS_STRING(string), <size_t>self.c.lengths[i]):
                raise MemoryError()
            _add(&self.c, self.c.strings.data + self.c.begins[i], self.c.lengths[i], i)
        if _link(&self.c):
            raise MemoryError()

    def __dealloc__(self):
        free(self.c.states)
        free(self.c.lengths)
        free(self.c.begins)
        free(self.c.strings.data)


cdef class Utf8Decoder:
    """UTF-8 in pieces, as Python's incremental decoder with `replace` gives it (for tests)."""

    cdef Utf8C state

    def feed(self, const unsigned char[::1] data):
        """Gives the characters that are complete."""
        return self._run(&data[0] if data.shape[0] else NULL, <size_t>data.shape[0], False)

    def flush(self):
        """Gives what was held back."""
        return self._run(NULL, 0, True)

    cdef object _run(self, const uint8_t *data, size_t size, bint final):
        cdef BufferC out
        memset(&out, 0, sizeof(BufferC))
        try:
            if utf8_finish(&self.state, &out) if final else utf8_feed(&self.state, &out, data, size):
                raise MemoryError()
            return PyBytes_FromStringAndSize(<char *>out.data, <Py_ssize_t>out.size).decode()
        finally:
            free(out.data)


def escape_json(const unsigned char[::1] text):
    """Gives the inside of a JSON string (for tests)."""
    cdef BufferC out
    memset(&out, 0, sizeof(BufferC))
    try:
        if put_json(&out, &text[0] if text.shape[0] else NULL, <size_t>text.shape[0]):
            raise MemoryError()
        return PyBytes_FromStringAndSize(<char *>out.data, <Py_ssize_t>out.size)
    finally:
        free(out.data)


cdef int put(BufferC *buffer, const uint8_t *data, size_t size) noexcept nogil:
    cdef size_t need = buffer.size + size
    cdef uint8_t *larger
    if need > buffer.capacity:
        larger = <uint8_t *>realloc(buffer.data, need * 2)
        if larger == NULL:
            return -1
        buffer.data = larger
        buffer.capacity = need * 2
    if size:
        memcpy(buffer.data + buffer.size, data, size)
    buffer.size = need
    return 0


cdef int put_json(BufferC *buffer, const uint8_t *text, size_t size) noexcept nogil:
    """Appends valid UTF-8 with JSON's escapes: as few as JSON asks for, lower-case hex."""
    cdef size_t start = 0
    cdef size_t i
    cdef uint8_t byte
    cdef uint8_t escape[6]
    cdef size_t length
    for i in range(size):
        byte = text[i]
        if byte >= 0x20 and byte != 0x22 and byte != 0x5C:
            continue
        escape[0] = 0x5C
        length = 2
        if byte == 0x22 or byte == 0x5C:
            escape[1] = byte
        elif byte == 0x0A:
            escape[1] = 0x6E
        elif byte == 0x0D:
            escape[1] = 0x72
        elif byte == 0x09:
            escape[1] = 0x74
        elif byte == 0x08:
            escape[1] = 0x62
        elif byte == 0x0C:
            escape[1] = 0x66
        else:
            escape[1] = 0x75
            escape[2] = 0x30
            escape[3] = 0x30
            escape[4] = <uint8_t>HEX[byte >> 4]
            escape[5] = <uint8_t>HEX[byte & 15]
            length = 6
        if put(buffer, text + start, i - start) or put(buffer, escape, length):
            return -1
        start = i + 1
    return put(buffer, text + start, size - start)


cdef int put_number(BufferC *buffer, long long value) noexcept nogil:
    cdef uint8_t digits[24]
    cdef size_t at = 24
    cdef unsigned long long rest = <unsigned long long>value if value >= 0 else <unsigned long long>(-value)
    while True:
        at -= 1
        digits[at] = <uint8_t>(0x30 + rest % 10)
        rest = rest // 10
        if rest == 0:
            break
    if value < 0:
        at -= 1
        digits[at] = 0x2D
    return put(buffer, digits + at, 24 - at)


cdef int decode_token(const VocabularyC *vocabulary, DecoderC *state, BufferC *out, uint32_t token_id) noexcept nogil:
    """Appends the characters that a token makes certain, as `smg.tokenizer.decoder` has it; an id without a token gives none."""
    cdef const uint8_t *data
    cdef size_t size
    if token_id >= vocabulary.count:
        return 0
    data = vocabulary.data + vocabulary.offsets[token_id]
    size = vocabulary.offsets[token_id + 1] - vocabulary.offsets[token_id]
    if vocabulary.kinds == NULL:
        return utf8_feed(&state.utf8, out, data, size)
    if vocabulary.kinds[token_id] == PIECE_NONE:
        return 0
    if vocabulary.kinds[token_id] == PIECE_BYTE:
        return put(&state.run, data, size)
    if _end_run(vocabulary, state, out):
        return -1
    return _put_stripped(vocabulary, state, out, data, size)


cdef int decode_finish(const VocabularyC *vocabulary, DecoderC *state, BufferC *out) noexcept nogil:
    """Appends what was held back."""
    return utf8_finish(&state.utf8, out) if vocabulary.kinds == NULL else _end_run(vocabulary, state, out)


cdef int _end_run(const VocabularyC *vocabulary, DecoderC *state, BufferC *out) noexcept nogil:
    """A run of byte tokens is a text as a whole, or as many U+FFFD as it has bytes."""
    cdef size_t size = state.run.size
    cdef size_t _i
    if size == 0:
        return 0
    state.run.size = 0
    if utf8_valid(state.run.data, size):
        return _put_stripped(vocabulary, state, out, state.run.data, size)
    state.begun = True
    for _i in range(size):
        if put(out, b"\xef\xbf\xbd", 3):
            return -1
    return 0


cdef int _put_stripped(const VocabularyC *vocabulary, DecoderC *state, BufferC *out, const uint8_t *data, size_t size) noexcept nogil:
    cdef size_t i = 0
    if not state.begun:
        while i < size and state.stripped < vocabulary.strips and data[i] == vocabulary.strip:
            state.stripped += 1
            i += 1
        state.begun = i < size
    return put(out, data + i, size - i)


cdef int utf8_feed(Utf8C *state, BufferC *out, const uint8_t *data, size_t size) noexcept nogil:
    """Appends the characters that are complete; a maximal ill-formed part becomes one U+FFFD (Unicode 15, section 3.9)."""
    cdef size_t i = 0
    cdef size_t run
    while i < size:
        if state.size == 0:
            run = i
            while i < size and data[i] < 0x80:
                i += 1
            if i > run and put(out, data + run, i - run):
                return -1
            if i == size:
                break
        if state.size and not _continues(state, data[i]) and not (state.size == 1 and _surrogate(state.held[0], data[i])):
            if utf8_finish(state, out):  # the byte itself is looked at again
                return -1
            continue
        state.held[state.size] = data[i]
        state.size += 1
        i += 1
        if state.size == 1 and _length(state.held[0]) == 0:
            if utf8_finish(state, out):
                return -1
        elif state.size == _length(state.held[0]):
            if put(out, state.held, state.size):
                return -1
            state.size = 0
    return 0


cdef int utf8_finish(Utf8C *state, BufferC *out) noexcept nogil:
    """Gives up what is held: U+FFFD, twice for the start of a surrogate, whose second byte is ill-formed by itself."""
    cdef int count = 0 if state.size == 0 else 2 if state.size == 2 and _surrogate(state.held[0], state.held[1]) else 1
    state.size = 0
    return put(out, b"\xef\xbf\xbd\xef\xbf\xbd", <size_t>(3 * count)) if count else 0


cdef bint _surrogate(uint8_t lead, uint8_t byte) noexcept nogil:
    """True for the first two bytes of a surrogate. Python's decoder tells that they are ill-formed only when it sees what follows."""
    return lead == 0xED and 0xA0 <= byte <= 0xBF


cdef bint utf8_valid(const uint8_t *data, size_t size) noexcept nogil:
    """True when the bytes are well-formed UTF-8."""
    cdef Utf8C state
    cdef size_t i
    state.size = 0
    for i in range(size):
        if state.size == 0 and data[i] < 0x80:
            continue
        if state.size and not _continues(&state, data[i]):
            return False
        state.held[state.size] = data[i]
        state.size += 1
        if _length(state.held[0]) == 0:
            return False
        if state.size == _length(state.held[0]):
            state.size = 0
    return state.size == 0


cdef size_t _length(uint8_t lead) noexcept nogil:
    """Bytes of the character that starts with `lead`, 0 when none does."""
    if lead < 0x80:
        return 1
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    if 0xF0 <= lead <= 0xF4:
        return 4
    return 0


cdef bint _continues(const Utf8C *state, uint8_t byte) noexcept nogil:
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    if state.size == 2 and _surrogate(state.held[0], state.held[1]):
        return False
    if state.size == 1:
        if state.held[0] == 0xE0:
            low = 0xA0
        elif state.held[0] == 0xED:
            high = 0x9F
        elif state.held[0] == 0xF0:
            low = 0x90
        elif state.held[0] == 0xF4:
            high = 0x8F
    return low <= byte <= high


cdef int32_t _find(const StopsC *stops, int32_t state, uint8_t byte) noexcept nogil:
    cdef int32_t child = stops.states[state].child
    while child and stops.states[child].byte != byte:
        child = stops.states[child].sibling
    return child


cdef void _add(StopsC *stops, const uint8_t *string, int32_t size, int32_t word) noexcept nogil:
    cdef int32_t state = 0
    cdef int32_t child
    cdef int32_t i
    stops.starts[string[0]] = 1
    for i in range(size):
        child = _find(stops, state, string[i])
        if child == 0:
            child = stops.count
            stops.count += 1
            stops.states[child].byte = string[i]
            stops.states[child].sibling = stops.states[state].child
            stops.states[child].depth = i + 1
            stops.states[child].word = -1
            stops.states[state].child = child
        state = child
    if stops.states[state].word < 0:
        stops.states[state].word = word


cdef int _link(StopsC *stops) noexcept nogil:
    """Failure links in breadth-first order; a state also ends the word that its longest ending suffix ends."""
    cdef int32_t *queue = <int32_t *>malloc(<size_t>stops.count * sizeof(int32_t))
    cdef int32_t head = 0
    cdef int32_t tail = 1
    cdef int32_t state
    cdef int32_t child
    cdef int32_t link
    if queue == NULL:
        return -1
    queue[0] = 0
    while head < tail:
        state = queue[head]
        head += 1
        child = stops.states[state].child
        while child:
            link = stops.states[state].fail
            while state and link and not _find(stops, link, stops.states[child].byte):
                link = stops.states[link].fail
            stops.states[child].fail = _find(stops, link, stops.states[child].byte) if state else 0
            if stops.states[child].word < 0:
                stops.states[child].word = stops.states[stops.states[child].fail].word
            queue[tail] = child
            tail += 1
            child = stops.states[child].sibling
    free(queue)
    return 0


cdef int stop_feed(const StopsC *stops, int32_t *state, BufferC *held, size_t old, bint armed, size_t *end) noexcept nogil:
    """Looks at held.data[old:]; `end` becomes how much of `held` is safe to show. Gives the stop string that ended, or -1.

    After a match, `end` is where the match ends: what stands before it begins `lengths[word]` bytes earlier.
    """
    cdef size_t i = old
    cdef int32_t at = state[0]
    cdef int32_t child
    while i < held.size:
        if at == 0 and not stops.starts[held.data[i]]:
            i += 1
            continue
        child = _find(stops, at, held.data[i])
        while at and child == 0:
            at = stops.states[at].fail
            child = _find(stops, at, held.data[i])
        at = child
        i += 1
        if armed and stops.states[at].word >= 0:
            state[0] = at
            end[0] = i
            return stops.states[at].word
    state[0] = at
    end[0] = held.size - <size_t>stops.states[at].depth
    return -1
