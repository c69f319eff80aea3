"""Layout of the native stream machine, for the sinks that end in it: server-sent events (`smg_ext.stream`), events (`smg_ext.events`)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from smg_ext.sink cimport Sink
from smg_ext.text cimport BufferC, DecoderC, StopsC, StopStrings, Vocabulary, VocabularyC
from smg_ext.thoughts cimport MarksC, ThoughtMarks, ThoughtsC
from smg_ext.wire cimport DeltaC, FieldTable, MessageC


cdef enum Reason:
    STOP
    LENGTH
    TOOL_CALLS
    CONTENT_FILTER
    ABORT


cdef struct EndC:
    Reason reason
    int matched                 # 0 nothing, 1 matched_id, 2 text
    int64_t matched_id
    const uint8_t *text         # valid during the call of `finish`
    size_t size


cdef struct ChoiceC:
    DecoderC decoder
    BufferC text                # decoded, not yet shown: a tail that may become a stop string
    BufferC shown               # not yet told; the exit empties it
    BufferC cuts                # size_t: of `shown` after each token, where the exit asks for them
    ThoughtsC thoughts          # takes what is shown where the machine has `marks`
    int32_t stop_state
    int64_t seen                # ids taken from the engine
    int64_t completion_tokens
    int64_t ended_by            # id that ended the choice, -1 while none did
    bint done                   # ended here, by either side
    bint closed                 # ended by the engine


cdef struct MachineC

# An exit: what a message showed of a choice, and how the choice ended (its last text is still in `shown`). 0, or -1 without memory.
ctypedef int (*ContentC)(MachineC *m, ChoiceC *choice, uint32_t index) noexcept nogil
ctypedef int (*FinishC)(MachineC *m, ChoiceC *choice, uint32_t index, const EndC *end) noexcept nogil


cdef struct MachineC:
    const MessageC *table
    const VocabularyC *vocabulary
    const StopsC *stops         # NULL without stop strings
    ContentC content
    FinishC finish
    DeltaC delta
    ChoiceC *choices
    int32_t count
    int32_t open                # choices that are not done
    int32_t closed              # choices that the engine closed
    BufferC ends                # uint32_t: ids that end a choice
    BufferC reported            # of these, the client's own
    BufferC kept                # special ids that are shown although special ones are skipped
    int64_t min_tokens
    bint skip_special
    bint include_stop
    bint unary                  # one message a choice, which need not name it
    bint split                  # `cuts` are wanted
    const MarksC *marks         # NULL where nobody thinks, or a parser in Python reads on
    bint stream_thoughts        # they are told as they come
    bint opened                 # the exit has begun its answer
    bint cut                    # a choice was ended here: the engine is to be aborted
    bint answered
    uint32_t prompt_tokens
    uint32_t cached_tokens
    const char *error           # why the answer cannot go on; a literal
    int status                  # gRPC status that stands for the error, 0 when the engine broke its protocol
    BufferC out                 # this and what follows is the exit's own
    const uint8_t *prefix
    size_t prefix_size
    const uint8_t *tail
    size_t tail_size
    bint hide_thoughts


cdef class Machine(Sink):
    cdef MachineC m
    cdef Vocabulary vocabulary
    cdef StopStrings stops
    cdef FieldTable table
    cdef ThoughtMarks marks
    cdef object done
    cdef readonly bint over     # the call itself has ended
    cdef object leave(self)
    cdef object finish(self, str error, int status, object text)


cdef int fail(MachineC *m, const char *error, int status) noexcept nogil
