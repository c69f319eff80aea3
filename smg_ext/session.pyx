# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""What nghttp2 calls while frames go in and out: each call's messages, headers and end, noted in its `CallC`, without the GIL.

Nothing here touches a Python object; a call that got something is put on its connection's list, and `smg_ext.plane` wakes it afterwards.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from smg_ext.nghttp2 cimport *
from smg_ext.sink cimport CUT_TOO_LARGE, CUT_WELL, cut
from smg_ext.trailer cimport is_grpc, status_of, take_header

__all__ = []

cdef enum:
    STREAM_WINDOW = 262144          # what one call may have under way: some thousand token messages
    CONNECTION_WINDOW = 67108864    # all calls of a connection; given back at once, so it never stops a call
    HEADERS_MAX = 32768
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13


cdef int open_session(nghttp2_session **session, ConnectionC *connection) noexcept nogil:
    """Makes a client session with its preface queued; 0, or not when memory is short."""
    cdef nghttp2_session_callbacks *callbacks = NULL
    cdef nghttp2_option *option = NULL
    cdef nghttp2_settings_entry settings[3]
    cdef bint failed = nghttp2_session_callbacks_new(&callbacks) != 0 or nghttp2_option_new(&option) != 0
    if not failed:
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, _on_frame)
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, _on_data)
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, _on_stream_close)
        nghttp2_session_callbacks_set_on_header_callback(callbacks, _on_header)
        nghttp2_option_set_no_auto_window_update(option, 1)
        failed = nghttp2_session_client_new2(session, callbacks, connection, option) != 0
    nghttp2_session_callbacks_del(callbacks)
    nghttp2_option_del(option)
    if failed:
        return -1
    settings[0] = nghttp2_settings_entry(NGHTTP2_SETTINGS_ENABLE_PUSH, 0)
    settings[1] = nghttp2_settings_entry(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW)
    settings[2] = nghttp2_settings_entry(NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HEADERS_MAX)
    if nghttp2_submit_settings(session[0], NGHTTP2_FLAG_NONE, settings, 3):
        return -1
    return nghttp2_session_set_local_window_size(session[0], NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW)


cdef int submit_call(nghttp2_session *session, CallC *c, const nghttp2_nv *headers, size_t count) noexcept nogil:
    """Queues the request; 0, or nghttp2's error. `c` must live until it is `closed` or the session is deleted."""
    cdef nghttp2_data_provider provider
    cdef int32_t stream_id
    provider.source.ptr = c
    provider.read_callback = _read_request
    stream_id = nghttp2_submit_request(session, NULL, headers, count, &provider, c)
    if stream_id < 0:
        return stream_id
    c.stream_id = stream_id
    return 0


cdef void put_length(uint8_t *prefix, size_t size) noexcept nogil:
    """Writes gRPC's prefix of a message that is not compressed."""
    prefix[0] = 0
    prefix[1] = <uint8_t>(size >> 24)
    prefix[2] = <uint8_t>(size >> 16)
    prefix[3] = <uint8_t>(size >> 8)
    prefix[4] = <uint8_t>size


cdef object status_of_call(const CallC *c):
    """Gives (gRPC status, text) of a call that nghttp2 is done with."""
    if c.failed == CUT_TOO_LARGE:
        return RESOURCE_EXHAUSTED, "a message is larger than max"
    if c.failed != CUT_WELL or (c.cutter.prefix_size and c.trailer.grpc_status == 0):
        return INTERNAL, "a message of the engine is malformed"
    return status_of(&c.trailer, c.reset_code or None)


cdef void _mark(void *connection, CallC *c) noexcept nogil:
    """Puts the call on the list of those to be woken, once."""
    cdef ConnectionC *owner = <ConnectionC *>connection
    if not c.dirty:
        c.dirty = True
        c.next_dirty = owner.dirty
        owner.dirty = c


cdef ssize_t _read_request(nghttp2_session *session, int32_t stream_id, uint8_t *into, size_t room, uint32_t *flags,
                           nghttp2_data_source *source, void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>source.ptr
    cdef size_t size = min(room, c.request_size - c.request_sent)
    cdef size_t first = 0
    if size and c.request_sent < sizeof(c.prefix):
        first = min(size, sizeof(c.prefix) - c.request_sent)
        memcpy(into, c.prefix + c.request_sent, first)
    if size > first:
        memcpy(into + first, c.request + c.request_sent + first - sizeof(c.prefix), size - first)
    c.request_sent += size
    if c.request_sent == c.request_size:
        flags[0] |= NGHTTP2_DATA_FLAG_EOF
    return <ssize_t>size


cdef int _on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *connection) noexcept nogil:
    cdef CallC *c
    if frame.hd.type == NGHTTP2_GOAWAY:
        (<ConnectionC *>connection).leaving = True
    elif frame.hd.type == NGHTTP2_SETTINGS:
        (<ConnectionC *>connection).ready = True
    elif (frame.hd.type == NGHTTP2_DATA or frame.hd.type == NGHTTP2_HEADERS) and frame.hd.flags & NGHTTP2_FLAG_END_STREAM:
        c = <CallC *>nghttp2_session_get_stream_user_data(session, frame.hd.stream_id)
        if c != NULL and c.request_sent < c.request_size:  # answered before it had heard all: the rest is not wanted
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_CANCEL)
    return 0


cdef int _on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t size,
                  void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>nghttp2_session_get_stream_user_data(session, stream_id)
    nghttp2_session_consume_connection(session, size)
    if c != NULL and c.paused and not c.ended:
        c.unconsumed += size
    else:
        nghttp2_session_consume_stream(session, stream_id, size)
    if c == NULL or c.ended or c.failed or not is_grpc(&c.trailer):
        return 0
    c.failed = cut(&c.cutter, data, size)
    if c.failed:
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream_id, NGHTTP2_CANCEL)
    _mark(connection, c)
    return 0


cdef int _on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                    const uint8_t *value, size_t value_size, uint8_t flags, void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>nghttp2_session_get_stream_user_data(session, frame.hd.stream_id)
    if c != NULL:
        take_header(&c.trailer, frame.hd.flags & NGHTTP2_FLAG_END_STREAM, name, name_size, value, value_size)
    return 0


cdef int _on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t code, void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>nghttp2_session_get_stream_user_data(session, stream_id)
    if c != NULL:
        c.closed = True
        c.reset_code = code
        _mark(connection, c)
    return 0
