"""Layout of the plane's calls and connections."""

from smg_ext.headers cimport Headers
from smg_ext.nghttp2 cimport nghttp2_session
from smg_ext.session cimport CallC, ConnectionC
from smg_ext.sink cimport Sink
from smg_ext.text cimport BufferC
from smg_ext.tls cimport TlsPipe


cdef class Call:
    cdef CallC c
    cdef Sink sink
    cdef Connection connection
    cdef bytes request
    cdef bint lingering         # on one of the connection's two sets


cdef class Connection:
    cdef ConnectionC c
    cdef nghttp2_session *session
    cdef set calls              # of Call
    cdef set lingering          # calls that have a moment to end by themselves
    cdef set fading             # those that have had half of it
    cdef object sweeping        # the timer that ends them
    cdef object loop
    cdef object socket
    cdef TlsPipe tls            # None without TLS
    cdef object on_close
    cdef object on_ready
    cdef str fault              # why the connection is about to be closed
    cdef int fd
    cdef bint writing
    cdef bint settling
    cdef int unsent             # calls that wait for the loop's iteration to end
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
    cdef object _flush_soon(self)
    cdef object _settle_soon(self)
    cdef object _linger(self, Call call)
    cdef object _closed(self, Call call)
    cdef object _watch_writes(self, bint wanted)
    cdef int _submit(self, Call call, Headers headers, bytes timeout) except -1
    cdef int _receive(self) noexcept nogil
    cdef int _send_tls(self) except -1
    cdef int _fill(self) noexcept nogil
    cdef int _send(self) noexcept nogil
