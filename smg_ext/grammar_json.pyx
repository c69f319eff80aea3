# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native grammar of calls as JSON objects `{"name": …, "arguments": {…}}`, one, several or in lists; between marks, or bare.

`smg.parser.tool.grammar.json_calls` is the specification.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport blank, put_char, put_chars, put_string, string_of
from smg_ext.grammar cimport BLANKS_MAX
from smg_ext.marks cimport NO_MARK, begin_matcher, free_matcher, scan
from smg_ext.value cimport begin_json, read_json

__all__ = ["JsonGrammar"]

cdef enum:
    BETWEEN
    BEFORE_KEY
    IN_KEY
    BEFORE_COLON
    IN_VALUE
    AFTER_VALUE
    BROKEN

cdef enum:
    NO_ROLE
    CALL_NAME
    CALL_ARGUMENTS
    CALL_ID
    FUNCTION
    OTHER
    ALIEN


cdef class JsonGrammar(Grammar):
    """A format, as in the specification's `JsonFormat`. `decoded` and `unwrapped`: its functions of those names."""

    def __cinit__(self, *, tuple closes, tuple names, tuple arguments, str id_key, bint keyed, str separators, tuple others,
                  decoded, unwrapped, **_options):
        self.closes, self.has_closes = MarkSet(closes), bool(closes)
        self.names, self.arguments, self.others, self.id_key = names, arguments, others, id_key
        self.keyed, self.separators = keyed, separators
        self.decoded, self.unwrapped = decoded, unwrapped

    cdef Reader reader(self, Collector sink, str opened):
        cdef _JsonCalls made = _JsonCalls.__new__(_JsonCalls)
        made.form = self
        made.bare = not opened
        begin_matcher(&made.closes, self.closes, &sink.work)
        made.begin(self, sink, opened)
        made.start()
        return made


cdef class _JsonCalls(Reader):
    """States: between objects; before a key, in a key, before a colon, in a value, after a value; broken, looking for the closing mark."""

    def __dealloc__(self):
        free_matcher(&self.closes)
        free(self.blanks.data)
        free(self.key.data)
        free(self.value.open.data)
        free(self.parts.data)
        free(self.early.data)
        free(self.spare.data)

    cdef int start(self) except -1:
        self.nested = 0
        self.key.size = self.parts.size = self.early.size = self.spare.size = 0
        self.escaped = self.seen_arguments = False
        self.role = NO_ROLE
        begin_json(&self.value)
        self.called = ""
        self.call_id = None
        return 0

    cdef Py_ssize_t step(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.state == IN_VALUE:
            return self.in_value(text, at, size)
        if self.state == BETWEEN:
            return self.between(text, at)
        if self.state == BROKEN:
            return self.broken(text, at, size)
        if self.state == IN_KEY:
            return self.in_key(text, at)
        if blank(text[at]):
            return at + 1
        if self.state == BEFORE_KEY:
            return self.before_key(text, at)
        return self.before_colon(text, at) if self.state == BEFORE_COLON else self.after_value(text, at)

    cdef int finish(self) except -1:
        if self.named or self.state == BROKEN:
            if self.state == IN_VALUE:
                self.sink.put_arguments(self.parts.data, self.parts.size)
        elif self.bare:
            if self.state == BETWEEN and self.count:
                self.sink.show(self.blanks.data, self.blanks.size)
            else:
                self.sink.show(self.raw.data, self.raw.size)
        elif self.state != BETWEEN or not self.count:
            self.cut()
        return 0

    # between the objects

    cdef Py_ssize_t between(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        cdef Py_UCS4 char = text[at]
        cdef JsonGrammar form = self.form
        if self.closes.pending.size or _begins(form.closes, char):
            return self.close_mark(&self.closes, text, at)
        if blank(char):
            put_char(&self.blanks, char)
            return self.unexpected(at) if self.blanks.size > BLANKS_MAX and not self.count else at + 1
        if char == '{':
            self.blanks.size = 0
            self.start()
            self.state = BEFORE_KEY
        elif char == '[' and not self.lists and (form.has_closes or not self.count):
            self.lists += 1
            put_char(&self.blanks, char)
        elif char == ']' and self.lists:
            self.lists -= 1
            if not form.has_closes:
                if self.count:
                    self.done = True
                else:
                    self.fail()
        elif self.count and char in form.separators and (self.lists or form.has_closes or char == ';'):
            put_char(&self.blanks, char)
        elif not (self.count and form.has_closes and (char == ']' or char == '}' or char == ',')):
            return self.unexpected(at)
        return at + 1

    cdef Py_ssize_t unexpected(self, Py_ssize_t at) except -1:
        if self.count:
            self.end(self.blanks.data, self.blanks.size)  # their margin decides
        else:
            self.fail()
        return at

    # inside an object

    cdef Py_ssize_t before_key(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        if text[at] == '"':
            self.key.size = 0
            self.state = IN_KEY
        elif text[at] == '}':
            return self.end_object(at)
        elif text[at] != ',':
            return self.break_off(at)
        return at + 1

    cdef Py_ssize_t in_key(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        if text[at] == '"' and not self.escaped:
            self.state = BEFORE_COLON
            key = string_of(self.key.data, self.key.size)
            self.role = self.role_of(self.form.decoded(key) if "\\" in key else key)
            return at + 1
        self.escaped = text[at] == '\\' and not self.escaped
        put_char(&self.key, text[at])
        return at + 1

    cdef int role_of(self, str key) except -1:
        cdef JsonGrammar form = self.form
        if form.keyed and not self.named:
            self.called = key.strip()
            return CALL_ARGUMENTS
        if key in form.arguments:
            return OTHER if self.seen_arguments else CALL_ARGUMENTS
        if key in form.names:
            return CALL_NAME
        if key == form.id_key:
            return CALL_ID
        if key == "function":
            return FUNCTION
        return OTHER if key in form.others or not self.bare else ALIEN

    cdef Py_ssize_t before_colon(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        if text[at] != ':' or (self.role == ALIEN and not self.named):
            return self.break_off(at)
        if self.role == CALL_ARGUMENTS:
            self.seen_arguments = True
            self.announce()
        begin_json(&self.value)
        self.parts.size = 0
        self.state = IN_VALUE
        return at + 1

    cdef Py_ssize_t in_value(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        if self.role == FUNCTION and self.value.kind == 0 and (text[at] == '{' or blank(text[at])):
            if text[at] == '{':
                self.nested += 1
                self.state = BEFORE_KEY
            return at + 1
        self.piece.size = 0
        at = read_json(&self.value, text, at, size, &self.piece)
        self.take()
        if self.value.done:
            self.end_value()
            self.state = AFTER_VALUE
        elif self.value.broken:
            return self.break_off(at)
        return at

    cdef int take(self) except -1:
        """What was read of a value."""
        cdef Py_UCS4 kind = self.value.kind
        if self.role == CALL_ARGUMENTS and kind != 0 and kind != '"' and kind != 'n' and kind != 'N':
            if self.named:
                return self.sink.put_arguments(self.piece.data, self.piece.size)
            return put_chars(&self.early, self.piece.data, self.piece.size)
        if CALL_NAME <= self.role <= FUNCTION or (kind == '{' and self.spare.size == 0):
            return put_chars(&self.parts, self.piece.data, self.piece.size)
        return 0

    cdef int end_value(self) except -1:
        cdef CharsC *parts = &self.parts
        if (self.role == CALL_NAME or self.role == FUNCTION) and self.value.kind == '"':
            self.called = self.called or self.form.decoded(string_of(parts.data + 1, parts.size - 2)).strip()
            if self.seen_arguments or not (self.bare or (self.form.id_key and self.call_id is None)):
                self.announce()
        elif self.role == OTHER or self.role == ALIEN:
            if self.spare.size == 0:
                put_chars(&self.spare, parts.data, parts.size)
        elif self.role == CALL_ID:
            whole = string_of(parts.data, parts.size)
            self.call_id = self.form.decoded(whole[1:len(whole) - 1]) if whole.startswith('"') else whole
            if self.seen_arguments or not self.bare:
                self.announce()
        elif self.role == CALL_ARGUMENTS and parts.size:
            self.end_arguments()
        parts.size = 0
        return 0

    cdef int end_arguments(self) except -1:
        """Arguments in a string, or null."""
        text = self.form.unwrapped(string_of(self.parts.data, self.parts.size))
        self.piece.size = 0
        put_string(&self.piece, text)
        if self.named:
            return self.sink.put_arguments(self.piece.data, self.piece.size)
        return put_chars(&self.early, self.piece.data, self.piece.size)

    cdef int announce(self) except -1:
        """Begins the call if all that must be known is known."""
        if self.named or not self.called or (self.bare and self.called not in self.sink.schemas):
            return 0
        self.name(self.called, self.call_id)
        self.sink.put_arguments(self.early.data, self.early.size)
        self.early.size = 0
        return 0

    cdef Py_ssize_t after_value(self, const Py_UCS4 *text, Py_ssize_t at) except -1:
        if text[at] == ',':
            self.state = BEFORE_KEY
            return at + 1
        return self.end_object(at) if text[at] == '}' else self.break_off(at)

    cdef Py_ssize_t end_object(self, Py_ssize_t at) except -1:
        if self.nested:
            self.nested -= 1
            self.state = AFTER_VALUE
            return at + 1
        self.announce()
        if not self.named:
            self.fail()
            return at + 1
        if not self.seen_arguments:
            self.sink.put_arguments(self.spare.data, self.spare.size)
        self.close()
        self.blanks.size = 0
        self.state = BETWEEN
        return at + 1

    cdef Py_ssize_t break_off(self, Py_ssize_t at) except -1:
        """No JSON from here: before the name it is no call; after it, the call reaches up to the closing mark. What has not been arguments
        yet becomes them: a call that lost its own must not look like one that has none.
        """
        if not self.named:
            self.fail()
        elif not self.form.has_closes:
            self.done = True
        else:
            self.whole = self.seen_arguments and (self.state != IN_VALUE or self.role != CALL_ARGUMENTS)
            if not self.whole and self.role == CALL_ARGUMENTS:
                self.sink.put_arguments(self.parts.data, self.parts.size)
            self.state = BROKEN
        return at

    cdef Py_ssize_t broken(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        at = scan(&self.closes, text, at, size)
        if not self.whole:
            self.sink.put_arguments(self.closes.released, self.closes.size)
        if self.closes.mark != NO_MARK:
            self.close()
            self.done = True
        return at


cdef bint _begins(MarkSet closes, Py_UCS4 char):
    """True when a closing mark may begin with this character."""
    if char < 128:
        return closes.c.ascii[<size_t>char] != 0
    for mark in closes.marks:
        if (<str>mark)[0] == char:
            return True
    return False
