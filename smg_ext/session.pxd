"""Layout of a call and a connection as nghttp2's callbacks see them, for `smg_ext.plane`."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from smg_ext.nghttp2 cimport nghttp2_nv, nghttp2_session
from smg_ext.sink cimport CutterC
from smg_ext.trailer cimport TrailerC


cdef enum Outcome:              # of reading or sending
    WELL = 0
    BLOCKED = 1                 # the socket takes no more
    ENDED = 2                   # the engine closed the connection
    BROKEN = 3                  # what it sent is not HTTP/2, or memory is short


cdef struct CallC:
    void *owner                 # the Call, borrowed: the connection's set holds it as long as nghttp2 may name it
    CutterC cutter
    TrailerC trailer
    int32_t stream_id
    uint8_t prefix[5]           # gRPC's, before the message
    const uint8_t *request      # the message
    size_t request_size         # with the prefix
    size_t request_sent
    size_t unconsumed           # bytes taken while paused, not yet given back to the engine's window
    bint paused
    bint ended                  # the sink has heard its last
    bint closed                 # nghttp2 is done with the stream
    bint dirty
    int failed                  # a Cut, 0 = none
    uint32_t reset_code
    CallC *next_dirty


cdef struct ConnectionC:
    CallC *dirty                # calls to be woken
    bint leaving
    bint ready                  # the engine's SETTINGS are here


cdef int open_session(nghttp2_session **session, ConnectionC *connection) noexcept nogil
cdef int submit_call(nghttp2_session *session, CallC *c, const nghttp2_nv *headers, size_t count) noexcept nogil
cdef void put_length(uint8_t *prefix, size_t size) noexcept nogil
cdef object status_of_call(const CallC *c)
