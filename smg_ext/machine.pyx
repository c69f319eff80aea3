# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native stream machine of one call: engine messages in; text, stops and ends of its choices out, to an exit given by a subclass.

It decodes each message, turns token ids into text and matches stop strings, all without the GIL. `smg.pipeline.stream.StreamMachine` is its
specification.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memmove, memset, strlen

from smg_ext.sink cimport Sink
from smg_ext.text cimport BufferC, StopStrings, Vocabulary, VocabularyC, decode_finish, decode_token, put, stop_feed
from smg_ext.thoughts cimport ThoughtMarks, begin_thoughts, feed_thoughts, finish_thoughts, free_thoughts
from smg_ext.wire cimport DeltaC, FieldTable, decode

__all__ = ["Machine"]

cdef enum:
    NO_END = -1
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13


cdef class Machine(Sink):
    """What every exit shares. `done(error, status, text)` is called once at the end, and nothing after it.

    `error` is empty when the answer is whole, else what the engine did wrong: with a `status` of 0 it broke its protocol, with another it
    failed. Without `error`, `status` and `text` are those of a call that failed. `ends`, `reported`, `kept`: token ids that end a choice,
    those of them that the client named, and special ones that are shown always. `prompt_tail`: the prompt's last ids, whose text may break
    off in the middle of a character. `unary`: the engine was asked for one message a choice. `marks`: of a thinking block, which is taken
    out of the text; `in_think`: the prompt opened it; not `stream_thoughts`: it is told in one piece.
    """

    def __cinit__(self, FieldTable table not None, Vocabulary vocabulary not None, StopStrings stops, *, int choices, ends, reported,
                  int64_t min_tokens, bint skip_special, bint include_stop, uint32_t prompt_tokens, done, kept=(), prompt_tail=(),
                  bint unary=False, ThoughtMarks marks=None, bint in_think=False, bint stream_thoughts=True, **exit_options):
        memset(&self.m, 0, sizeof(MachineC))
        if choices < 1:
            raise ValueError("at least one choice")
        self.table, self.vocabulary, self.stops, self.marks, self.done = table, vocabulary, stops, marks, done
        self.m.table = table.messages
        self.m.vocabulary = &vocabulary.c
        self.m.stops = &stops.c if stops is not None else NULL
        self.m.choices = <ChoiceC *>calloc(<size_t>choices, sizeof(ChoiceC))
        if self.m.choices == NULL:
            raise MemoryError()
        self.m.count = self.m.open = choices
        _put_ids(&self.m.ends, ends)
        _put_ids(&self.m.reported, reported)
        _put_ids(&self.m.kept, kept)
        self.m.min_tokens = min_tokens
        self.m.skip_special = skip_special
        self.m.include_stop = include_stop
        self.m.unary = unary
        self.m.marks = &marks.c if marks is not None else NULL
        self.m.stream_thoughts = stream_thoughts
        self.m.prompt_tokens = prompt_tokens
        for i in range(choices):
            self.m.choices[i].ended_by = NO_END
            begin_thoughts(&self.m.choices[i].thoughts, in_think)
            for token_id in prompt_tail:
                if _decode(&self.m, &self.m.choices[i], token_id):
                    raise MemoryError()
            self.m.choices[i].text.size = 0
        self.target = &self.m
        self.deliver = _deliver

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.m.count):
            free(self.m.choices[i].decoder.run.data)
            free(self.m.choices[i].text.data)
            free(self.m.choices[i].shown.data)
            free(self.m.choices[i].cuts.data)
            free_thoughts(&self.m.choices[i].thoughts)
        free(self.m.choices)
        free(self.m.delta.ids)
        free(self.m.ends.data)
        free(self.m.reported.data)
        free(self.m.kept.data)
        free(self.m.out.data)

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
        cdef int64_t completion = 0
        cdef int32_t i
        for i in range(self.m.count):
            completion += self.m.choices[i].completion_tokens
        return self.m.prompt_tokens, completion, min(self.m.cached_tokens, self.m.prompt_tokens)

    @property
    def reasoning_tokens(self):
        """Completion tokens inside thinking blocks that the machine took out, so far."""
        cdef int64_t tokens = 0
        cdef int32_t i
        for i in range(self.m.count):
            tokens += self.m.choices[i].thoughts.tokens
        return tokens

    def feed(self, *messages):
        """Takes messages of one wake-up as the plane would (for tests)."""
        cdef bytes message
        for message in messages:
            _deliver(&self.m, <const uint8_t *>PyBytes_AS_STRING(message), <size_t>PyBytes_GET_SIZE(message))
        self.wake()

    cdef object leave(self):
        """After a wake-up: says that the answer is over, where it is."""
        if self.m.error != NULL:
            self.finish((<bytes>self.m.error).decode(), self.m.status, "")
        elif self.m.open == 0:
            self.finish("", 0, "")

    cdef object end(self, int status, object text):
        self.over = True
        self.finish("" if status else "the engine ended its answer without finishing it", status, text)

    cdef object drop(self):
        self.done = None

    cdef object finish(self, str error, int status, object text):
        done = self.done
        self.drop()
        if done is not None:
            done(error, status, text)


cdef int _put_ids(BufferC *buffer, ids) except -1:
    cdef uint32_t value
    for token_id in ids:
        value = token_id
        if put(buffer, <const uint8_t *>&value, sizeof(uint32_t)):
            raise MemoryError()
    return 0


cdef int _deliver(void *sink, const uint8_t *data, size_t size) noexcept nogil:
    """One message: decoded, fed to its choice, told to the exit. -1 when the call is to be reset.

    Of a message that brings an error nothing is told: the specification raises before it has anything to tell.
    """
    cdef MachineC *m = <MachineC *>sink
    cdef size_t before = m.out.size
    cdef bint opened = m.opened
    if m.error != NULL or m.open == 0:
        return 0
    if decode(m.table, &m.delta, data, size):
        return fail(m, b"the engine sent a message that is not of its protocol", 0)
    m.answered = True
    if _take(m, &m.delta):
        fail(m, b"memory is short", RESOURCE_EXHAUSTED)
    if m.error == NULL:
        return 0
    m.out.size = before
    m.opened = opened
    return -1


cdef int fail(MachineC *m, const char *error, int status) noexcept nogil:
    """The answer cannot go on. Gives -1."""
    m.error = error
    m.status = status
    return -1


cdef int _take(MachineC *m, DeltaC *delta) noexcept nogil:
    cdef ChoiceC *choice
    if delta.complete and _is(delta, b"error"):
        fail(m, b"the engine failed while working on the request", INTERNAL)
        return 0
    choice = _choice(m, delta)
    if choice == NULL:
        fail(m, b"the engine answered for a choice that was over or not asked for", 0)
        return 0
    if delta.prompt_tokens:
        m.prompt_tokens = delta.prompt_tokens
    if delta.choice == 0 and delta.cached_tokens > m.cached_tokens:
        m.cached_tokens = delta.cached_tokens
    if delta.complete:
        choice.closed = True
        m.closed += 1
    return 0 if choice.done else _tokens(m, choice, delta)


cdef ChoiceC *_choice(MachineC *m, DeltaC *delta) noexcept nogil:
    """The choice that a message is about, NULL when there is none."""
    cdef int32_t i
    if delta.choice >= <uint32_t>m.count:
        return NULL
    if not m.choices[delta.choice].closed:
        return &m.choices[delta.choice]
    if m.unary and delta.complete:  # SGLang gives every choice of a unary answer the index 0
        for i in range(m.count):
            if not m.choices[i].closed:
                delta.choice = <uint32_t>i
                return &m.choices[i]
    return NULL


cdef int _tokens(MachineC *m, ChoiceC *choice, DeltaC *delta) noexcept nogil:
    cdef size_t i = 0
    cdef int word = -1
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
    return m.content(m, choice, delta.choice)


cdef int _token(MachineC *m, ChoiceC *choice, uint32_t token_id, int *word) noexcept nogil:
    cdef bint armed
    cdef size_t old = choice.text.size
    choice.completion_tokens += 1
    armed = choice.completion_tokens > m.min_tokens
    if armed and _among(token_id, &m.ends):
        choice.ended_by = token_id
        if not (m.include_stop and _among(token_id, &m.reported)):
            return 0
    if _decode(m, choice, token_id) or (choice.text.size > old and _show(m, choice, old, armed, word)):
        return -1
    if m.marks != NULL:
        if _think(m, choice):
            return -1
        choice.thoughts.tokens += choice.thoughts.thinking
    return put(&choice.cuts, <const uint8_t *>&choice.shown.size, sizeof(size_t)) if m.split else 0


cdef int _think(MachineC *m, ChoiceC *choice) noexcept nogil:
    """Moves what is shown to text and thoughts."""
    cdef size_t size = choice.shown.size
    choice.shown.size = 0
    return feed_thoughts(m.marks, &choice.thoughts, m.stream_thoughts, choice.shown.data, size)


cdef int _decode(MachineC *m, ChoiceC *choice, uint32_t token_id) noexcept nogil:
    """Appends the characters that a token completes to `text`."""
    cdef const VocabularyC *vocabulary = m.vocabulary
    if token_id >= vocabulary.count or (m.skip_special and vocabulary.special[token_id] and not _among(token_id, &m.kept)):
        return 0
    return decode_token(vocabulary, &choice.decoder, &choice.text, token_id)


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


cdef bint _among(uint32_t token_id, const BufferC *ids) noexcept nogil:
    cdef const uint32_t *values = <const uint32_t *>ids.data
    cdef size_t i
    for i in range(ids.size // sizeof(uint32_t)):
        if values[i] == token_id:
            return True
    return False


cdef int _close(MachineC *m, ChoiceC *choice, DeltaC *delta, int word) noexcept nogil:
    """The choice is over: its last text, and how it ended."""
    cdef size_t old = choice.text.size
    cdef EndC end
    if word < 0:
        if decode_finish(m.vocabulary, &choice.decoder, &choice.text) or _show(m, choice, old, True, &word):
            return -1
        if word < 0 and put(&choice.shown, choice.text.data, choice.text.size):
            return -1
    if m.marks != NULL and (_think(m, choice) or finish_thoughts(&choice.thoughts, m.stream_thoughts)):
        return -1
    choice.done = True
    m.open -= 1
    _end(m, choice, delta, word, &end)
    return m.finish(m, choice, delta.choice, &end)


cdef void _end(MachineC *m, ChoiceC *choice, DeltaC *delta, int word, EndC *end) noexcept nogil:
    """What ended the choice, where it was something the client asked for or the engine named."""
    memset(end, 0, sizeof(EndC))
    if word >= 0:
        end.matched = 2
        end.text = m.stops.strings.data + m.stops.begins[word]
        end.size = <size_t>m.stops.lengths[word]
    elif choice.ended_by != NO_END:
        end.matched = 1 if _among(<uint32_t>choice.ended_by, &m.reported) else 0
        end.matched_id = choice.ended_by
    else:
        end.reason = _reason(delta)
        end.matched = delta.matched if delta.matched != 1 or _among(delta.matched_id, &m.reported) else 0
        end.matched_id = delta.matched_id
        end.text = delta.matched_text
        end.size = delta.matched_size


cdef Reason _reason(DeltaC *delta) noexcept nogil:
    if _is(delta, b"abort") or _is(delta, b"aborted") or _is(delta, b"cancelled") or _is(delta, b"timeout"):
        return ABORT
    if _is(delta, b"length"):
        return LENGTH
    if _is(delta, b"tool_calls"):
        return TOOL_CALLS
    return CONTENT_FILTER if _is(delta, b"content_filter") else STOP


cdef bint _is(DeltaC *delta, const char *reason) noexcept nogil:
    cdef size_t size = strlen(reason)
    return delta.finish_size == size and memcmp(delta.finish, reason, size) == 0
