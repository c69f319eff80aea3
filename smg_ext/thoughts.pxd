"""Layout of what splits thoughts from text, for `smg_ext.machine` and the exits, which take its runs."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from smg_ext.text cimport BufferC, StopsC, StopStrings


cdef struct MarksC:
    const StopsC *outside       # marks that are looked for in text
    const StopsC *inside        # and in the thinking block
    uint8_t *outside_roles      # by mark
    uint8_t *inside_roles


cdef struct MarginC:
    BufferC held                # white space that is layout where a mark follows
    bint started
    bint marked


cdef struct RunC:
    size_t end                  # in `text`; it begins where the run before ends
    size_t thought              # 1 for a thought


cdef struct ThoughtsC:
    BufferC pending             # may become a mark
    int32_t state
    bint inside                 # the thinking block is open
    bint thinking               # what was shown last is a thought
    MarginC content
    MarginC thoughts
    BufferC withheld            # thoughts, where they are wanted in one piece
    BufferC text                # this and the runs are for the exit, which empties them
    BufferC runs                # RunC
    int64_t tokens              # inside the thinking block


cdef class ThoughtMarks:
    cdef MarksC c
    cdef StopStrings outside
    cdef StopStrings inside


cdef void begin_thoughts(ThoughtsC *t, bint inside) noexcept nogil
cdef int feed_thoughts(const MarksC *marks, ThoughtsC *t, bint stream, const uint8_t *data, size_t size) noexcept nogil
cdef int finish_thoughts(ThoughtsC *t, bint stream) noexcept nogil
cdef void free_thoughts(ThoughtsC *t) noexcept nogil
