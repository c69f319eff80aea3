# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The body of a streamed HTTP/1.1 response: chunks go from native buffers to the client's socket, without a Python object in between.

A chunk is handed to the kernel at once where nothing waits before it; what the kernel does not take, and what comes while something waits,
queues in the transport, which has its own bounds and clock. `smg.server.front.stream.PlainStream` is the specification.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset

__all__ = ["ResponseStream"]

cdef extern from "<sys/socket.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr *, int)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef enum:
    FRAME_SIZE = 20     # the longest size in hexadecimal, and a line break

cdef const char *LINE_BREAK = b"\r\n"


cdef class ResponseStream:
    """An open response. Its user closes it; all calls come from the loop's thread.

    `fd` is the transport's own socket: it stays open until the transport has called `connection_lost`, which sets `link.gone`, so nothing
    is ever written to a number that has come to mean another client's socket. `link` is None where nobody reads.
    """

    def __cinit__(self, link, transport, *, on_end, int fd=-1, bint chunked=True, bint silent=False):
        self.link, self.transport, self.on_end = link, transport, on_end
        self.fd, self.chunked, self.silent = fd, chunked, silent

    def write(self, bytes data not None):
        """Sends one chunk without waiting; False when the client is gone, or was given up because it does not read."""
        return bool(self.send(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)))

    def close(self):
        """Ends the body. May be called again."""
        if self.link is not None:
            self.link = self.transport = None
            on_end, self.on_end = self.on_end, None
            on_end()

    cdef int send(self, const uint8_t *data, size_t size) except -1:
        """One chunk; 1, or 0 when nobody reads any more."""
        cdef char head[FRAME_SIZE]
        cdef size_t head_size = 0
        cdef size_t tail_size = 0
        cdef size_t sent = 0
        link = self.link
        if link is None or link.gone or (link.write_paused and link.give_up_if_full()):
            return 0
        if size == 0 or self.silent:
            return 1
        self.count += 1
        if self.chunked:
            head_size = <size_t>snprintf(head, FRAME_SIZE, "%zx\r\n", size)
            tail_size = 2
        if self.fd >= 0 and self.transport.get_write_buffer_size() == 0:
            with nogil:
                sent = _send(self.fd, head, head_size, data, size, tail_size)
        if sent < head_size + size + tail_size:
            self.transport.write(_rest(head, head_size, data, size, tail_size, sent))
        return 1


cdef size_t _send(int fd, const char *head, size_t head_size, const uint8_t *data, size_t size, size_t tail_size) noexcept nogil:
    """Bytes that the kernel took. An error counts as none: the transport meets it too, and knows what to do."""
    cdef iovec pieces[3]
    cdef msghdr message
    cdef ssize_t sent
    pieces[0] = iovec(<void *>head, head_size)
    pieces[1] = iovec(<void *>data, size)
    pieces[2] = iovec(<void *>LINE_BREAK, tail_size)
    memset(&message, 0, sizeof(message))
    message.msg_iov = pieces
    message.msg_iovlen = 3
    sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    return <size_t>sent if sent > 0 else 0


cdef bytes _rest(const char *head, size_t head_size, const uint8_t *data, size_t size, size_t tail_size, size_t sent):
    """What is left of a chunk, framed."""
    cdef bytes rest = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(head_size + size + tail_size - sent))
    cdef char *to = PyBytes_AS_STRING(rest)
    cdef const char *parts[3]
    cdef size_t sizes[3]
    cdef size_t skip
    parts[:] = [head, <const char *>data, LINE_BREAK]
    sizes[:] = [head_size, size, tail_size]
    for i in range(3):
        skip = min(sent, sizes[i])
        sent -= skip
        memcpy(to, parts[i] + skip, sizes[i] - skip)
        to += sizes[i] - skip
    return rest
