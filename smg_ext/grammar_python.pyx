# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native grammars of calls as Python writes them: `[name(key='value'), other()]`, and JSON calls that are Python literals.

`smg.parser.tool.grammar.pythonic` and `transduced` are the specification.
"""

from cpython.unicode cimport Py_UNICODE_ISDIGIT
from libc.stdlib cimport free

from smg_ext.chars cimport CharsC, blank, put_char, put_chars, string_of, word_char
from smg_ext.collector cimport Collector
from smg_ext.grammar cimport BLANKS_MAX, NAME_MAX, Grammar, Reader
from smg_ext.literal cimport LiteralC, begin_literal, finish_literal, free_literal, read_literal
from smg_ext.marks cimport NO_MARK, MarkSet, MatcherC, begin_matcher, free_matcher, scan
from smg_ext.value cimport put_key

__all__ = ["LiteralGrammar", "PythonGrammar"]

cdef enum:
    BETWEEN
    NAME
    ARGUMENT
    VALUE
    AFTER
    BROKEN


cdef class PythonGrammar(Grammar):
    """`closes`: marks that end a section. Without an opening mark only known names in a list are calls."""

    cdef MarkSet closes
    cdef MarkSet nothing
    cdef str firsts

    def __cinit__(self, *, tuple closes, **_options):
        self.closes, self.nothing = MarkSet(closes), MarkSet(())
        self.firsts = "".join([mark[0] for mark in closes])

    cdef Reader reader(self, Collector sink, str opened):
        cdef _PythonCalls made = _PythonCalls.__new__(_PythonCalls)
        made.bare = not opened
        made.firsts = "" if made.bare else self.firsts
        begin_matcher(&made.closes, self.nothing if made.bare else self.closes, &sink.work)
        made.begin(self, sink, opened)
        return made


cdef bint _in_name(Py_UCS4 char) noexcept:
    return word_char(char) or char == '.' or char == '-'


cdef class _PythonCalls(Reader):
    """States: between calls, in a name, before an argument, in a value, after it, and in a call that is no Python."""

    cdef bint bare
    cdef bint listed
    cdef bint first
    cdef str firsts
    cdef MatcherC closes
    cdef int state
    cdef CharsC blanks
    cdef CharsC called
    cdef CharsC word
    cdef list keys
    cdef LiteralC value

    def __dealloc__(self):
        free_matcher(&self.closes)
        free_literal(&self.value)
        free(self.blanks.data)
        free(self.called.data)
        free(self.word.data)

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.state == VALUE:
            return self.in_value(text, at, size)
        if self.state == BETWEEN:
            return self.between(text, at)
        if self.state == NAME:
            return self.in_name(text, at)
        if self.state == ARGUMENT:
            return self.argument(text, at)
        return self.after(text, at) if self.state == AFTER else self.broken(text, at, size)

    cdef int finish(self) except -1:
        if self.state == VALUE:
            self.piece.size = 0
            finish_literal(&self.value, &self.piece)
            self.sink.put_arguments(self.piece.data, self.piece.size)
        elif self.state == NAME or (self.state == BETWEEN and not self.count):
            if self.bare:
                self.sink.show(self.raw.data, self.raw.size)
            else:
                self.cut()
        return 0

    cdef Py_ssize_t between(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef Py_UCS4 char = text[at]
        if self.closes.pending.size or char in self.firsts:
            return self.close_mark(&self.closes, text, at)
        if blank(char) or (self.count and (char == ',' or char == ';')):
            put_char(&self.blanks, char)
            if self.blanks.size > BLANKS_MAX and not self.count:
                self.fail()
        elif char == '[' and not self.listed and not self.count:
            self.listed = True
        elif char == ']' and self.listed and self.count:
            self.listed = False
            self.done = not self.firsts
        elif _in_name(char) and (self.listed or not self.bare):
            self.called.size = 0
            self.state = NAME
            return at
        elif self.count:
            self.end(self.blanks.data, self.blanks.size)
            put_char(&self.unread, char)
        else:
            self.fail()
        return at + 1

    cdef Py_ssize_t in_name(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef Py_UCS4 char = text[at]
        if _in_name(char) and self.called.size < NAME_MAX:
            put_char(&self.called, char)
            return at + 1
        name = string_of(self.called.data, self.called.size)
        if char == '(' and (not self.bare or self.count or name in self.sink.schemas):
            self.name(name, None)
            properties = self.sink.schemas.get(name, {}).get("properties")
            self.keys = list(properties) if isinstance(properties, dict) else []
            self.first = True
            self.word.size = 0
            self.state = ARGUMENT
        elif self.count:
            self.end(self.blanks.data, self.blanks.size)
            put_chars(&self.unread, self.called.data, self.called.size)
            put_char(&self.unread, char)
        else:
            self.fail()
        return at + 1

    cdef Py_ssize_t argument(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef Py_UCS4 char = text[at]
        cdef CharsC *word = &self.word
        if _in_name(char) and word.size < NAME_MAX and (word.size or not (Py_UNICODE_ISDIGIT(char) or char == '-' or char == '.')):
            put_char(word, char)
        elif blank(char):
            return at + 1
        elif (char == '=' or char == ':') and word.size:
            self.key(string_of(word.data, word.size))
        elif (char == ',' or char == ')') and not word.size:
            return self.after(text, at)
        else:
            self.key(self.keys[0] if self.keys else "argument")
            self.piece.size = 0
            read_literal(&self.value, word.data, 0, word.size, &self.piece)
            self.sink.put_arguments(self.piece.data, self.piece.size)
            return at
        return at + 1

    cdef int key(self, str key) except -1:
        if key in self.keys:
            self.keys.remove(key)
        self.piece.size = 0
        put_key(&self.piece, key, self.first)
        self.sink.put_arguments(self.piece.data, self.piece.size)
        self.first = False
        begin_literal(&self.value, None, &self.sink.work)
        self.state = VALUE
        return 0

    cdef Py_ssize_t in_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        self.piece.size = 0
        at = read_literal(&self.value, text, at, size, &self.piece)
        self.sink.put_arguments(self.piece.data, self.piece.size)
        if self.value.done:
            self.state = AFTER
        elif self.value.broken:
            self.state = BROKEN
        return at

    cdef Py_ssize_t after(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef Py_UCS4 char = text[at]
        if char == ',':
            self.word.size = 0
            self.state = ARGUMENT
        elif char == ')':
            if not self.first:
                self.sink.put_ascii_arguments(b"}")
            self.close()
            self.blanks.size = 0
            self.state = BETWEEN
        elif not blank(char):
            self.state = BROKEN
            return at
        return at + 1

    cdef Py_ssize_t broken(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        """The call reaches up to the closing mark; without one it ends here, and the rest is text."""
        if not self.firsts:
            self.close()
            self.done = True
            return at
        at = scan(&self.closes, text, at, size)
        self.sink.put_arguments(self.closes.released, self.closes.size)
        if self.closes.mark != NO_MARK:
            self.close()
            self.done = True
        return at


cdef class LiteralGrammar(Grammar):
    """One literal, which is a call or a list of calls: it becomes JSON on its way into the grammar `inner`."""

    cdef Grammar inner

    def __cinit__(self, Grammar inner not None, **_options):
        self.inner = inner

    cdef Reader reader(self, Collector sink, str opened):
        cdef _LiteralCalls made = _LiteralCalls.__new__(_LiteralCalls)
        made.inner = self.inner.reader(sink, opened)
        made.inner.quiet = True
        begin_literal(&made.value, None, &sink.work)
        made.begin(self, sink, opened)
        return made


cdef class _LiteralCalls(Reader):
    cdef Reader inner
    cdef LiteralC value

    def __dealloc__(self):
        free_literal(&self.value)

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef Py_ssize_t made = self.inner.count
        cdef Py_ssize_t stop = at + 1  # one character where a call may begin, fail or end
        if self.named and text[at] != '}':
            while stop < size and text[stop] != '}':
                stop += 1
        self.piece.size = 0
        at = read_literal(&self.value, text, at, stop, &self.piece)
        self.inner.read(self.piece.data, 0, self.piece.size)
        self.named = self.inner.named
        if self.inner.count > made:
            self.count = self.inner.count
            self.lead = self.raw.size = 0
            self.keep = False
        if self.inner.failed or (self.value.broken and not self.named):
            self.fail()
        elif self.value.done or self.value.broken:
            self.end(NULL, 0)
        return at

    cdef int finish(self) except -1:
        cdef Py_ssize_t i
        if self.named:
            self.piece.size = 0
            finish_literal(&self.value, &self.piece)
            self.inner.read(self.piece.data, 0, self.piece.size)
            return self.inner.finish()
        for i in range(self.raw.size):
            if not _between_calls(self.raw.data[i]):
                return self.cut()
        return 0 if self.count else self.cut()


cdef bint _between_calls(Py_UCS4 char) noexcept:
    return blank(char) or char == ',' or char == ';' or char == ']'
