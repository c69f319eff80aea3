# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Where a call's messages go: the bytes of its stream in, whole gRPC messages out, each given to a `Sink` without the GIL.

A message that lies whole in one HTTP/2 frame is delivered from there, without a copy. Used by `smg_ext.plane`; format as in
github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, Length-Prefixed-Message.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

__all__ = ["Inbox", "Sink"]

cdef enum:
    KEPT_BYTES = 1048576            # memory that is kept from one message to the next


cdef class Sink:
    """Receives one call's messages. A subclass sets `target` and `deliver`, and says what to do once a wake-up and at the end.

    `wake`, `end` and `drop` are called by the loop, never from inside `Connection.call`. `end` comes once, unless the call was cancelled:
    then `drop` comes, and nothing more.
    """

    cdef object wake(self):
        return None

    cdef object end(self, int status, object text):
        return None

    cdef object drop(self):
        return None


cdef class Inbox(Sink):
    """A sink that hands messages to Python: `on_messages(list[bytes])` once a wake-up, `on_end(status, text)` once."""

    def __cinit__(self, on_messages, on_end):
        self.on_messages = on_messages
        self.on_end = on_end
        self.target = &self.messages
        self.deliver = _keep

    def __dealloc__(self):
        free(self.messages.data)

    cdef object wake(self):
        cdef size_t at = 0
        cdef size_t length
        taken = []
        while at < self.messages.size:
            memcpy(&length, self.messages.data + at, sizeof(size_t))
            at += sizeof(size_t)
            taken.append(PyBytes_FromStringAndSize(<char *>self.messages.data + at, <Py_ssize_t>length))
            at += length
        self.messages.size = 0
        if self.messages.capacity > KEPT_BYTES:
            free(self.messages.data)
            self.messages.data = NULL
            self.messages.capacity = 0
        if taken and self.on_messages is not None:
            self.on_messages(taken)

    cdef object end(self, int status, object text):
        on_end = self.on_end
        self.drop()
        if on_end is not None:
            on_end(status, text)

    cdef object drop(self):
        self.on_messages = self.on_end = None


cdef int _keep(void *sink, const uint8_t *data, size_t size) noexcept nogil:
    cdef MessagesC *messages = <MessagesC *>sink
    cdef size_t need = messages.size + sizeof(size_t) + size
    cdef uint8_t *larger
    if need > messages.capacity:
        larger = <uint8_t *>realloc(messages.data, need * 2)
        if larger == NULL:
            return -1
        messages.data = larger
        messages.capacity = need * 2
    memcpy(messages.data + messages.size, &size, sizeof(size_t))
    if size:
        memcpy(messages.data + messages.size + sizeof(size_t), data, size)
    messages.size = need
    return 0


cdef int _drop(void *sink, const uint8_t *data, size_t size) noexcept nogil:
    return 0


cdef void stop_cutting(CutterC *c) noexcept nogil:
    """From now on messages go nowhere; the sink may be freed."""
    c.sink = NULL
    c.deliver = _drop


cdef void free_cutter(CutterC *c) noexcept nogil:
    free(c.body)
    c.body = NULL
    c.body_capacity = 0


cdef Cut cut(CutterC *c, const uint8_t *data, size_t size) noexcept nogil:
    """Cuts the stream's bytes into messages and delivers each. After a fault the cutter must not be fed again."""
    cdef size_t take
    while size:
        if c.prefix_size == 0 and size >= 5 and data[0] == 0:
            take = _length(data)
            if take <= size - 5 and take <= c.body_limit:  # a whole message lies in this frame: no copy
                if c.deliver(c.sink, data + 5, take):
                    return CUT_MALFORMED
                data += 5 + take
                size -= 5 + take
                continue
        if c.prefix_size < 5:
            c.prefix[c.prefix_size] = data[0]
            c.prefix_size += 1
            data += 1
            size -= 1
            if c.prefix_size < 5:
                continue
            if c.prefix[0] != 0:
                return CUT_MALFORMED
            c.body_need = _length(c.prefix)
            c.body_size = 0
            if c.body_need > c.body_limit:
                return CUT_TOO_LARGE
        take = min(size, c.body_need - c.body_size)
        if take and _append(c, data, take):
            return CUT_TOO_LARGE
        data += take
        size -= take
        if c.body_size == c.body_need and _whole(c):
            return CUT_MALFORMED
    return CUT_WELL


cdef int _whole(CutterC *c) noexcept nogil:
    """Delivers the message that came in parts."""
    cdef int refused = c.deliver(c.sink, c.body, c.body_size)
    c.prefix_size = 0
    if c.body_capacity > KEPT_BYTES:
        free_cutter(c)
    return refused


cdef size_t _length(const uint8_t *prefix) noexcept nogil:
    return (<size_t>prefix[1] << 24) | (<size_t>prefix[2] << 16) | (<size_t>prefix[3] << 8) | prefix[4]


cdef int _append(CutterC *c, const uint8_t *data, size_t size) noexcept nogil:
    """Adds to the message; memory grows with what has arrived, not with what the prefix claims."""
    cdef size_t need = c.body_size + size
    cdef uint8_t *larger
    if need > c.body_capacity:
        larger = <uint8_t *>realloc(c.body, min(need * 2, c.body_need))
        if larger == NULL:
            return -1
        c.body = larger
        c.body_capacity = min(need * 2, c.body_need)
    memcpy(c.body + c.body_size, data, size)
    c.body_size = need
    return 0
