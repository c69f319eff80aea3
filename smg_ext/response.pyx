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
    PIECES = 4          # the response's head, a chunk's size, the chunk, what comes after it

cdef const char *AFTER = b"\r\n0\r\n\r\n"


cdef class ResponseStream:
    """An open response. Its user closes it; all calls come from the loop's thread.

    `fd` is the transport's own socket: it stays open until the transport has called `connection_lost`, which sets `link.gone`, so nothing
    is ever written to a number that has come to mean another client's socket. `link` is None where nobody reads. `head` leaves with the
    first chunk.
    """

    def __cinit__(self, link, transport, *, on_end, int fd=-1, bint chunked=True, bint silent=False, bytes head not None=b""):
        self.link, self.transport, self.on_end, self.head = link, transport, on_end, head
        self.fd, self.chunked, self.silent = fd, chunked, silent

    def write(self, bytes data not None):
        """Sends one chunk without waiting; False when the client is gone, or was given up because it does not read."""
        return bool(self.send(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)))

    def close(self, bytes last not None=b""):
        """Ends the body, with one chunk more. May be called again."""
        if self.link is None:
            return
        if self.silent:
            last = b""
        if not self.link.closed:
            self._put(<const uint8_t *>PyBytes_AS_STRING(last), <size_t>PyBytes_GET_SIZE(last), True)
        self.link = self.transport = None
        on_end, self.on_end = self.on_end, None
        on_end()

    cdef int send(self, const uint8_t *data, size_t size) except -1:
        """One chunk; 1, or 0 when nobody reads any more."""
        link = self.link
        if link is None or link.gone or (link.write_paused and link.give_up_if_full()):
            return 0
        if size == 0 or self.silent:
            return 1
        self.count += 1
        self._put(data, size, False)
        return 1

    cdef int _put(self, const uint8_t *data, size_t size, bint last) except -1:
        """Frames and sends: a chunk if there is one, and the end of the body if it is the last."""
        cdef char frame[FRAME_SIZE]
        cdef iovec pieces[PIECES]
        cdef size_t sent = 0
        cdef bytes head = self.head  # lives until the pieces are sent
        memset(pieces, 0, sizeof(pieces))
        pieces[0].iov_base, pieces[0].iov_len = <void *>PyBytes_AS_STRING(head), <size_t>PyBytes_GET_SIZE(head)
        pieces[2].iov_base, pieces[2].iov_len = <void *>data, size
        self.head = b""
        if self.chunked and size:
            pieces[1].iov_base, pieces[1].iov_len = <void *>&frame[0], <size_t>snprintf(&frame[0], FRAME_SIZE, "%zx\r\n", size)
        if self.chunked and not self.silent:
            pieces[3].iov_base = <void *>(AFTER if size else AFTER + 2)
            pieces[3].iov_len = (2 if size else 0) + (5 if last else 0)
        if self.fd >= 0 and self.transport.get_write_buffer_size() == 0:
            with nogil:
                sent = _send(self.fd, pieces)
        if sent < _total(pieces):
            self.transport.write(_rest(pieces, sent))
        return 0


cdef size_t _send(int fd, iovec *pieces) noexcept nogil:
    """Bytes that the kernel took. An error counts as none: the transport meets it too, and knows what to do."""
    cdef msghdr message
    cdef ssize_t sent
    memset(&message, 0, sizeof(message))
    message.msg_iov = pieces
    message.msg_iovlen = PIECES
    sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    return <size_t>sent if sent > 0 else 0


cdef size_t _total(const iovec *pieces) noexcept nogil:
    cdef size_t total = 0
    for i in range(PIECES):
        total += pieces[i].iov_len
    return total


cdef bytes _rest(const iovec *pieces, size_t sent):
    """What is left when so many bytes have gone."""
    cdef bytes rest = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(_total(pieces) - sent))
    cdef char *to = PyBytes_AS_STRING(rest)
    cdef size_t skip
    for i in range(PIECES):
        skip = min(sent, pieces[i].iov_len)
        sent -= skip
        memcpy(to, <const char *>pieces[i].iov_base + skip, pieces[i].iov_len - skip)
        to += pieces[i].iov_len - skip
    return rest
