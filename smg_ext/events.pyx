# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native stream machine with its event exit: engine messages in, once a wake-up the events of all choices out.

For whole answers, and for all that a parser reads. `smg.pipeline.stream.StreamMachine` is its specification. Parsers run here, over what
the machine showed, and make no Python object but for what an event says. Made by `smg.pipeline.native`.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from smg_ext.chars cimport CharsC, PyUnicode_AsUCS4, put_chars, reserve, string_of
from smg_ext.collector cimport ARGUMENTS, CALL, NO_PIECE, TEXT, THOUGHT, Collector, PieceC
from smg_ext.machine cimport ChoiceC, EndC, Machine, MachineC
from smg_ext.text cimport BufferC, put
from smg_ext.thoughts cimport RunC

__all__ = ["EventShapes", "EventSink"]

REASONS = ("stop", "length", "tool_calls", "content_filter", "abort")


cdef struct RecordC:
    uint32_t index              # of the choice
    int reason                  # -1 while it goes on
    int matched                 # 0 nothing, 1 matched_id, 2 text
    int64_t matched_id
    int64_t tokens              # of the choice so far
    size_t size                 # of what follows: text, then cuts, then matched text
    size_t cuts                 # or runs
    size_t matched_size


cdef struct ReadC:
    CharsC withheld             # thoughts, where they are wanted in one piece
    int64_t tokens              # of the choice before this record
    bint called
    bint over                   # it ended at a second call


cdef class EventShapes:
    """The classes of events: of (choice, text), (choice, text), (choice, index, id, name), (choice, index, text) and (choice, reason,
    matched stop: text, id or None). `new_id` makes the id of a call that has none.
    """

    cdef object content
    cdef object reasoning
    cdef object call
    cdef object arguments
    cdef object finished
    cdef object new_id

    def __cinit__(self, *, content, reasoning, call, arguments, finished, new_id):
        self.content, self.reasoning, self.call, self.arguments = content, reasoning, call, arguments
        self.finished, self.new_id = finished, new_id


cdef class EventSink(Machine):
    """One call. `take(list)` is called with the events of a wake-up that has some, and not after `done`.

    `parsers`: one a choice, or none where the output is text, or the machine has `marks` to split it by. `split`: parsers are fed one token
    at a time, as is needed where tokens inside a thinking block are counted or the answer ends at a second call; tokens without text
    count, but not one that only ended the choice. `gather`: nothing is told before every choice is over.
    """

    cdef object take
    cdef bint gather
    cdef EventShapes shapes
    cdef tuple parsers
    cdef ReadC *reads

    def __cinit__(self, *_arguments, take, EventShapes shapes not None, tuple parsers=(), bint split=False, bint gather=False,
                  bint in_think=False, **_options):
        self.take, self.shapes, self.parsers, self.gather = take, shapes, parsers, gather
        if parsers and len(parsers) != self.m.count:
            raise ValueError("one parser a choice")
        for parser in parsers:
            (<Collector?>parser).last = THOUGHT if in_think else NO_PIECE
        self.reads = <ReadC *>calloc(<size_t>self.m.count, sizeof(ReadC))
        if self.reads == NULL:
            raise MemoryError()
        self.m.split = split and bool(parsers)
        self.m.content = _keep if gather else _content
        self.m.finish = _finish

    def __dealloc__(self):
        cdef int i
        if self.reads != NULL:
            for i in range(self.m.count):
                free(self.reads[i].withheld.data)
        free(self.reads)

    cdef object wake(self):
        if self.m.out.size and self.m.error == NULL and self.take is not None and (self.m.open == 0 or not self.gather):
            events = self.events()
            self.m.out.size = 0
            if events:
                self.take(events)
        self.leave()

    cdef object drop(self):
        self.take = self.done = None

    cdef list events(self):
        """What the records of this wake-up say."""
        cdef const BufferC *out = &self.m.out
        cdef RecordC record
        cdef size_t at = 0
        cdef const uint8_t *text
        cdef const uint8_t *matched
        events = []
        while at < out.size:
            memcpy(&record, out.data + at, sizeof(RecordC))
            text = out.data + at + sizeof(RecordC)
            matched = text + record.size + record.cuts
            if self.parsers:
                self.parse(&record, text, matched, events)
            else:
                self.tell(&record, text, matched, events)
            at += sizeof(RecordC) + record.size + record.cuts + record.matched_size
        return events

    cdef int tell(self, const RecordC *record, const uint8_t *text, const uint8_t *matched, list events) except -1:
        """A record that nobody parses: text, or runs of text and thoughts."""
        cdef RunC run
        cdef size_t begin = 0
        cdef size_t i
        cdef EventShapes shapes = self.shapes
        if self.m.marks == NULL and record.size:
            events.append(shapes.content(record.index, _string(text, record.size)))
        for i in range(0, record.cuts if self.m.marks != NULL else 0, sizeof(RunC)):
            memcpy(&run, text + record.size + i, sizeof(RunC))
            shown = _string(text + begin, run.end - begin)
            events.append(shapes.reasoning(record.index, shown) if run.thought else shapes.content(record.index, shown))
            begin = run.end
        if record.reason >= 0:
            events.append(shapes.finished(record.index, REASONS[record.reason], _matched(record, matched)))
        return 0

    cdef int parse(self, const RecordC *record, const uint8_t *text, const uint8_t *matched, list events) except -1:
        """A record that a parser reads."""
        cdef Collector parser = <Collector>self.parsers[record.index]
        cdef ReadC *read = &self.reads[record.index]
        cdef size_t begin = 0
        cdef size_t end
        cdef size_t i
        if read.over:
            return 0
        for i in range(record.cuts // sizeof(size_t)):
            memcpy(&end, text + record.size + i * sizeof(size_t), sizeof(size_t))
            _feed(parser, text + begin, end - begin)
            self.m.choices[record.index].thoughts.tokens += parser.last == THOUGHT
            begin = end
            if parser.ended:
                return self.stop(parser, record.index, read.tokens + <int64_t>i + 1, events)
        read.tokens = record.tokens
        _feed(parser, text + begin, record.size - begin)
        if record.reason >= 0 and not parser.ended:
            parser.close_output()
        self.emit(parser, record.index, events)
        if record.reason >= 0:
            reason = "tool_calls" if record.reason == 0 and read.called else REASONS[record.reason]
            self.finish_choice(record.index, reason, _matched(record, matched), events)
        return 0

    cdef int stop(self, Collector parser, uint32_t index, int64_t tokens, list events) except -1:
        """A second call began, and there is to be one: the choice is over, and the engine may stop."""
        cdef ChoiceC *choice = &self.m.choices[index]
        self.emit(parser, index, events)
        self.finish_choice(index, "tool_calls", None, events)
        self.reads[index].over = True
        choice.completion_tokens = tokens
        self.m.cut = True
        if not choice.done:
            choice.done = True
            self.m.open -= 1
        return 0

    cdef int finish_choice(self, uint32_t index, str reason, object matched, list events) except -1:
        self.release(index, events)
        events.append(self.shapes.finished(index, reason, matched))
        return 0

    cdef int release(self, uint32_t index, list events) except -1:
        cdef CharsC *withheld = &self.reads[index].withheld
        if withheld.size:
            events.append(self.shapes.reasoning(index, string_of(withheld.data, withheld.size)))
            withheld.size = 0
        return 0

    cdef int emit(self, Collector parser, uint32_t index, list events) except -1:
        """The parser's pieces as events."""
        cdef EventShapes shapes = self.shapes
        cdef ReadC *read = &self.reads[index]
        cdef PieceC *piece
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t head = 0
        cdef Py_ssize_t i
        for i in range(parser.count):
            piece = &parser.pieces[i]
            if piece.kind == THOUGHT and not self.m.stream_thoughts:
                put_chars(&read.withheld, parser.text.data + begin, piece.end - begin)
                begin = piece.end
                continue
            self.release(index, events)
            if piece.kind == CALL:
                read.called = True
                name, call_id = parser.heads[head]
                events.append(shapes.call(index, piece.call, call_id or shapes.new_id(), name))
                head += 1
                continue
            text = string_of(parser.text.data + begin, piece.end - begin)
            begin = piece.end
            if piece.kind == ARGUMENTS:
                events.append(shapes.arguments(index, piece.call, text))
            else:
                events.append(shapes.content(index, text) if piece.kind == TEXT else shapes.reasoning(index, text))
        parser.count = parser.text.size = 0
        if head:
            parser.heads = []
        return 0


cdef int _keep(MachineC *m, ChoiceC *choice, uint32_t index) noexcept nogil:
    return 0


cdef int _content(MachineC *m, ChoiceC *choice, uint32_t index) noexcept nogil:
    return _record(m, choice, index, NULL) if choice.shown.size or choice.cuts.size or choice.thoughts.runs.size else 0


cdef int _finish(MachineC *m, ChoiceC *choice, uint32_t index, const EndC *end) noexcept nogil:
    return _record(m, choice, index, end)


cdef int _record(MachineC *m, ChoiceC *choice, uint32_t index, const EndC *end) noexcept nogil:
    """Moves what a choice showed to the records, and how it ended, where `end` is not NULL."""
    cdef RecordC record
    cdef BufferC *text = &choice.shown if m.marks == NULL else &choice.thoughts.text
    cdef BufferC *cuts = &choice.cuts if m.marks == NULL else &choice.thoughts.runs
    record.index = index
    record.reason = <int>end.reason if end != NULL else -1
    record.matched = end.matched if end != NULL else 0
    record.matched_id = end.matched_id if end != NULL else 0
    record.tokens = choice.completion_tokens
    record.size = text.size
    record.cuts = cuts.size
    record.matched_size = end.size if record.matched == 2 else 0
    if put(&m.out, <const uint8_t *>&record, sizeof(RecordC)) or put(&m.out, text.data, record.size):
        return -1
    if put(&m.out, cuts.data, record.cuts):
        return -1
    text.size = cuts.size = 0
    return put(&m.out, end.text, record.matched_size) if record.matched_size else 0


cdef object _matched(const RecordC *record, const uint8_t *text):
    if record.matched == 1:
        return record.matched_id
    return _string(text, record.matched_size) if record.matched == 2 else None


cdef str _string(const uint8_t *text, size_t size):
    return PyUnicode_DecodeUTF8(<const char *>text, <Py_ssize_t>size, "replace")


cdef int _feed(Collector parser, const uint8_t *text, size_t size) except -1:
    """Feeds UTF-8 to a parser, whose pieces stay where they are."""
    if size == 0 or parser.ended:
        return 0
    parser.given.size = 0
    reserve(&parser.given, <Py_ssize_t>size)
    if not _decode(&parser.given, text, size):
        whole = _string(text, size)
        parser.given.size = len(whole)
        PyUnicode_AsUCS4(whole, parser.given.data, parser.given.size, 0)
    return parser.run(parser.given.data, parser.given.size)


cdef bint _decode(CharsC *out, const uint8_t *text, size_t size) noexcept:
    """Fills `out`, which has room for as many characters as there are bytes; False where Python must say what is to be made of these."""
    cdef size_t at = 0
    cdef uint32_t char
    cdef size_t more
    out.size = 0
    while at < size:
        char = text[at]
        if char < 0x80:
            more = 0
        elif 0xC2 <= char <= 0xDF:
            char, more = char & 0x1F, 1
        elif 0xE1 <= char <= 0xEC or char == 0xEE or char == 0xEF:
            char, more = char & 0x0F, 2
        elif 0xF1 <= char <= 0xF3 or (char == 0xF0 and size - at > 3 and text[at + 1] >= 0x90):
            char, more = char & 0x07, 3
        elif char == 0xE0 and size - at > 2 and text[at + 1] >= 0xA0:
            char, more = 0, 2
        else:
            return False
        if size - at <= more:
            return False
        at += 1
        while more:
            if text[at] & 0xC0 != 0x80:
                return False
            char = char << 6 | (text[at] & 0x3F)
            at += 1
            more -= 1
        out.data[out.size] = <Py_UCS4>char
        out.size += 1
    return True
