# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Follows a JSON value through text that comes in pieces, and makes JSON of values that are plain text. Used by the native grammars.

`smg.parser.tool.grammar.value` and `typed` are the specification.
"""

from cpython.unicode cimport Py_UNICODE_ISDECIMAL

from smg_ext.chars cimport among, put_ascii, put_char, put_chars, put_string, space_char, string_of, word_char
from libc.stdlib cimport free

__all__ = []

cdef enum:
    NULL_MAX = 16               # a longer text is not the word null, whatever white space it has

STRING = frozenset({"string"})
MAYBE_TEXT = frozenset({"string", "null"})


cdef inline Py_UCS4 _short(Py_UCS4 char) noexcept:
    """The letter that stands for a control character, 0 for none."""
    if char == '\n':
        return 'n'
    if char == '\r':
        return 'r'
    if char == '\t':
        return 't'
    if char == '\b':
        return 'b'
    return 'f' if char == '\f' else 0


cdef void _escape(Py_UCS4 char, char *code) noexcept:
    """Writes what stands for a character that no JSON string may have: up to seven bytes, the last of them 0."""
    cdef const char *digits = b"0123456789abcdef"
    cdef Py_UCS4 letter = _short(char)
    code[0] = 0x5C
    code[2] = 0
    if char >= 0x20:
        code[1] = <char>char
    elif letter:
        code[1] = <char>letter
    else:
        code[1] = 0x75
        code[2] = code[3] = 0x30
        code[4] = digits[<size_t>char >> 4]
        code[5] = digits[<size_t>char & 15]
        code[6] = 0


cdef int put_quoted(CharsC *out, const Py_UCS4 *text, Py_ssize_t size) except -1:
    """Appends the inside of a JSON string."""
    cdef Py_ssize_t begin = 0
    cdef Py_ssize_t at
    cdef char code[8]
    for at in range(size):
        if text[at] >= 0x20 and text[at] != '"' and text[at] != '\\':
            continue
        put_chars(out, text + begin, at - begin)
        begin = at + 1
        _escape(text[at], code)
        put_ascii(out, code)
    return put_chars(out, text + begin, size - begin)


cdef int put_key(CharsC *out, str key, bint first) except -1:
    """Appends what stands before a member's value in an object."""
    cdef CharsC plain
    plain.data, plain.size, plain.capacity = NULL, 0, 0
    put_ascii(out, b'{"' if first else b', "')
    try:
        put_string(&plain, key)
        put_quoted(out, plain.data, plain.size)
    finally:
        free(plain.data)
    return put_ascii(out, b'": ')


cdef bint is_number(const Py_UCS4 *text, Py_ssize_t size) noexcept:
    """True when all of the text is a number as JSON writes it."""
    cdef Py_ssize_t at = 1 if size and text[0] == '-' else 0
    cdef Py_ssize_t begin
    if at == size or not '0' <= text[at] <= '9':
        return False
    begin = at = at + 1
    while text[begin - 1] != '0' and at < size and Py_UNICODE_ISDECIMAL(text[at]):
        at += 1
    if at < size and text[at] == '.':
        begin = at = at + 1
        while at < size and Py_UNICODE_ISDECIMAL(text[at]):
            at += 1
        if at == begin:
            return False
    if at < size and (text[at] == 'e' or text[at] == 'E'):
        at += 1
        if at < size and (text[at] == '+' or text[at] == '-'):
            at += 1
        begin = at
        while at < size and Py_UNICODE_ISDECIMAL(text[at]):
            at += 1
        if at == begin:
            return False
    return at == size


cdef void begin_json(JsonValueC *value) noexcept:
    """Before a value; of one that was read before, the memory is kept."""
    value.open.size = 0
    value.kind = 0
    value.done = value.broken = value.in_string = value.escaped = False


cdef Py_ssize_t read_json(JsonValueC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    """Appends what to pass on; gives where it stopped: at the end, after the value, or at what breaks it."""
    while at < stop and not value.done and not value.broken:
        if value.in_string:
            at = _string(value, text, at, stop, out)
        elif value.kind == 0 or value.open.size:
            at = _outside(value, text, at, stop, out)
        else:
            at = _scalar(value, text, at, stop, out)
    return at


cdef Py_ssize_t _string(JsonValueC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    cdef Py_ssize_t begin = at
    cdef Py_UCS4 char = text[at]
    cdef char code[8]
    if value.escaped:
        value.escaped = False
        put_char(out, '\\')
        if among(char, b'"\\/bfnrtu'):
            put_char(out, char)
        else:  # a backslash that needs none
            put_char(out, '\\')
            if char < 0x20 and _short(char):
                put_char(out, '\\')
                put_char(out, _short(char))
            else:
                put_char(out, char)
        return at + 1
    while at < stop and text[at] >= 0x20 and text[at] != '"' and text[at] != '\\':
        at += 1
    if at > begin:
        put_chars(out, text + begin, at - begin)
        return at
    if char == '\\':
        value.escaped = True
    elif char == '"':
        put_char(out, char)
        value.in_string = False
        value.done = value.open.size == 0
    else:
        _escape(char, code)
        put_ascii(out, code)
    return at + 1


cdef Py_ssize_t _outside(JsonValueC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    cdef Py_UCS4 char = text[at]
    cdef Py_ssize_t begin = at
    if value.kind == 0:
        if char == ' ' or char == '\t' or char == '\r' or char == '\n':
            return at + 1
        value.kind = char
    if char == '"':
        value.in_string = True
    elif char == '{' or char == '[':
        put_char(&value.open, char)
    elif char == '}' or char == ']':
        if value.open.size == 0 or value.open.data[value.open.size - 1] != ('{' if char == '}' else '['):
            value.broken = True
            return at
        value.open.size -= 1
        value.done = value.open.size == 0
    elif value.open.size == 0:
        return _scalar(value, text, at, stop, out)
    else:
        while at < stop and (word_char(text[at]) or space_char(text[at]) or among(text[at], b":,.+-")):
            at += 1
        value.broken = at == begin
        put_chars(out, text + begin, at - begin)
        return at
    put_char(out, char)
    return at + 1


cdef Py_ssize_t _scalar(JsonValueC *value, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t stop, CharsC *out) except -1:
    cdef Py_ssize_t begin = at
    while at < stop and (word_char(text[at]) or among(text[at], b".+-")):
        at += 1
    if at > begin:
        put_chars(out, text + begin, at - begin)
    elif word_char(value.kind) or among(value.kind, b".+-"):
        value.done = True
    else:
        value.broken = True
    return at


cdef int begin_typed(TypedValueC *value, Collector sink, object kinds, bint trim) except -1:
    """`kinds`: the JSON types that the value may have. `trim`: one newline at each end is layout."""
    value.parts.size = 0
    value.string = kinds == STRING
    value.maybe = kinds == MAYBE_TEXT
    value.trim = value.fresh = trim
    value.held = value.streams = False
    return _stream(value, sink) if value.string else 0


cdef int _stream(TypedValueC *value, Collector sink) except -1:
    value.streams = True
    sink.put_ascii_arguments(b'"')
    _quote(sink, value.parts.data, value.parts.size)
    value.parts.size = 0
    return 0


cdef int _quote(Collector sink, const Py_UCS4 *text, Py_ssize_t size) except -1:
    """Passes text on as the inside of a string, without a copy in between where nothing needs a backslash."""
    cdef Py_ssize_t begin = 0
    cdef Py_ssize_t at
    cdef char code[8]
    for at in range(size):
        if text[at] >= 0x20 and text[at] != '"' and text[at] != '\\':
            continue
        sink.put_arguments(text + begin, at - begin)
        begin = at + 1
        _escape(text[at], code)
        sink.put_ascii_arguments(code)
    return sink.put_arguments(text + begin, size - begin)


cdef int add_typed(TypedValueC *value, Collector sink, const Py_UCS4 *text, Py_ssize_t size) except -1:
    """More of the value."""
    cdef Py_UCS4 newline = '\n'
    if size == 0:
        return 0
    if value.fresh:
        value.fresh = False
        if text[0] == '\n':
            text, size = text + 1, size - 1
    if value.trim:
        if value.held and size:
            value.held = False
            _pass(value, sink, &newline, 1)
        if size and text[size - 1] == '\n':
            size -= 1
            value.held = True
    return _pass(value, sink, text, size)


cdef int _pass(TypedValueC *value, Collector sink, const Py_UCS4 *text, Py_ssize_t size) except -1:
    if value.streams:
        return _quote(sink, text, size)
    put_chars(&value.parts, text, size)
    if value.maybe and not _begins_null(&value.parts):
        return _stream(value, sink)
    return 0


cdef bint _begins_null(const CharsC *parts):
    """True while the text may become the word null, in its ways to be written."""
    if parts.size > NULL_MAX:
        return False
    word = string_of(parts.data, parts.size).strip().lower()
    return "null".startswith(word) or "none".startswith(word)


cdef int end_typed(TypedValueC *value, Collector sink, object kinds, object as_json) except -1:
    """The value is complete."""
    if value.streams:
        return sink.put_ascii_arguments(b'"')
    return _whole(sink, as_json(string_of(value.parts.data, value.parts.size), kinds))


cdef int _whole(Collector sink, str text) except -1:
    cdef CharsC made
    made.data, made.size, made.capacity = NULL, 0, 0
    try:
        put_string(&made, text)
        sink.put_arguments(made.data, made.size)
    finally:
        free(made.data)
    return 0


cdef int cut_typed(TypedValueC *value, Collector sink) except -1:
    """The output ended inside the value: what came is passed on, without an end."""
    if value.streams:
        return sink.put_ascii_arguments(b"\\n") if value.held else 0
    sink.put_arguments(value.parts.data, value.parts.size)
    return sink.put_ascii_arguments(b"\n") if value.held else 0
