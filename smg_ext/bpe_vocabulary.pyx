# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Reads the two large parts of a tokenizer.json straight into tables: as Python objects they would take ten times their size.

In: JSON, hostile. Out: a `Table`. The readers give 0; 1 without memory; -1 for what is no such JSON. Names are in GPT-2's byte alphabet
(openai/gpt-2 `encoder.py`, bytes_to_unicode): a token with another character in its name is one that no text gives.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memset

from smg_ext.bpe_characters cimport code_at, width_of
from smg_ext.bpe_merge cimport (
    IDS_MAX, ODD, RANKS_MAX, CallC, TableC, add_merge, add_token, find_token, index_tokens, make_merges,
)
from smg_ext.bpe_words cimport add_waiting, add_word, make_words

__all__ = ["Table"]

cdef enum:
    NAME_BYTES = 4096           # longer ones are refused
    NO_TOKEN = 0xFFFFFFFF


cdef struct ReaderC:
    const uint8_t *at
    const uint8_t *end
    uint8_t text[NAME_BYTES + 8]
    size_t size                 # of the text


cdef class Table:
    """Reads a vocabulary (`{"name": id, …}`) and its merges (`["a b", …]` or `[["a", "b"], …]`), names in GPT-2's byte alphabet.

    ValueError for what cannot be read, has a merge of what is no token, or is too large. `whole_first` as `ignore_merges` of the file;
    `drops`: a byte may be without a token, and then gives none.
    """

    def __cinit__(self, const unsigned char[::1] vocabulary, const unsigned char[::1] merges, *, bint whole_first=False, bint drops=False):
        cdef int status
        self.c.whole_first, self.c.drops = whole_first, drops
        memset(self.c.bytes, 0xFF, sizeof(self.c.bytes))
        status = _read_tokens(&self.c, &vocabulary[0] if vocabulary.shape[0] else NULL, <size_t>vocabulary.shape[0])
        if status == 0:
            status = index_tokens(&self.c) or make_words(&self.c)
        if status == 0:
            status = _read_merges(&self.c, &merges[0] if merges.shape[0] else NULL, <size_t>merges.shape[0])
        if status > 0:
            raise MemoryError()
        if status:
            raise ValueError("not a vocabulary of byte pairs")

    def __dealloc__(self):
        free(self.c.starts)
        free(self.c.lengths)
        free(self.c.whole)
        free(self.c.arena)
        free(self.c.names)
        free(self.c.merges)
        free(self.c.made)
        free(self.c.words)

    def __len__(self):
        return self.c.count

    def token(self, uint32_t token_id):
        """Gives the bytes of a token, its name as text when it is none of the byte alphabet, or None for an id without a token."""
        if token_id >= self.c.count or self.c.starts[token_id] == NO_TOKEN:
            return None
        cdef bytes content = PyBytes_FromStringAndSize(
            <char *>self.c.arena + self.c.starts[token_id], <Py_ssize_t>(self.c.lengths[token_id] & ~<uint32_t>ODD)
        )
        return content.decode() if self.c.lengths[token_id] & ODD else content

    def find(self, bytes content not None):
        """Gives the id of a token by its bytes, or None."""
        cdef uint32_t found = find_token(&self.c, <const uint8_t *>PyBytes_AS_STRING(content), <size_t>PyBytes_GET_SIZE(content))
        return None if found == NO_TOKEN else found

    def encode_word(self, bytes word not None):
        """Gives the ids of one word and the number of steps that they took (for tests)."""
        cdef CallC call
        cdef size_t i
        cdef const uint8_t *content = <const uint8_t *>PyBytes_AS_STRING(word)
        memset(&call, 0, sizeof(CallC))
        if not word:
            return [], 0
        try:
            add_word(&self.c, &call, content, <size_t>PyBytes_GET_SIZE(word), content + PyBytes_GET_SIZE(word))
            if add_waiting(&self.c, &call):
                raise MemoryError()
            return [call.ids[i] for i in range(call.count)], call.steps
        finally:
            free(call.ids)
            free(call.scratch)


cdef int _read_tokens(TableC *table, const uint8_t *data, size_t size) noexcept nogil:
    """Reads `{"name": id, …}`."""
    cdef ReaderC reader
    cdef uint8_t content[NAME_BYTES]
    cdef int length
    cdef int status
    cdef long long token_id
    reader.at, reader.end = data, data + size
    if not _take(&reader, 0x7B):
        return -1
    if _take(&reader, 0x7D):
        return 0
    while True:
        if _string(&reader) or not _take(&reader, 0x3A):
            return -1
        token_id = _number(&reader)
        if token_id < 0:
            return -1
        length = _bytes_of(reader.text, reader.size, content)
        if length < 0:
            status = add_token(table, <uint32_t>token_id, reader.text, <uint32_t>reader.size, True)
        else:
            status = add_token(table, <uint32_t>token_id, content, <uint32_t>length, False)
        if status:
            return status
        if _take(&reader, 0x7D):
            return 0
        if not _take(&reader, 0x2C):
            return -1


cdef int _read_merges(TableC *table, const uint8_t *data, size_t size) noexcept nogil:
    """Reads `["a b", …]` or `[["a", "b"], …]`, once to count them and once to keep them."""
    cdef long long count = _each_merge(NULL, data, size)
    cdef int status
    if count < 0 or count > RANKS_MAX:
        return -1
    status = make_merges(table, <size_t>count)
    if status == 0 and _each_merge(table, data, size) != count:
        status = -1
    return status


cdef long long _each_merge(TableC *table, const uint8_t *data, size_t size) noexcept nogil:
    cdef ReaderC reader
    cdef long long count = 0
    reader.at, reader.end = data, data + size
    if not _take(&reader, 0x5B):
        return -1
    if _take(&reader, 0x5D):
        return 0
    while True:
        if _merge(table, &reader):
            return -1
        count += 1
        if _take(&reader, 0x5D):
            return count
        if not _take(&reader, 0x2C):
            return -1


cdef int _merge(TableC *table, ReaderC *reader) noexcept nogil:
    cdef uint8_t joined[2 * NAME_BYTES]
    cdef int left
    cdef int right
    cdef size_t cut
    if _take(reader, 0x5B):
        if _string(reader):
            return -1
        left = _bytes_of(reader.text, reader.size, joined)
        if left < 0 or not _take(reader, 0x2C) or _string(reader):
            return -1
        right = _bytes_of(reader.text, reader.size, joined + left)
        if not _take(reader, 0x5D):
            return -1
    else:
        if _string(reader):
            return -1
        cut = 0
        while cut < reader.size and reader.text[cut] != 0x20:
            cut += 1
        if cut == reader.size:
            return -1
        left = _bytes_of(reader.text, cut, joined)
        if left < 0:
            return -1
        right = _bytes_of(reader.text + cut + 1, reader.size - cut - 1, joined + left)
    if left <= 0 or right <= 0:
        return -1
    return 0 if table == NULL else _known_merge(table, joined, <size_t>left, <size_t>right)


cdef int _known_merge(TableC *table, const uint8_t *joined, size_t left, size_t right) noexcept nogil:
    cdef uint32_t first = find_token(table, joined, left)
    cdef uint32_t second = find_token(table, joined + left, right)
    cdef uint32_t becomes = find_token(table, joined, left + right)
    if first == NO_TOKEN or second == NO_TOKEN or becomes == NO_TOKEN:
        return -1
    return add_merge(table, first, second, becomes)


cdef inline bint _take(ReaderC *reader, uint8_t byte) noexcept nogil:
    """Passes over spaces; takes the byte if it is there."""
    while reader.at < reader.end and (reader.at[0] == 0x20 or 0x09 <= reader.at[0] <= 0x0D):
        reader.at += 1
    if reader.at < reader.end and reader.at[0] == byte:
        reader.at += 1
        return True
    return False


cdef long long _number(ReaderC *reader) noexcept nogil:
    """An id; -1 for anything else."""
    cdef long long value = 0
    cdef const uint8_t *begin
    _take(reader, 0)
    begin = reader.at
    while reader.at < reader.end and 0x30 <= reader.at[0] <= 0x39 and value < IDS_MAX:
        value = value * 10 + reader.at[0] - 0x30
        reader.at += 1
    return -1 if reader.at == begin or value >= IDS_MAX else value


cdef int _string(ReaderC *reader) noexcept nogil:
    """Reads a string into `text`, as UTF-8."""
    cdef uint8_t byte
    cdef uint32_t code
    reader.size = 0
    if not _take(reader, 0x22):
        return -1
    while reader.at < reader.end and reader.size < NAME_BYTES:
        byte = reader.at[0]
        reader.at += 1
        if byte == 0x22:
            return 0 if _valid(reader.text, reader.size) else -1
        if byte != 0x5C:
            reader.text[reader.size] = byte
            reader.size += 1
            continue
        code = _escaped(reader)
        if code > 0x10FFFF:
            return -1
        _put(reader, code)
    return -1


cdef uint32_t _escaped(ReaderC *reader) noexcept nogil:
    """The character behind a backslash; one that is none for what JSON does not have."""
    cdef uint8_t byte
    cdef uint32_t code
    cdef uint32_t low
    if reader.at == reader.end:
        return NO_TOKEN
    byte = reader.at[0]
    reader.at += 1
    if byte == 0x22 or byte == 0x5C or byte == 0x2F:
        return byte
    if byte == 0x62:
        return 0x08
    if byte == 0x66:
        return 0x0C
    if byte == 0x6E:
        return 0x0A
    if byte == 0x72:
        return 0x0D
    if byte == 0x74:
        return 0x09
    if byte != 0x75:
        return NO_TOKEN
    code = _hex(reader)
    if not 0xD800 <= code < 0xE000:
        return code
    if code >= 0xDC00 or reader.end - reader.at < 2 or reader.at[0] != 0x5C or reader.at[1] != 0x75:
        return NO_TOKEN
    reader.at += 2
    low = _hex(reader)
    return 0x10000 + (code - 0xD800 << 10) + (low - 0xDC00) if 0xDC00 <= low < 0xE000 else NO_TOKEN


cdef uint32_t _hex(ReaderC *reader) noexcept nogil:
    cdef uint32_t code = 0
    cdef uint8_t byte
    cdef int _i
    if reader.end - reader.at < 4:
        return NO_TOKEN
    for _i in range(4):
        byte = reader.at[0]
        reader.at += 1
        if 0x30 <= byte <= 0x39:
            code = code << 4 | (byte - 0x30)
        elif 0x61 <= (byte | 0x20) <= 0x66:
            code = code << 4 | ((byte | 0x20) - 0x61 + 10)
        else:
            return NO_TOKEN
    return code


cdef void _put(ReaderC *reader, uint32_t code) noexcept nogil:
    """Appends a character to the text; there is room for one more than NAME_BYTES."""
    cdef uint8_t *out = reader.text + reader.size
    if code < 0x80:
        out[0] = <uint8_t>code
        reader.size += 1
    elif code < 0x800:
        out[0], out[1] = <uint8_t>(0xC0 | code >> 6), <uint8_t>(0x80 | code & 0x3F)
        reader.size += 2
    elif code < 0x10000:
        out[0], out[1], out[2] = <uint8_t>(0xE0 | code >> 12), <uint8_t>(0x80 | code >> 6 & 0x3F), <uint8_t>(0x80 | code & 0x3F)
        reader.size += 3
    else:
        out[0], out[1] = <uint8_t>(0xF0 | code >> 18), <uint8_t>(0x80 | code >> 12 & 0x3F)
        out[2], out[3] = <uint8_t>(0x80 | code >> 6 & 0x3F), <uint8_t>(0x80 | code & 0x3F)
        reader.size += 4


cdef bint _valid(const uint8_t *text, size_t size) noexcept nogil:
    """True for UTF-8."""
    cdef size_t at = 0
    cdef size_t width
    cdef size_t i
    cdef uint32_t code
    if size > NAME_BYTES:
        return False
    while at < size:
        if text[at] < 0x80:
            at += 1
            continue
        width = width_of(text[at])
        if text[at] < 0xC2 or text[at] > 0xF4 or at + width > size:
            return False
        for i in range(1, width):
            if text[at + i] & 0xC0 != 0x80:
                return False
        code = code_at(text + at, width)
        if (width == 3 and (code < 0x800 or 0xD800 <= code < 0xE000)) or (width == 4 and not 0x10000 <= code <= 0x10FFFF):
            return False
        at += width
    return True


cdef int _bytes_of(const uint8_t *text, size_t size, uint8_t *out) noexcept nogil:
    """Writes the bytes that a name stands for, and gives how many; -1 when it has a character that stands for none."""
    cdef size_t at = 0
    cdef size_t width
    cdef int count = 0
    cdef uint32_t code
    while at < size:
        width = width_of(text[at])
        code = code_at(text + at, width)
        at += width
        if code < 0x21 or 0x7F <= code <= 0xA0 or code == 0xAD or code > 0x143:
            return -1
        if code == 0x143:
            code = 0xAD
        elif code >= 0x121:
            code = code - 0x121 + 0x7F
        elif code >= 0x100:
            code -= 0x100
        out[count] = <uint8_t>code
        count += 1
    return count
