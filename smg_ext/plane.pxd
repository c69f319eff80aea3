"""Layout of the plane's calls, for modules that take their messages without Python objects (`smg_ext.stream`)."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from smg_ext.nghttp2 cimport nghttp2_session

# Takes one whole message; gives 0, or -1 when the call is to be reset. Must not touch Python objects.
ctypedef int (*DeliverC)(void *sink, const uint8_t *data, size_t size) noexcept nogil


cdef struct CallC:
    void *owner                 # the Call, borrowed: the connection's dict holds it
    void *sink
    DeliverC deliver
    int32_t stream_id
    const uint8_t *request      # 5-byte gRPC prefix and message
    size_t request_size
    size_t request_sent
    uint8_t prefix[5]           # of the message being received
    uint8_t prefix_size
    uint8_t *body
    size_t body_size
    size_t body_need
    size_t body_capacity
    size_t body_limit
    size_t unconsumed           # bytes taken while paused, not yet given back to the engine's window
    bint paused
    bint ended
    bint closed                 # nghttp2 is done with the stream
    bint dirty
    int failed                  # gRPC status of our own making, 0 = none
    int http_status
    int grpc_status             # -1 until a trailer names it
    uint32_t reset_code
    char text[256]              # grpc-message, percent-encoded as received
    size_t text_size
    CallC *next_dirty


cdef struct ConnectionC:
    CallC *dirty                # calls to be woken
    bint leaving
    bint ready                  # the engine's SETTINGS are here


cdef class Sink:
    cdef void *target
    cdef DeliverC deliver
    cdef object wake(self)
    cdef object end(self, int status, object text)


cdef class Call:
    cdef CallC c
    cdef Sink sink
    cdef Connection connection
    cdef bytes request


cdef class Connection:
    cdef ConnectionC c
    cdef nghttp2_session *session
    cdef dict calls
    cdef object loop
    cdef object socket
    cdef object tls
    cdef object tls_in
    cdef object tls_out
    cdef object on_close
    cdef object on_ready
    cdef int fd
    cdef bint writing
    cdef readonly bint closed
    cdef const uint8_t *unsent
    cdef size_t unsent_size
    cdef object _wake(self)
    cdef object _end(self, Call call)
    cdef object _lost(self, str reason)
    cdef object _after_read(self, ssize_t used, bint ended)
    cdef object _watch_writes(self, bint wanted)
    cdef int _open(self) except -1
    cdef int _submit(self, Call call, list headers) except -1
