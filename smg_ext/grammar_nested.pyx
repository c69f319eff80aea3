# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native grammar of calls as XML whose values nest: MiniMax M3. Every tag has the same mark before it.

`smg.parser.tool.grammar.nested` is the specification.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport CharsC, blank, put_ascii, put_char, put_chars, put_string, string_of
from smg_ext.collector cimport Collector
from smg_ext.grammar cimport BLANKS_MAX, NAME_MAX, Grammar, Reader
from smg_ext.marks cimport NO_MARK, MarkSet, MatcherC, begin_matcher, expect, free_matcher, scan
from smg_ext.value cimport TypedValueC, add_typed, begin_typed, cut_typed, end_typed, put_quoted

__all__ = ["NestedGrammar"]

cdef enum:
    DEPTH_MAX = 64

cdef enum:
    BETWEEN
    HEAD
    BODY
    TAG

# What an element holds.
cdef enum:
    BLANKS                      # nothing else so far
    PLAIN
    OBJECT
    LIST

cdef const char *BLANK = b" \t\r\n"
STRING = frozenset({"string"})


cdef class NestedGrammar(Grammar):
    """`mark` stands before each tag. `inner_of`, `kinds_in` and `as_json` are the specification's functions of those names."""

    cdef str mark
    cdef str section
    cdef str close
    cdef str invoke
    cdef MarkSet between
    cdef MarkSet inside
    cdef object inner_of
    cdef object kinds_in
    cdef object as_json

    def __cinit__(self, *, str mark, inner_of, kinds_in, as_json, **_options):
        self.mark = mark
        self.section, self.close, self.invoke = f"{mark}<tool_call>", f"{mark}</tool_call>", f"{mark}<invoke"
        self.marks = (self.section, self.close, self.invoke, f"{mark}</invoke>", mark)
        self.between = MarkSet((self.section, self.invoke, f"{mark}</invoke>", self.close))
        self.inside = MarkSet((mark,))
        self.inner_of, self.kinds_in, self.as_json = inner_of, kinds_in, as_json

    cdef Reader reader(self, Collector sink, str opened):
        cdef _NestedCalls made = _NestedCalls.__new__(_NestedCalls)
        made.form = self
        made.open = []
        begin_matcher(&made.between, self.between, &sink.work)
        begin_matcher(&made.inside, self.inside, &sink.work)
        made.begin(self, sink, opened)
        if opened == self.invoke:
            made.state = HEAD
        return made


cdef class _Element:
    """An open element."""

    cdef str name
    cdef object schema
    cdef object kinds
    cdef int filled
    cdef bint first
    cdef CharsC blanks
    cdef TypedValueC value      # of one that is filled with text

    def __cinit__(self, str name, schema, kinds):
        self.name, self.schema, self.kinds, self.first = name, schema, kinds, True

    def __dealloc__(self):
        free(self.blanks.data)
        free(self.value.parts.data)


cdef class _NestedCalls(Reader):
    """States: between calls, in a call's head, in a body, and in the name of a tag."""

    cdef NestedGrammar form
    cdef MatcherC between
    cdef MatcherC inside
    cdef int state
    cdef Py_ssize_t blanks
    cdef list open
    cdef object root
    cdef CharsC word
    cdef bint junk              # text that is no part of the format was shown since the last tag

    def __dealloc__(self):
        free_matcher(&self.between)
        free_matcher(&self.inside)
        free(self.word.data)

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.state == BODY:
            return self.body(text, at, size)
        if self.state == TAG:
            return self.in_tag(text, at)
        return self.in_between(text, at) if self.state == BETWEEN else self.head(text, at)

    cdef int finish(self) except -1:
        cdef _Element last
        if self.state == HEAD or (self.state == BETWEEN and not self.count):
            return self.cut()
        if (self.state == BODY or self.state == TAG) and self.open:
            last = self.open[len(self.open) - 1]
            if last.filled == PLAIN:
                if self.state == BODY:
                    add_typed(&last.value, self.sink, self.inside.pending.data, self.inside.pending.size)
                    self.inside.pending.size = 0
                cut_typed(&last.value, self.sink)
        return 0

    cdef Py_ssize_t in_between(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef MatcherC *matcher = &self.between
        at = expect(matcher, text, at, BLANK)
        mark = None if matcher.mark == NO_MARK else self.form.between.marks[matcher.mark]
        self.blanks += 1
        if mark == self.form.invoke:
            self.state = HEAD
            self.word.size = 0
        elif mark == self.form.close:
            self.end(NULL, 0)
        elif matcher.size and self.count:
            self.end(matcher.released, matcher.size)
            put_chars(&self.unread, matcher.pending.data, matcher.pending.size)
            matcher.pending.size = 0
        elif not self.count and (matcher.size or mark is not None or self.blanks > BLANKS_MAX):
            self.fail()
        return at

    cdef Py_ssize_t head(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        if text[at] == '>':
            self.end_head(string_of(self.word.data, self.word.size))
        elif text[at] == '<' or self.word.size > NAME_MAX:
            self.fail()
        else:
            put_char(&self.word, text[at])
        return at + 1

    cdef int end_head(self, str head) except -1:
        cdef _Element element
        name = head.strip().removeprefix("name=").strip("\"'")
        if not name or any([char in " \t\r\n" for char in name]):
            return self.fail()
        self.name(name, None)
        self.root = self.sink.schemas.get(name, {})
        element = _Element("invoke", self.root, frozenset({"object"}))
        element.filled = OBJECT
        self.open = [element]
        self.sink.put_ascii_arguments(b"{")
        self.state = BODY
        return 0

    cdef Py_ssize_t body(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        at = scan(&self.inside, text, at, size)
        if self.inside.size:
            self.text(self.inside.released, self.inside.size)
        if self.inside.mark != NO_MARK:
            self.state = TAG
            self.word.size = 0
        return at

    cdef Py_ssize_t in_tag(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        """After the mark: a tag, whose name ends with ">"; anything else is text, and the mark was none."""
        cdef Py_UCS4 char = text[at]
        cdef Py_ssize_t size = self.word.size
        if (char == '<' or char == ']' or size > NAME_MAX) if size else char != '<':
            self.state = BODY
            self.word.size = 0
            if size:
                self.text(self.word.data, size)
            return at
        put_char(&self.word, char)
        if char == '>':
            self.state = BODY
            self.tag(string_of(self.word.data, self.word.size))
        return at + 1

    cdef int text(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef _Element element = self.open[len(self.open) - 1]
        cdef Py_ssize_t first = 0
        while first < size and blank(text[first]):
            first += 1
        if element.filled == OBJECT or element.filled == LIST:
            if self.junk:
                first = 0
            if first < size:
                self.junk = True
                self.sink.show(text + first, size - first)
            return 0
        if element.filled == BLANKS:
            if first == size:
                return put_chars(&element.blanks, text, size)
            element.filled = PLAIN
            begin_typed(&element.value, self.sink, element.kinds or STRING, False)
            add_typed(&element.value, self.sink, element.blanks.data, element.blanks.size)
        return add_typed(&element.value, self.sink, text, size)

    cdef int text_of(self, str text) except -1:
        self.piece.size = 0
        put_string(&self.piece, text)
        return self.text(self.piece.data, self.piece.size)

    cdef int tag(self, str tag) except -1:
        cdef _Element last = self.open[len(self.open) - 1]
        cdef Py_ssize_t size = len(tag)
        self.junk = False
        if tag.startswith("</"):
            self.close_tag(tag[2:size - 1].strip(), tag)
        elif tag.startswith("<invoke") and not tag.startswith("<invoke>"):
            self.close_all()  # the call's end was left out
            self.state = HEAD
            self.end_head(tag[len("<invoke"):size - 1])
        elif last.filled == PLAIN or len(self.open) >= DEPTH_MAX:
            self.text_of(tag)
        else:
            self.begin_element(tag[1:size - 1].strip())
        return 0

    cdef int close_tag(self, str name, str tag) except -1:
        cdef Py_ssize_t depth = len(self.open) - 1
        cdef _Element last = self.open[depth]
        while depth >= 0 and (<_Element>self.open[depth]).name != name:
            depth -= 1
        if depth <= 0 and (name == "invoke" or name == "tool_call"):
            self.close_all()
            if name == "tool_call":
                self.end(NULL, 0)
        elif depth < 0 and last.filled == PLAIN and last.name != name:
            self.text_of(tag)
        elif depth > 0:
            while len(self.open) > depth:
                self.end_element(self.open.pop())
        return 0

    cdef int begin_element(self, str name) except -1:
        cdef _Element parent = self.open[len(self.open) - 1]
        if parent.filled == BLANKS:
            listed = "array" in parent.kinds or (name == "item" and "object" not in parent.kinds)
            parent.filled = LIST if listed else OBJECT
            self.sink.put_ascii_arguments(b"[" if listed else b"{")
        if not parent.first:
            self.sink.put_ascii_arguments(b", ")
        parent.first = False
        inside = "" if parent.filled == LIST else name
        if inside:
            self.put_name(name)
        schema = self.form.inner_of(parent.schema, inside, self.root)
        self.open.append(_Element(name, schema, self.form.kinds_in(schema, self.root)))
        return 0

    cdef int put_name(self, str name) except -1:
        self.word.size = self.piece.size = 0
        put_string(&self.word, name)
        put_ascii(&self.piece, b'"')
        put_quoted(&self.piece, self.word.data, self.word.size)
        put_ascii(&self.piece, b'": ')
        return self.sink.put_arguments(self.piece.data, self.piece.size)

    cdef int end_element(self, _Element element) except -1:
        cdef bint listed = "array" in element.kinds
        if element.filled == OBJECT:
            return self.sink.put_ascii_arguments(b"}")
        if element.filled == LIST:
            return self.sink.put_ascii_arguments(b"]")
        if element.filled == BLANKS:
            if "string" not in element.kinds and (listed or "object" in element.kinds):
                return self.sink.put_ascii_arguments(b"[]" if listed else b"{}")
            begin_typed(&element.value, self.sink, element.kinds or STRING, False)
            add_typed(&element.value, self.sink, element.blanks.data, element.blanks.size)
        return end_typed(&element.value, self.sink, element.kinds or STRING, self.form.as_json)

    cdef int close_all(self) except -1:
        while self.open:
            self.end_element(self.open.pop())
        self.close()
        self.blanks = 0
        self.state = BETWEEN
        return 0
