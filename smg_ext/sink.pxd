"""Layout of what takes a call's messages, for the plane, which feeds it, and for modules with sinks of their own (`smg_ext.stream`)."""

from libc.stdint cimport uint8_t

# Takes one whole message; gives 0, or -1 when the call is to be reset. Must not touch Python objects.
ctypedef int (*DeliverC)(void *sink, const uint8_t *data, size_t size) noexcept nogil


cdef struct CutterC:
    void *sink
    DeliverC deliver
    uint8_t prefix[5]           # of the message being received
    uint8_t prefix_size
    uint8_t *body
    size_t body_size
    size_t body_need
    size_t body_capacity
    size_t body_limit


cdef struct MessagesC:
    uint8_t *data               # length, message, length, message, ...
    size_t size
    size_t capacity


cdef class Sink:
    cdef void *target
    cdef DeliverC deliver
    cdef object wake(self)
    cdef object end(self, int status, object text)
    cdef object drop(self)


cdef class Inbox(Sink):
    cdef MessagesC messages
    cdef object on_messages
    cdef object on_end


cdef enum Cut:
    CUT_WELL
    CUT_MALFORMED               # compressed though no encoding was offered, or refused by the sink
    CUT_TOO_LARGE


cdef Cut cut(CutterC *c, const uint8_t *data, size_t size) noexcept nogil
cdef void stop_cutting(CutterC *c) noexcept nogil
cdef void free_cutter(CutterC *c) noexcept nogil
