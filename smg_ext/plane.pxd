"""Layout of the plane's calls and connections."""

from smg_ext.nghttp2 cimport nghttp2_session
from smg_ext.session cimport CallC, ConnectionC
from smg_ext.sink cimport Sink
from smg_ext.text cimport BufferC


cdef class Call:
    cdef CallC c
    cdef Sink sink
    cdef Connection connection
    cdef bytes request


cdef class Connection:
    cdef ConnectionC c
    cdef nghttp2_session *session
    cdef set calls              # of Call
    cdef object loop
    cdef object socket
    cdef object tls
    cdef object tls_in
    cdef object tls_out
    cdef object tls_unsent      # encrypted bytes that the socket has not taken
    cdef object on_close
    cdef object on_ready
    cdef str fault              # why the connection is about to be closed
    cdef int fd
    cdef bint writing
    cdef bint settling
    cdef readonly bint closed
    cdef BufferC out            # frames to send, from `out_sent` on
    cdef size_t out_sent
    cdef object _after_read(self, int outcome)
    cdef object _wake(self)
    cdef object _wake_call(self, Call call)
    cdef object _end(self, Call call, int status, object text)
    cdef object _report(self, object error)
    cdef object _lost(self, str reason)
    cdef object _flush(self)
    cdef object _send_tls(self)
    cdef object _settle_soon(self)
    cdef object _watch_writes(self, bint wanted)
    cdef int _submit(self, Call call, list headers) except -1
    cdef int _receive(self) noexcept nogil
    cdef int _receive_tls(self) except -1
    cdef int _fill(self) noexcept nogil
    cdef int _send(self) noexcept nogil
