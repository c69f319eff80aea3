"""Text of a parser that grows: code points, as Python's own strings count them. Inline, for this is where parsers spend their time."""

from cpython.unicode cimport Py_UNICODE_ISALNUM, Py_UNICODE_ISSPACE, PyUnicode_FromKindAndData
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memmove


cdef extern from "Python.h":
    Py_UCS4 *PyUnicode_AsUCS4(object text, Py_UCS4 *buffer, Py_ssize_t size, int end) except NULL


cdef struct CharsC:
    Py_UCS4 *data
    Py_ssize_t size
    Py_ssize_t capacity


cdef inline int reserve(CharsC *chars, Py_ssize_t more) except -1:
    """Makes room for more characters after those that are there."""
    cdef Py_ssize_t need = chars.size + more
    cdef Py_UCS4 *larger
    if need > chars.capacity:
        larger = <Py_UCS4 *>realloc(chars.data, <size_t>(need * 2 + 16) * sizeof(Py_UCS4))
        if larger == NULL:
            raise MemoryError()
        chars.data = larger
        chars.capacity = need * 2 + 16
    return 0


cdef inline int put_chars(CharsC *chars, const Py_UCS4 *text, Py_ssize_t size) except -1:
    if size:
        reserve(chars, size)
        memcpy(chars.data + chars.size, text, <size_t>size * sizeof(Py_UCS4))
        chars.size += size
    return 0


cdef inline int put_char(CharsC *chars, Py_UCS4 char) except -1:
    reserve(chars, 1)
    chars.data[chars.size] = char
    chars.size += 1
    return 0


cdef inline int put_ascii(CharsC *chars, const char *text) except -1:
    while text[0]:
        put_char(chars, <Py_UCS4><unsigned char>text[0])
        text += 1
    return 0


cdef inline int put_string(CharsC *chars, str text) except -1:
    cdef Py_ssize_t size = len(text)
    if size:
        reserve(chars, size)
        PyUnicode_AsUCS4(text, chars.data + chars.size, size, 0)
        chars.size += size
    return 0


cdef inline void drop_first(CharsC *chars, Py_ssize_t count) noexcept:
    chars.size -= count
    if chars.size and count:
        memmove(chars.data, chars.data + count, <size_t>chars.size * sizeof(Py_UCS4))


cdef inline str string_of(const Py_UCS4 *text, Py_ssize_t size):
    return PyUnicode_FromKindAndData(4, text, size) if size else ""


cdef inline bint blank(Py_UCS4 char) noexcept:
    """What JSON calls white space."""
    return char == ' ' or char == '\n' or char == '\t' or char == '\r'


cdef inline bint among(Py_UCS4 char, const char *those) noexcept:
    """`those`: in ASCII."""
    while those[0]:
        if char == <Py_UCS4><unsigned char>those[0]:
            return True
        those += 1
    return False


cdef inline bint word_char(Py_UCS4 char) noexcept:
    r"""What \\w is in a regular expression."""
    if char < 128:
        return 'a' <= char <= 'z' or '0' <= char <= '9' or 'A' <= char <= 'Z' or char == '_'
    return Py_UNICODE_ISALNUM(char)


cdef inline bint space_char(Py_UCS4 char) noexcept:
    r"""What \\s is."""
    return char == ' ' or 0x09 <= char <= 0x0D or 0x1C <= char <= 0x1F or (char >= 128 and Py_UNICODE_ISSPACE(char))
