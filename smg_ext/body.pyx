# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Where one value stands in the JSON of an object, found without reading the values. Used by `smg.api.openai.division`, whose
`plain_value_span` is the specification.

Nothing is checked that does not have to be: what is cut out and what is left over are read by a JSON decoder, or have been.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

__all__ = ["value_span"]


def value_span(bytes body not None, bytes name not None):
    """Gives begin and end of the value that the object in `body` has under `name`.

    None when it has none or several, when a key is written with an escape, and when there is no object or it does not end.
    """
    cdef const char *at = PyBytes_AS_STRING(body)
    cdef const char *end = at + PyBytes_GET_SIZE(body)
    cdef const char *begin = NULL
    cdef const char *finish = NULL
    if _find(at, end, PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name), &begin, &finish) != 1:
        return None
    return begin - at, finish - at


cdef int _find(const char *at, const char *end, const char *name, size_t size, const char **begin, const char **finish) noexcept nogil:
    """How often the name is there; -1 for what is no object."""
    cdef const char *key
    cdef const char *after_key
    cdef const char *value
    cdef int found = 0
    at = _spaces(at, end)
    if at == end or at[0] != c"{":
        return -1
    at = _spaces(at + 1, end)
    while at < end and at[0] == c'"':
        key = at + 1
        at = _text(at, end)
        if at == NULL or memchr(key, c"\\", <size_t>(at - key)) != NULL:
            return -1
        value = _spaces(at, end)
        if value == end or value[0] != c":":
            return -1
        value = _spaces(value + 1, end)
        after_key = at - 1
        at = _value(value, end)
        if at == NULL or at == value:
            return -1
        if <size_t>(after_key - key) == size and memcmp(key, name, size) == 0:
            found += 1
            begin[0], finish[0] = value, at
        at = _spaces(at, end)
        if at == end or at[0] != c",":
            break
        at = _spaces(at + 1, end)
    if at == end or at[0] != c"}" or _spaces(at + 1, end) != end:
        return -1
    return found


cdef const char *_spaces(const char *at, const char *end) noexcept nogil:
    while at < end and (at[0] == c" " or at[0] == c"\n" or at[0] == c"\r" or at[0] == c"\t"):
        at += 1
    return at


cdef const char *_text(const char *at, const char *end) noexcept nogil:
    """Gives the place after a text that begins here; NULL when it does not end."""
    cdef const char *quote
    cdef const char *slash
    at += 1
    while True:
        quote = <const char *>memchr(at, c'"', <size_t>(end - at))
        if quote == NULL:
            return NULL
        slash = quote
        while slash > at and (slash - 1)[0] == c"\\":
            slash -= 1
        at = quote + 1
        if (quote - slash) % 2 == 0:
            return at


cdef const char *_value(const char *at, const char *end) noexcept nogil:
    """Gives the place after a value that begins here; NULL when it does not end, or there is none."""
    cdef const char *begin = at
    if at == end:
        return NULL
    if at[0] == c'"':
        return _text(at, end)
    if at[0] == c"{" or at[0] == c"[":
        return _brackets(at, end)
    while at < end and not (at[0] in b"[]{},\" \n\r\t"):
        at += 1
    if at == begin or at == end or at[0] in b'[{"':
        return NULL
    return at


cdef const char *_brackets(const char *at, const char *end) noexcept nogil:
    cdef Py_ssize_t depth = 0
    while at < end:
        if at[0] == c'"':
            at = _text(at, end)
            if at == NULL:
                return NULL
            continue
        if at[0] == c"{" or at[0] == c"[":
            depth += 1
        elif at[0] == c"}" or at[0] == c"]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL
