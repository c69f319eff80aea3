# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native parsers of families whose whole output has a format of its own: gpt-oss's harmony, and Muse's messages.

`smg.parser.harmony` and `muse` are the specification. Made by `smg.parser.native`.
"""

from libc.stdlib cimport free

from smg_ext.chars cimport CharsC, put_chars, put_string, space_char, string_of, word_char
from smg_ext.collector cimport TEXT, THOUGHT, Collector, MarginC
from smg_ext.grammar cimport NAME_MAX
from smg_ext.marks cimport NO_MARK, MarkSet, MatcherC, begin_matcher, free_matcher, scan
from smg_ext.splitter cimport Splitter
from smg_ext.value cimport JsonValueC, begin_json, read_json

__all__ = ["Harmony", "HarmonyMarks", "Muse"]

# What the output is in.
cdef enum:
    IN_HEADER
    IN_TEXT
    IN_THOUGHT
    IN_CALL

# Of harmony's marks, in the order of the specification.
cdef enum:
    START
    END
    MESSAGE
    CHANNEL
    CONSTRAIN
    RETURN
    CALL

# Of Muse's.
cdef enum:
    MUSE_MESSAGE = 1


cdef class HarmonyMarks:
    """The marks, and what reads a header: the specification's functions of those names."""

    cdef MarkSet marks
    cdef object destination
    cdef object said_before
    cdef object recipients
    cdef object is_header_word

    def __cinit__(self, tuple marks not None, *, destination, said_before, recipients, is_header_word):
        self.marks, self.destination, self.said_before = MarkSet(marks), destination, said_before
        self.recipients, self.is_header_word = recipients, is_header_word


cdef class Harmony(Collector):
    """States: in a header, in the body of a thought, a text or a call. `thoughts` and `calls`: they are wanted, and else text."""

    cdef HarmonyMarks format
    cdef MatcherC matcher
    cdef MarginC content
    cdef MarginC thoughts
    cdef bint splits
    cdef bint calling
    cdef bint shown[4]          # kinds that have had a message
    cdef int state
    cdef Py_ssize_t size        # of the header
    cdef list words             # of the header, but for the last
    cdef CharsC word
    cdef list channels
    cdef bint in_channel
    cdef bint started           # the header has its own begin, which a role follows
    cdef JsonValueC value
    cdef CharsC piece

    def __cinit__(self, HarmonyMarks format not None, *_arguments, bint thoughts, bint calls, bint in_think, **_options):
        self.format, self.splits, self.calling = format, thoughts, calls
        self.content.kind, self.thoughts.kind = TEXT, THOUGHT
        begin_matcher(&self.matcher, format.marks, &self.work)
        self.begin_header()
        if in_think:
            self.begin_body(IN_THOUGHT)

    def __dealloc__(self):
        free_matcher(&self.matcher)
        free(self.content.held.data)
        free(self.thoughts.held.data)
        free(self.word.data)
        free(self.value.open.data)
        free(self.piece.data)

    cdef int begin_header(self) except -1:
        self.state = IN_HEADER
        self.size = self.word.size = 0
        self.words, self.channels = [], []
        self.in_channel = self.started = False
        return 0

    cdef int mark(self) except -1:
        self.content.marked = True
        return 0

    cdef MarginC *margin(self) noexcept:
        """Of what the output is in."""
        return &self.thoughts if self.state == IN_THOUGHT and self.splits else &self.content

    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        while at < size and not self.ended:
            self.work += 1
            at = self.header(text, at, size) if self.state == IN_HEADER else self.body(text, at, size)
        return 0

    cdef int close_output(self) except -1:
        """A header that was cut is protocol, unless it is not a header at all."""
        cdef CharsC *rest = &self.matcher.pending
        if self.state != IN_HEADER:
            self.take_text(rest.data, rest.size)
        elif not self.channels and not self.words:
            put_chars(&self.word, rest.data, rest.size)
            self.begin_body(IN_TEXT)
            self.take_text(self.word.data, self.word.size)
        rest.size = 0
        self.end_margin(&self.content)
        return self.end_margin(&self.thoughts)

    cdef Py_ssize_t header(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef Py_ssize_t before = at
        cdef int mark
        at = scan(&self.matcher, text, at, min(size, at + NAME_MAX + 1 - self.size))
        mark = self.matcher.mark
        self.size += at - before
        put_chars(&self.word, self.matcher.released, self.matcher.size)
        if mark != NO_MARK and not self.words and not self.in_channel and not self.started:
            self.end_saying()
        if mark == MESSAGE:
            self.open_body()
        elif mark == START and not self.channels:
            self.started = True
            self.words = self.format.recipients([*self.words, self.last_word()])
            self.word.size = 0
        elif mark == END or mark == CALL or mark == RETURN:
            self.end_header()
        elif mark != NO_MARK:
            self.close_word(mark)
        elif self.size > NAME_MAX:
            self.say("".join([*self.words, self.last_word()]))
        return at

    cdef str last_word(self):
        return string_of(self.word.data, self.word.size)

    cdef int say(self, str text) except -1:
        """What is no header is text."""
        self.begin_body(IN_TEXT)
        self.piece.size = 0
        put_string(&self.piece, text)
        return self.take_text(self.piece.data, self.piece.size)

    cdef int end_header(self) except -1:
        """A message without a body, unless its body only lacks its mark: then it is text."""
        last = self.last_word() if self.words else ""
        self.begin_header()
        if not self.format.is_header_word(last):
            self.say(last)
            self.content.marked = True
            self.begin_header()
        return 0

    cdef int end_saying(self) except -1:
        """What stands before a message, where no role does, is no header: a text without one."""
        word = self.last_word()
        said = self.format.said_before(word)
        if said is not None:
            recipients = self.format.recipients([word])
            self.say(said)
            self.content.marked = True
            self.begin_header()
            self.words = recipients
        return 0

    cdef int close_word(self, int mark) except -1:
        word = self.last_word()
        if self.in_channel:
            self.channels.append(word)
        self.in_channel = mark == CHANNEL
        self.words.append(word)
        self.word.size = 0
        return 0

    cdef int open_body(self) except -1:
        self.close_word(MESSAGE)
        name, thought = self.format.destination(self.words, self.channels, self.schemas)
        if self.calling and name:
            self.state = IN_CALL
            begin_json(&self.value)
            return self.call(name, None)
        return self.begin_body(IN_THOUGHT if thought else IN_TEXT)

    cdef int begin_body(self, int state) except -1:
        cdef Py_UCS4 newline = '\n'
        self.state = state
        self.margin().marked = True
        return self.margin_text(self.margin(), &newline, 1) if self.shown[state] else 0

    cdef Py_ssize_t body(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef int mark
        if self.state == IN_CALL and not self.value.done and not self.value.broken:
            self.piece.size = 0
            at = read_json(&self.value, text, at, size, &self.piece)  # marks inside a JSON text are text
            self.work += self.piece.size
            self.put_arguments(self.piece.data, self.piece.size)
            return at
        at = scan(&self.matcher, text, at, size)
        mark = self.matcher.mark
        self.take_text(self.matcher.released, self.matcher.size)
        if mark != NO_MARK and mark != MESSAGE and mark != CONSTRAIN:
            if self.state == IN_CALL:
                self.close_call()
            else:
                self.margin().marked = True
            self.begin_header()
            self.in_channel = mark == CHANNEL
        return at

    cdef int take_text(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t i
        if self.state == IN_CALL:
            return self.put_arguments(text, size) if self.value.broken else 0
        self.margin_text(self.margin(), text, size)
        if not self.shown[self.state]:
            for i in range(size):
                if not space_char(text[i]):
                    self.shown[self.state] = True
                    break
        return 0


cdef class Muse(Splitter):
    """States: in a header, in a thought, in text or calls, which are a splitter's. `marks`: the family's; `thoughts`: they are wanted."""

    cdef MarkSet message_marks
    cdef MatcherC messages
    cdef MarginC said           # thoughts
    cdef bint splits
    cdef CharsC head
    cdef Py_ssize_t size        # of the header
    cdef int state
    cdef Py_ssize_t begun_texts
    cdef Py_ssize_t begun_thoughts

    def __cinit__(self, *_arguments, MarkSet messages not None, bint thoughts, bint began_thinking, **_options):
        self.message_marks, self.splits = messages, thoughts
        self.said.kind, self.said.marked = THOUGHT, True
        begin_matcher(&self.messages, messages, &self.work)
        self.state = IN_THOUGHT if began_thinking and thoughts else IN_HEADER

    def __dealloc__(self):
        free_matcher(&self.messages)
        free(self.said.held.data)
        free(self.head.data)

    cdef int run(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        while at < size and not self.ended:
            self.work += 1
            if self.state == IN_HEADER:
                at = self.header(text, at, size)
                continue
            at = scan(&self.messages, text, at, size)
            self.take_text(self.messages.released, self.messages.size)
            self.end_message(self.messages.mark)
        return 0

    cdef int close_output(self) except -1:
        """A header that was cut is protocol, unless it is not a header at all."""
        if self.state == IN_HEADER:
            self.state = IN_TEXT
            if not self.is_header():
                put_chars(&self.head, self.messages.pending.data, self.messages.pending.size)
                self.take_text(self.head.data, self.head.size)
        else:
            self.take_text(self.messages.pending.data, self.messages.pending.size)
        self.messages.pending.size = 0
        self.end_margin(&self.said)
        return Splitter.close_output(self)

    cdef bint is_header(self):
        header = string_of(self.head.data, self.head.size)
        return "to=" in header or header.strip() in ("assistant", "")

    cdef Py_ssize_t header(self, const Py_UCS4 *text, Py_ssize_t at, Py_ssize_t size) except -1:
        cdef Py_ssize_t before = at
        cdef int mark
        at = scan(&self.messages, text, at, min(size, at + NAME_MAX + 1 - self.size))
        mark = self.messages.mark
        put_chars(&self.head, self.messages.released, self.messages.size)
        self.size += at - before
        if (
            not _in_header(self.messages.released, self.messages.size)
            or (mark == NO_MARK and self.size > NAME_MAX)
            or (mark != NO_MARK and mark != MUSE_MESSAGE and not self.is_header())
        ):
            self.open_message(IN_TEXT)
            self.take_text(self.head.data, self.head.size)
            self.end_message(mark)
        elif mark == MUSE_MESSAGE:
            self.open_message(IN_THOUGHT if self.splits and "to=self" in string_of(self.head.data, self.head.size) else IN_TEXT)
        elif mark != NO_MARK:
            self.begin_header()
        return at

    cdef int begin_header(self) except -1:
        self.head.size = self.size = 0
        self.state = IN_HEADER
        return 0

    cdef int open_message(self, int state) except -1:
        cdef Py_UCS4 newline = '\n'
        cdef Py_ssize_t *count = &self.begun_thoughts if state == IN_THOUGHT else &self.begun_texts
        self.state = state
        self.mark_message()
        if count[0]:
            self.take_text(&newline, 1)
        count[0] += 1
        return 0

    cdef int end_message(self, int mark) except -1:
        if mark != NO_MARK and mark != MUSE_MESSAGE:
            self.mark_message()
            self.begin_header()
        return 0

    cdef int mark_message(self) except -1:
        if self.state == IN_THOUGHT:
            self.said.marked = True
            return 0
        return self.mark()

    cdef int take_text(self, const Py_UCS4 *text, Py_ssize_t size) except -1:
        if self.state == IN_THOUGHT:
            return self.margin_text(&self.said, text, size)
        return Splitter.run(self, text, size)


cdef bint _in_header(const Py_UCS4 *text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        if not (word_char(text[i]) or text[i] == ' ' or text[i] == '.' or text[i] == ':' or text[i] == '=' or text[i] == '-'):
            return False
    return True
