# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Turns a literal that is nearly JSON into JSON as it comes: Python's, and Gemma's with its own quote mark. Used by the native grammars.

`smg.parser.tool.grammar.literal` is the specification.
"""

from cpython.unicode cimport Py_UNICODE_TOLOWER
from libc.stdlib cimport free
from libc.string cimport memset

from smg_ext.chars cimport among, blank, put_ascii, put_char, put_chars, space_char, string_of
from smg_ext.marks cimport NO_MARK, begin_matcher, free_matcher, scan
from smg_ext.value cimport is_number, put_quoted

__all__ = []

cdef enum:
    EXPECT
    WORD
    QUOTE
    STRING
    ESCAPE
    MARKED
    AFTER

WORDS = {"True": b"true", "False": b"false", "None": b"null", "true": b"true", "false": b"false", "null": b"null", "none": b"null"}
PREFIXES = frozenset({"r", "b", "u", "f", "rb", "br", "fr", "rf"})


cdef void begin_literal(LiteralC *value, MarkSet mark, long long *work) noexcept:
    """Before a value; of one that was read before, the memory is kept."""
    value.state = EXPECT
    value.done = value.broken = value.comma = value.raw = value.triple = False
    value.stack.size = value.keys.size = value.taken.size = value.word.size = 0
    value.has_mark = mark is not None
    if mark is not None:
        begin_matcher(&value.mark, mark, work)


cdef void free_literal(LiteralC *value) noexcept:
    free_matcher(&value.mark)
    free(value.stack.data)
    free(value.keys.data)
    free(value.taken.data)
    free(value.word.data)
    memset(value, 0, sizeof(LiteralC))


cdef Py_ssize_t read_literal(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    """Appends the JSON that is certain; gives where it stopped: at the end, after the value, or at a fault."""
    while at < stop and not value.done and not value.broken:
        if value.state == STRING:
            at = _string(value, text, at, stop, out)
        elif value.state == WORD:
            at = _word(value, text, at, stop, out)
        elif value.state == EXPECT:
            at = _expect(value, text, at, out)
        elif value.state == AFTER:
            at = _after(value, text, at, out)
        elif value.state == QUOTE:
            at = _quote(value, text, at, out)
        elif value.state == ESCAPE:
            at = _escape(value, text, at, out)
        else:
            at = _marked(value, text, at, stop, out)
    return at


cdef int finish_literal(LiteralC *value, CharsC *out) except -1:
    """The output ends: appends what was held; the value is done if nothing is open."""
    if value.state == WORD:
        return _end_word(value, out)
    if value.state == QUOTE and value.taken.size == 2:
        put_ascii(out, b'""')
        _end_value(value)
    return 0


cdef int _begin(LiteralC *value, CharsC *out) except -1:
    if value.comma:
        put_ascii(out, b", ")
        value.comma = False
    return 0


cdef bint _in_word(Py_UCS4 char) noexcept:
    return not space_char(char) and not among(char, b",:=()[]{}'\"<")


cdef Py_ssize_t _expect(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, CharsC *out) except -1:
    cdef Py_UCS4 char = text[at]
    if value.has_mark and (value.mark.pending.size or char == '<'):
        return _open_mark(value, text, at, out)
    if blank(char):
        return at + 1
    if value.stack.size and char == value.stack.data[value.stack.size - 1]:
        return _close(value, at, out)
    if char == "'" or char == '"':
        _begin(value, out)
        _quoted(value, char, False)
    elif char == '[' or char == '(' or char == '{':
        _begin(value, out)
        put_char(&value.stack, ']' if char == '[' else ')' if char == '(' else '}')
        put_char(&value.keys, char == '{')
        put_char(out, '{' if char == '{' else '[')
    elif _in_word(char):
        _begin(value, out)
        value.taken.size = value.word.size = 0
        value.state = WORD
        return at
    else:
        value.broken = True
        return at
    return at + 1


cdef Py_ssize_t _open_mark(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, CharsC *out) except -1:
    at = scan(&value.mark, text, at, at + 1)
    if value.mark.mark != NO_MARK:
        _begin(value, out)
        put_char(out, '"')
        value.state = MARKED
    elif value.mark.size:
        value.mark.pending.size = 0
        value.broken = True
    return at


cdef Py_ssize_t _close(LiteralC *value, Py_ssize_t at, CharsC *out) except -1:
    value.stack.size -= 1
    value.keys.size -= 1
    value.comma = False
    put_char(out, '}' if value.stack.data[value.stack.size] == '}' else ']')
    _end_value(value)
    return at + 1


cdef void _end_value(LiteralC *value) noexcept:
    value.state = AFTER
    value.done = value.stack.size == 0


cdef int _quoted(LiteralC *value, Py_UCS4 quote, bint raw) except -1:
    value.quote = quote
    value.raw = raw
    value.triple = False
    value.taken.size = 0
    put_char(&value.taken, quote)
    value.state = QUOTE
    return 0


cdef Py_ssize_t _word(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    cdef Py_ssize_t begin = at
    while at < stop and _in_word(text[at]):
        at += 1
    if at > begin:
        put_chars(&value.word, text + begin, at - begin)
        return at
    if (text[at] == "'" or text[at] == '"') and _is_prefix(&value.word):
        _quoted(value, text[at], _is_raw(&value.word))
        return at + 1
    _end_word(value, out)
    return at


cdef bint _is_prefix(const CharsC *word):
    return 0 < word.size < 3 and string_of(word.data, word.size).lower() in PREFIXES


cdef bint _is_raw(const CharsC *word) noexcept:
    return Py_UNICODE_TOLOWER(word.data[0]) == 'r' or (word.size == 2 and Py_UNICODE_TOLOWER(word.data[1]) == 'r')


cdef int _end_word(LiteralC *value, CharsC *out) except -1:
    cdef CharsC *word = &value.word
    cdef bint key = value.keys.size > 0 and value.keys.data[value.keys.size - 1] != 0
    known = None if key or word.size > 5 else WORDS.get(string_of(word.data, word.size))
    if known is not None:
        put_ascii(out, <bytes>known)
    elif not key and is_number(word.data, word.size):
        put_chars(out, word.data, word.size)
    else:
        put_char(out, '"')
        put_quoted(out, word.data, word.size)
        put_char(out, '"')
    _end_value(value)
    return 0


cdef Py_ssize_t _quote(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, CharsC *out) except -1:
    """One or two quotes were read: an empty string, a triple quote, or the first character of a string."""
    if text[at] == value.quote:
        put_char(&value.taken, text[at])
        if value.taken.size == 3:
            value.triple = True
            _start_string(value, out)
        return at + 1
    if value.taken.size == 2:
        put_ascii(out, b'""')
        _end_value(value)
    else:
        _start_string(value, out)
    return at


cdef int _start_string(LiteralC *value, CharsC *out) except -1:
    put_char(out, '"')
    value.taken.size = 0
    value.state = STRING
    return 0


cdef Py_ssize_t _string(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    cdef Py_UCS4 char = text[at]
    cdef Py_ssize_t begin = at
    if char == value.quote:
        put_char(&value.taken, char)
        if value.taken.size == (3 if value.triple else 1):
            put_char(out, '"')
            _end_value(value)
        return at + 1
    put_quoted(out, value.taken.data, value.taken.size)
    value.taken.size = 0
    if char == '\\':
        value.state = ESCAPE
        return at + 1
    while at < stop and text[at] != '\\' and text[at] != value.quote:
        at += 1
    put_quoted(out, text + begin, at - begin)
    return at


cdef int _simple(Py_UCS4 char) noexcept:
    """The character that an escape stands for, -1 for none, -2 for nothing at all."""
    if char == '\n':
        return -2
    if char == 'n':
        return 0x0A
    if char == 't':
        return 0x09
    if char == 'r':
        return 0x0D
    if char == 'b':
        return 0x08
    if char == 'f':
        return 0x0C
    if char == 'a':
        return 0x07
    if char == 'v':
        return 0x0B
    if char == '0':
        return 0
    return <int>char if char == '\\' or char == "'" or char == '"' else -1


cdef Py_ssize_t _escape(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, CharsC *out) except -1:
    cdef Py_UCS4 char = text[at]
    cdef CharsC *taken = &value.taken
    cdef Py_UCS4 one
    cdef int simple
    if taken.size == 0:
        if not value.raw and (char == 'x' or char == 'u' or char == 'U'):
            put_char(taken, char)
            return at + 1
        simple = -1 if value.raw else _simple(char)
        if simple >= 0:
            one = <Py_UCS4>simple
            put_quoted(out, &one, 1)
        elif simple == -1:
            put_ascii(out, b"\\\\")
            put_quoted(out, &char, 1)
    elif among(char, b"0123456789abcdefABCDEF"):
        put_char(taken, char)
        if taken.size <= (2 if taken.data[0] == 'x' else 4 if taken.data[0] == 'u' else 8):
            return at + 1
        _put_code(taken, out)
    else:
        put_ascii(out, b"\\\\")
        put_quoted(out, taken.data, taken.size)
        at -= 1
    taken.size = 0
    value.state = STRING
    return at + 1


cdef int _put_code(const CharsC *taken, CharsC *out) except -1:
    """The JSON of a code escape; halves of a pair stay apart, a JSON reader joins them."""
    cdef Py_UCS4 one
    cdef long long number = int(string_of(taken.data + 1, taken.size - 1), 16)
    if taken.data[0] == 'u' or 0xD800 <= number <= 0xDFFF:  # no UTF-8 has a half by itself
        return put_ascii(out, f"\\u{number:04x}".encode())
    if number <= 0x10FFFF:
        one = <Py_UCS4>number
        return put_quoted(out, &one, 1)
    put_ascii(out, b"\\\\")
    return put_quoted(out, taken.data, taken.size)


cdef Py_ssize_t _marked(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    at = scan(&value.mark, text, at, stop)
    put_quoted(out, value.mark.released, value.mark.size)
    if value.mark.mark != NO_MARK:
        put_char(out, '"')
        _end_value(value)
    return at


cdef Py_ssize_t _after(LiteralC *value, const Py_UCS4 *text, Py_ssize_t at, CharsC *out) except -1:
    cdef Py_UCS4 char = text[at]
    cdef Py_UCS4 closer = value.stack.data[value.stack.size - 1]
    cdef Py_UCS4 *key = &value.keys.data[value.keys.size - 1]
    cdef bint in_dict = closer == '}'
    if blank(char):
        return at + 1
    if char == closer:
        return _close(value, at, out)
    if char == ',' and not (in_dict and key[0]):
        value.comma = True
        key[0] = in_dict
    elif (char == ':' or char == '=') and in_dict and key[0]:
        put_ascii(out, b": ")
        key[0] = 0
    else:
        value.broken = True
        return at
    value.state = EXPECT
    return at + 1
