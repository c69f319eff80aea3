# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native stream machine with its chat exit: engine messages in, server-sent events out, no Python object in between.

A `ChatSink` serves one call: chunks are written into one buffer without the GIL, and once a wake-up the buffer leaves as one write.
`smg.pipeline.stream.StreamMachine` with `smg.api.openai.chat_stream.ChatStream` is its specification. Made by `smg.pipeline.native`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport strlen

from smg_ext.machine cimport ABORT, CONTENT_FILTER, LENGTH, TOOL_CALLS, ChoiceC, EndC, Machine, MachineC, fail
from smg_ext.response cimport ResponseStream
from smg_ext.text cimport put, put_json, put_number
from smg_ext.thoughts cimport RunC

__all__ = ["ChatSink"]

cdef enum:
    INTERNAL = 13


cdef class ChatSink(Machine):
    """One call. `write(bytes)` is called once a wake-up but the last, whose chunks are in `last`; the rest is as in `Machine`.

    `prefix` stands before the choices of each chunk (`data: {...` without the closing brace), `tail` after them (`}` and the blank line).
    `hide_thoughts`: they are read and not written. `whole`: no chunks; `last` is the one choice, as an answer that is not streamed has it.
    """

    cdef bytes prefix
    cdef bytes tail
    cdef object write
    cdef ResponseStream stream

    def __cinit__(self, *_arguments, bytes prefix not None, bytes tail not None, write, bint hide_thoughts=False,
                  bint whole=False, **_options):
        self.m.hide_thoughts = hide_thoughts
        self.prefix, self.tail, self.write = prefix, tail, write
        self.m.prefix, self.m.prefix_size = <const uint8_t *>PyBytes_AS_STRING(prefix), <size_t>PyBytes_GET_SIZE(prefix)
        self.m.tail, self.m.tail_size = <const uint8_t *>PyBytes_AS_STRING(tail), <size_t>PyBytes_GET_SIZE(tail)
        self.m.content = _keep if whole else _content
        self.m.finish = _finish_whole if whole else _finish

    @property
    def last(self):
        """The chunks of the last wake-up: not written, so that they can leave together with the end of the response."""
        return PyBytes_FromStringAndSize(<char *>self.m.out.data, <Py_ssize_t>self.m.out.size)

    def write_into(self, ResponseStream stream not None):
        """From now on chunks go into the client's stream themselves; `write` is called with nothing when it takes no more."""
        if self.write is not None:
            self.stream = stream

    cdef object wake(self):
        cdef size_t size = self.m.out.size
        if size and self.write is not None and (self.m.open or self.m.error != NULL):
            self.m.out.size = 0
            if self.stream is None:
                self.write(PyBytes_FromStringAndSize(<char *>self.m.out.data, <Py_ssize_t>size))
            elif not self.stream.send(self.m.out.data, size):
                self.write(b"")
        self.leave()

    cdef object drop(self):
        self.write = self.done = self.stream = None


cdef int _content(MachineC *m, ChoiceC *choice, uint32_t index) noexcept nogil:
    cdef const RunC *runs = <const RunC *>choice.thoughts.runs.data
    cdef size_t begin = 0
    cdef size_t i
    if m.marks == NULL:
        if choice.shown.size and _delta(m, index, b'"delta":{"content":"', choice.shown.data, choice.shown.size):
            return -1
        choice.shown.size = 0
        return 0
    for i in range(choice.thoughts.runs.size // sizeof(RunC)):
        if not runs[i].thought and _delta(m, index, b'"delta":{"content":"', choice.thoughts.text.data + begin, runs[i].end - begin):
            return -1
        if runs[i].thought and not m.hide_thoughts:
            if _delta(m, index, b'"delta":{"reasoning_content":"', choice.thoughts.text.data + begin, runs[i].end - begin):
                return -1
        begin = runs[i].end
    choice.thoughts.text.size = choice.thoughts.runs.size = 0
    return 0


cdef int _delta(MachineC *m, uint32_t index, const char *opening, const uint8_t *text, size_t size) noexcept nogil:
    if _open(m) or _begin(m, index) or _text(m, opening) or put_json(&m.out, text, size):
        return -1
    if _text(m, b'"},"logprobs":null,"finish_reason":null}]'):
        return -1
    return put(&m.out, m.tail, m.tail_size)


cdef int _open(MachineC *m) noexcept nogil:
    """Before the first chunk: one chunk with the role for each choice."""
    cdef int32_t i
    if m.opened:
        return 0
    m.opened = True
    for i in range(m.count):
        if _begin(m, <uint32_t>i) or _text(m, b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'):
            return -1
        if put(&m.out, m.tail, m.tail_size):
            return -1
    return 0


cdef int _finish(MachineC *m, ChoiceC *choice, uint32_t index, const EndC *end) noexcept nogil:
    """The last text, then the chunk with the finish reason."""
    if end.reason == ABORT:
        fail(m, b"the engine aborted the request before it was finished", INTERNAL)
        return 0
    if _content(m, choice, index) or _open(m) or _begin(m, index):
        return -1
    if _text(m, b'"delta":{},"logprobs":null,"finish_reason":"') or _text(m, _reason(end)) or _text(m, b'"'):
        return -1
    if _matched(m, end) or _text(m, b"}]"):
        return -1
    return put(&m.out, m.tail, m.tail_size)


cdef int _keep(MachineC *m, ChoiceC *choice, uint32_t index) noexcept nogil:
    return 0


cdef int _finish_whole(MachineC *m, ChoiceC *choice, uint32_t index, const EndC *end) noexcept nogil:
    """The choice with all its text."""
    if end.reason == ABORT:
        fail(m, b"the engine aborted the request before it was finished", INTERNAL)
        return 0
    if _text(m, b'{"index":') or put_number(&m.out, index) or _text(m, b',"message":{"role":"assistant","content":"'):
        return -1
    if _said(m, choice, False) or _text(m, b'","refusal":null'):
        return -1
    if _thinks(m, choice) and (_text(m, b',"reasoning_content":"') or _said(m, choice, True) or _text(m, b'"')):
        return -1
    if _text(m, b'},"logprobs":null,"finish_reason":"') or _text(m, _reason(end)) or _text(m, b'"') or _matched(m, end):
        return -1
    return _text(m, b"}")


cdef bint _thinks(MachineC *m, ChoiceC *choice) noexcept nogil:
    cdef const RunC *runs = <const RunC *>choice.thoughts.runs.data
    cdef size_t i
    if m.marks != NULL and not m.hide_thoughts:
        for i in range(choice.thoughts.runs.size // sizeof(RunC)):
            if runs[i].thought:
                return True
    return False


cdef int _said(MachineC *m, ChoiceC *choice, bint thought) noexcept nogil:
    """Thoughts, or all but thoughts."""
    cdef const RunC *runs = <const RunC *>choice.thoughts.runs.data
    cdef size_t begin = 0
    cdef size_t i
    if m.marks == NULL:
        return put_json(&m.out, choice.shown.data, choice.shown.size)
    for i in range(choice.thoughts.runs.size // sizeof(RunC)):
        if (runs[i].thought != 0) == thought and put_json(&m.out, choice.thoughts.text.data + begin, runs[i].end - begin):
            return -1
        begin = runs[i].end
    return 0


cdef const char *_reason(const EndC *end) noexcept nogil:
    if end.reason == LENGTH:
        return b"length"
    if end.reason == TOOL_CALLS:
        return b"tool_calls"
    return b"content_filter" if end.reason == CONTENT_FILTER else b"stop"


cdef int _matched(MachineC *m, const EndC *end) noexcept nogil:
    if end.matched == 0:
        return 0
    if _text(m, b',"matched_stop":'):
        return -1
    if end.matched == 1:
        return put_number(&m.out, end.matched_id)
    return -1 if _text(m, b'"') or put_json(&m.out, end.text, end.size) or _text(m, b'"') else 0


cdef int _begin(MachineC *m, uint32_t index) noexcept nogil:
    if put(&m.out, m.prefix, m.prefix_size) or _text(m, b',"choices":[{"index":') or put_number(&m.out, index):
        return -1
    return _text(m, b",")


cdef int _text(MachineC *m, const char *text) noexcept nogil:
    return put(&m.out, <const uint8_t *>text, strlen(text))
