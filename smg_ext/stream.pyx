# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native stream machine with its chat/completions exit: engine messages in, server-sent events out, no Python object in between.

A `ChatSink` serves one call: it decodes each message, turns token ids into text, matches stop strings and writes chunks into one buffer,
all without the GIL; once a wake-up the buffer leaves as one write. `smg.pipeline.stream.StreamMachine` with
`smg.api.openai.chat_stream.ChatStream` is its specification. Made by `smg.pipeline.native`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memmove, memset, strlen

from smg_ext.sink cimport Sink
from smg_ext.text cimport (
    BufferC,
    StopStrings,
    StopsC,
    Utf8C,
    Vocabulary,
    VocabularyC,
    put,
    put_json,
    put_number,
    stop_feed,
    utf8_feed,
    utf8_finish,
)
from smg_ext.wire cimport DeltaC, FieldTable, MessageC, decode

__all__ = ["ChatSink"]

cdef enum:
    NO_END = -1
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13


cdef struct ChoiceC:
    Utf8C utf8
    BufferC text            # decoded, not yet shown: a tail that may become a stop string
    BufferC shown           # of the message at hand
    int32_t stop_state
    int64_t seen            # ids taken from the engine
    int64_t completion_tokens
    int64_t ended_by        # id that ended the choice, NO_END while none did
    bint done               # ended here, by either side
    bint closed             # ended by the engine


cdef struct MachineC:
    const MessageC *table
    const VocabularyC *vocabulary
    const StopsC *stops     # NULL without stop strings
    DeltaC delta
    ChoiceC *choices
    int32_t count
    int32_t open            # choices that are not done
    const uint32_t *ends    # ids that end a choice
    size_t end_count
    const uint32_t *reported
    size_t reported_count
    int64_t min_tokens
    bint skip_special
    bint include_stop
    bint opened             # the role chunks are out
    bint cut                # a choice was ended here: the engine is to be aborted
    bint answered
    int32_t closed          # choices that the engine closed
    uint32_t prompt_tokens
    uint32_t cached_tokens
    BufferC out
    BufferC prefix          # `data: {...` without the closing brace
    BufferC tail            # `}` and the blank line, with `"usage":null` where usage was asked for
    const char *error       # why the answer cannot go on; a literal
    int status              # gRPC status that stands for the error, 0 when the engine broke its protocol


cdef class ChatSink(Sink):
    """One call's machine. `write(bytes)` is called once a wake-up; `done(error, status, text)` once at the end.

    `error` is empty when the answer is whole, else what the engine did wrong: with a `status` of 0 it broke its protocol, with another it
    failed. Without `error`, `status` and `text` are those of a call that failed. No call of `write` follows a call of `done`.
    """

    cdef MachineC m
    cdef Vocabulary vocabulary
    cdef StopStrings stops
    cdef FieldTable table
    cdef object write
    cdef object done
    cdef bytes ends
    cdef bytes reported

    def __cinit__(self, FieldTable table not None, Vocabulary vocabulary not None, StopStrings stops, *, int choices, ends, reported,
                  int64_t min_tokens, bint skip_special, bint include_stop, uint32_t prompt_tokens, bytes prefix not None,
                  bytes tail not None, write, done):
        memset(&self.m, 0, sizeof(MachineC))
        if choices < 1:
            raise ValueError("at least one choice")
        self.table, self.vocabulary, self.stops = table, vocabulary, stops
        self.ends = b"".join(token_id.to_bytes(4, "little") for token_id in ends)
        self.reported = b"".join(token_id.to_bytes(4, "little") for token_id in reported)
        self.write, self.done = write, done
        self.m.table = table.messages
        self.m.vocabulary = &vocabulary.c
        self.m.stops = &stops.c if stops is not None else NULL
        self.m.choices = <ChoiceC *>calloc(<size_t>choices, sizeof(ChoiceC))
        if self.m.choices == NULL:
            raise MemoryError()
        self.m.count = self.m.open = choices
        for i in range(choices):
            self.m.choices[i].ended_by = NO_END
        self.m.ends = <const uint32_t *>PyBytes_AS_STRING(self.ends)
        self.m.end_count = len(self.ends) // 4
        self.m.reported = <const uint32_t *>PyBytes_AS_STRING(self.reported)
        self.m.reported_count = len(self.reported) // 4
        self.m.min_tokens = min_tokens
        self.m.skip_special = skip_special
        self.m.include_stop = include_stop
        self.m.prompt_tokens = prompt_tokens
        if _put_bytes(&self.m.prefix, prefix) or _put_bytes(&self.m.tail, tail):
            raise MemoryError()
        self.target = &self.m
        self.deliver = _deliver

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.m.count):
            free(self.m.choices[i].text.data)
            free(self.m.choices[i].shown.data)
        free(self.m.choices)
        free(self.m.delta.ids)
        free(self.m.out.data)
        free(self.m.prefix.data)
        free(self.m.tail.data)

    @property
    def answered(self):
        """True once the engine has sent a message."""
        return self.m.answered

    @property
    def cut(self):
        """True when a choice was ended here, so that the engine must be aborted."""
        return self.m.cut

    @property
    def whole(self):
        """True when the engine itself closed every choice: the call will end by itself."""
        return self.m.closed == self.m.count

    @property
    def usage(self):
        """(prompt, completion, cached) tokens so far."""
        completion = sum([self.m.choices[i].completion_tokens for i in range(self.m.count)])
        return self.m.prompt_tokens, completion, min(self.m.cached_tokens, self.m.prompt_tokens)

    def feed(self, bytes message not None):
        """Takes one message as the plane would (for tests)."""
        _deliver(&self.m, <const uint8_t *>PyBytes_AS_STRING(message), <size_t>PyBytes_GET_SIZE(message))
        self.wake()

    cdef object wake(self):
        if self.m.out.size and self.write is not None:
            chunk = PyBytes_FromStringAndSize(<char *>self.m.out.data, <Py_ssize_t>self.m.out.size)
            self.m.out.size = 0
            self.write(chunk)
        if self.m.error != NULL:
            self._finish((<bytes>self.m.error).decode(), self.m.status, "")
        elif self.m.open == 0:
            self._finish("", 0, "")

    cdef object end(self, int status, object text):
        self._finish("" if status else "the engine ended its answer without finishing it", status, text)

    cdef object drop(self):
        self.write = self.done = None

    cdef object _finish(self, str error, int status, object text):
        done = self.done
        self.drop()
        if done is not None:
            done(error, status, text)


cdef int _put_bytes(BufferC *buffer, bytes data) except -1:
    return put(buffer, <const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))


cdef int _deliver(void *sink, const uint8_t *data, size_t size) noexcept nogil:
    """One message: decoded, fed to its choice, chunks written. -1 when the call is to be reset.

    A message that brings an error leaves no chunk: the specification raises before it has any.
    """
    cdef MachineC *m = <MachineC *>sink
    cdef size_t before = m.out.size
    cdef bint opened = m.opened
    if m.error != NULL or m.open == 0:
        return 0
    if decode(m.table, &m.delta, data, size):
        return _fail(m, b"the engine sent a message that is not of its protocol", 0)
    m.answered = True
    if _take(m, &m.delta):
        _fail(m, b"memory is short", RESOURCE_EXHAUSTED)
    if m.error == NULL:
        return 0
    m.out.size = before
    m.opened = opened
    return -1


cdef int _take(MachineC *m, DeltaC *delta) noexcept nogil:
    cdef ChoiceC *choice
    if delta.complete and _is(delta, b"error"):
        _fail(m, b"the engine failed while working on the request", INTERNAL)
        return 0
    choice = &m.choices[delta.choice] if delta.choice < <uint32_t>m.count else NULL
    if choice == NULL or choice.closed:
        _fail(m, b"the engine answered for a choice that was over or not asked for", 0)
        return 0
    if delta.prompt_tokens:
        m.prompt_tokens = delta.prompt_tokens
    if delta.choice == 0 and delta.cached_tokens > m.cached_tokens:
        m.cached_tokens = delta.cached_tokens
    if delta.complete:
        choice.closed = True
        m.closed += 1
    return 0 if choice.done else _tokens(m, choice, delta)


cdef int _fail(MachineC *m, const char *error, int status) noexcept nogil:
    m.error = error
    m.status = status
    return -1


cdef int _tokens(MachineC *m, ChoiceC *choice, DeltaC *delta) noexcept nogil:
    cdef size_t i = 0
    cdef int word = -1
    choice.shown.size = 0
    if delta.complete:  # it may repeat what was seen: the ids beyond that are new
        i = <size_t>min(choice.seen, <int64_t>delta.count)
    choice.seen += <int64_t>(delta.count - i)
    while i < delta.count:
        if choice.ended_by != NO_END:
            m.cut = True  # the engine does not know this end and runs on
            return _close(m, choice, delta, -1)
        if _token(m, choice, delta.ids[i], &word):
            return -1
        if word >= 0:
            m.cut = True
            return _close(m, choice, delta, word)
        i += 1
    if delta.complete:
        return _close(m, choice, delta, -1)
    return _content(m, choice, delta.choice)


cdef int _token(MachineC *m, ChoiceC *choice, uint32_t token_id, int *word) noexcept nogil:
    cdef bint armed
    cdef const VocabularyC *vocabulary = m.vocabulary
    cdef size_t old = choice.text.size
    choice.completion_tokens += 1
    armed = choice.completion_tokens > m.min_tokens
    if armed and _among(token_id, m.ends, m.end_count):
        choice.ended_by = token_id
        if not (m.include_stop and _among(token_id, m.reported, m.reported_count)):
            return 0
    if token_id >= vocabulary.count or (m.skip_special and vocabulary.special[token_id]):
        return 0
    if utf8_feed(&choice.utf8, &choice.text, vocabulary.data + vocabulary.offsets[token_id],
                 vocabulary.offsets[token_id + 1] - vocabulary.offsets[token_id]):
        return -1
    return _show(m, choice, old, armed, word)


cdef int _show(MachineC *m, ChoiceC *choice, size_t old, bint armed, int *word) noexcept nogil:
    """Moves what no stop string can claim any more from `text` to `shown`."""
    cdef size_t end = choice.text.size
    if m.stops != NULL:
        word[0] = stop_feed(m.stops, &choice.stop_state, &choice.text, old, armed, &end)
        if word[0] >= 0 and not m.include_stop:
            end -= <size_t>m.stops.lengths[word[0]]
    if put(&choice.shown, choice.text.data, end):
        return -1
    choice.text.size -= end
    if choice.text.size:
        memmove(choice.text.data, choice.text.data + end, choice.text.size)
    return 0


cdef bint _among(uint32_t token_id, const uint32_t *ids, size_t count) noexcept nogil:
    cdef size_t i
    for i in range(count):
        if ids[i] == token_id:
            return True
    return False


cdef int _close(MachineC *m, ChoiceC *choice, DeltaC *delta, int word) noexcept nogil:
    """The choice is over: its last text, then the chunk with the finish reason."""
    cdef size_t old = choice.text.size
    if word < 0:
        if utf8_finish(&choice.utf8, &choice.text) or _show(m, choice, old, True, &word):
            return -1
        if word < 0 and put(&choice.shown, choice.text.data, choice.text.size):
            return -1
    choice.done = True
    m.open -= 1
    if _content(m, choice, delta.choice) or _open(m):
        return -1
    return _reason(m, choice, delta, word)


cdef int _open(MachineC *m) noexcept nogil:
    """Before the first chunk: one chunk with the role for each choice."""
    cdef int32_t i
    if m.opened:
        return 0
    m.opened = True
    for i in range(m.count):
        if _begin(m, <uint32_t>i) or _text(m, b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'):
            return -1
        if put(&m.out, m.tail.data, m.tail.size):
            return -1
    return 0


cdef int _content(MachineC *m, ChoiceC *choice, uint32_t index) noexcept nogil:
    if choice.shown.size == 0:
        return 0
    if _open(m) or _begin(m, index) or _text(m, b'"delta":{"content":"'):
        return -1
    if put_json(&m.out, choice.shown.data, choice.shown.size):
        return -1
    choice.shown.size = 0
    if _text(m, b'"},"logprobs":null,"finish_reason":null}]'):
        return -1
    return put(&m.out, m.tail.data, m.tail.size)


cdef int _reason(MachineC *m, ChoiceC *choice, DeltaC *delta, int word) noexcept nogil:
    cdef const char *reason = b"stop"
    if word < 0 and choice.ended_by == NO_END:
        if _is(delta, b"abort") or _is(delta, b"aborted") or _is(delta, b"cancelled") or _is(delta, b"timeout"):
            _fail(m, b"the engine aborted the request before it was finished", INTERNAL)
            return 0
        if _is(delta, b"length"):
            reason = b"length"
        elif _is(delta, b"tool_calls"):
            reason = b"tool_calls"
        elif _is(delta, b"content_filter"):
            reason = b"content_filter"
    if _begin(m, delta.choice) or _text(m, b'"delta":{},"logprobs":null,"finish_reason":"') or _text(m, reason) or _text(m, b'"'):
        return -1
    if _matched(m, choice, delta, word) or _text(m, b"}]"):
        return -1
    return put(&m.out, m.tail.data, m.tail.size)


cdef int _matched(MachineC *m, ChoiceC *choice, DeltaC *delta, int word) noexcept nogil:
    """What ended the choice, where it was something the client asked for or the engine named."""
    if word < 0 and choice.ended_by != NO_END:
        if not _among(<uint32_t>choice.ended_by, m.reported, m.reported_count):
            return 0
        return -1 if _text(m, b',"matched_stop":') or put_number(&m.out, choice.ended_by) else 0
    if word < 0 and (delta.matched == 0 or (delta.matched == 1 and not _among(delta.matched_id, m.reported, m.reported_count))):
        return 0
    if _text(m, b',"matched_stop":'):
        return -1
    if word < 0 and delta.matched == 1:
        return put_number(&m.out, delta.matched_id)
    if _text(m, b'"'):
        return -1
    if word >= 0:
        if put_json(&m.out, m.stops.strings.data + m.stops.begins[word], <size_t>m.stops.lengths[word]):
            return -1
    elif put_json(&m.out, delta.matched_text, delta.matched_size):
        return -1
    return _text(m, b'"')


cdef bint _is(DeltaC *delta, const char *reason) noexcept nogil:
    cdef size_t size = strlen(reason)
    return delta.finish_size == size and memcmp(delta.finish, reason, size) == 0


cdef int _begin(MachineC *m, uint32_t index) noexcept nogil:
    if put(&m.out, m.prefix.data, m.prefix.size) or _text(m, b',"choices":[{"index":') or put_number(&m.out, index):
        return -1
    return _text(m, b",")


cdef int _text(MachineC *m, const char *text) noexcept nogil:
    return put(&m.out, <const uint8_t *>text, strlen(text))
