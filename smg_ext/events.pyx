# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The native stream machine with its event exit: engine messages in, once a wake-up a list of what is new in each choice out.

For whole answers, and for what parsers written in Python read on. `smg.pipeline.stream.StreamMachine` is its specification. Made by
`smg.pipeline.native`.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from smg_ext.machine cimport ChoiceC, EndC, Machine, MachineC
from smg_ext.text cimport BufferC, put
from smg_ext.thoughts cimport RunC

__all__ = ["EventSink"]

REASONS = ("stop", "length", "tool_calls", "content_filter", "abort")


cdef struct RecordC:
    uint32_t index              # of the choice
    int reason                  # -1 while it goes on
    int matched                 # 0 nothing, 1 matched_id, 2 text
    int64_t matched_id
    size_t size                 # of what follows: text, then cuts, then matched text
    size_t cuts                 # or runs
    size_t matched_size


cdef class EventSink(Machine):
    """One call. `take(list)` is called once a wake-up, and not after `done`, with one (choice, text, end) a message that says something.

    `end` is None while the choice goes on, else (reason, matched stop: text, id or None). `split`: `text` is a list, one text a token and
    one more for what came at the end of the output; tokens without text count, but not one that only ended the choice. `gather`: nothing
    is told before every choice is over, then each choice once, as it ended. With `marks`, `text` is a list of (thought, text) instead.
    """

    cdef object take
    cdef bint gather

    def __cinit__(self, *_arguments, take, bint split=False, bint gather=False, **_options):
        self.take, self.gather = take, gather
        self.m.split = split
        self.m.content = _keep if gather else _content
        self.m.finish = _finish

    cdef object wake(self):
        if self.m.out.size and self.m.error == NULL and self.take is not None and (self.m.open == 0 or not self.gather):
            records = _records(&self.m.out, self.m.split, self.m.marks != NULL)
            self.m.out.size = 0
            self.take(records)
        self.leave()

    cdef object drop(self):
        self.take = self.done = None


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
    record.size = text.size
    record.cuts = cuts.size
    record.matched_size = end.size if record.matched == 2 else 0
    if put(&m.out, <const uint8_t *>&record, sizeof(RecordC)) or put(&m.out, text.data, record.size):
        return -1
    if put(&m.out, cuts.data, record.cuts):
        return -1
    text.size = cuts.size = 0
    return put(&m.out, end.text, record.matched_size) if record.matched_size else 0


cdef list _records(const BufferC *out, bint split, bint thoughts):
    cdef RecordC record
    cdef size_t at = 0
    cdef const uint8_t *text
    cdef const uint8_t *matched
    records = []
    while at < out.size:
        memcpy(&record, out.data + at, sizeof(RecordC))
        text = out.data + at + sizeof(RecordC)
        matched = text + record.size + record.cuts
        if thoughts:
            shown = _runs(text, text + record.size, record.cuts)
        else:
            shown = _split(text, record.size, text + record.size, record.cuts) if split else _string(text, record.size)
        end = None if record.reason < 0 else (REASONS[record.reason], _matched(&record, matched))
        records.append((record.index, shown, end))
        at += sizeof(RecordC) + record.size + record.cuts + record.matched_size
    return records


cdef object _matched(const RecordC *record, const uint8_t *text):
    if record.matched == 1:
        return record.matched_id
    return _string(text, record.matched_size) if record.matched == 2 else None


cdef list _runs(const uint8_t *text, const uint8_t *runs, size_t size):
    cdef RunC run
    cdef size_t begin = 0
    cdef size_t i
    parts = []
    for i in range(0, size, sizeof(RunC)):
        memcpy(&run, runs + i, sizeof(RunC))
        parts.append((run.thought != 0, _string(text + begin, run.end - begin)))
        begin = run.end
    return parts


cdef list _split(const uint8_t *text, size_t size, const uint8_t *cuts, size_t cuts_size):
    """One text a token, and the rest."""
    cdef size_t begin = 0
    cdef size_t end
    cdef size_t i
    parts = []
    for i in range(0, cuts_size, sizeof(size_t)):
        memcpy(&end, cuts + i, sizeof(size_t))
        parts.append(_string(text + begin, end - begin))
        begin = end
    parts.append(_string(text + begin, size - begin))
    return parts


cdef str _string(const uint8_t *text, size_t size):
    return PyUnicode_DecodeUTF8(<const char *>text, <Py_ssize_t>size, "replace")
