# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""gRPC client for server-streaming calls, on nghttp2, inside the event loop of a data worker.

In: a connected non-blocking socket and serialized requests. Out: each whole message goes to a `Sink` without the GIL; once a wake-up, every
sink that got something is woken with it. Flow control is manual, so that a paused call holds its engine back. Used by `smg.engine.native`.
"""

import ssl
from urllib.parse import unquote_to_bytes

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from smg_ext.nghttp2 cimport *

__all__ = ["Call", "Connection", "Inbox", "Sink"]

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void *, size_t, int)
    ssize_t send(int, const void *, size_t, int)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "<errno.h>" nogil:
    int c_errno "errno"
    int EAGAIN
    int EWOULDBLOCK
    int EINTR

cdef enum:
    READ_SIZE = 65536
    READS_PER_WAKE = 16             # 1 MB, then other sockets get their turn
    STREAM_WINDOW = 262144          # what one call may have under way: some thousand token messages
    CONNECTION_WINDOW = 67108864    # all calls of a connection; given back at once, so it never stops a call
    HEADERS_MAX = 32768
    UNKNOWN = 2
    CANCELLED = 1
    RESOURCE_EXHAUSTED = 8
    PERMISSION_DENIED = 7
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16
    UNIMPLEMENTED = 12


cdef struct MessagesC:
    uint8_t *data               # length, message, length, message, ...
    size_t size
    size_t capacity


cdef class Sink:
    """Receives one call's messages. A subclass sets `target` and `deliver`, and says what to do once a wake-up and at the end."""

    cdef object wake(self):
        return None

    cdef object end(self, int status, object text):
        return None


cdef class Inbox(Sink):
    """A sink that hands messages to Python: `on_messages(list[bytes])` once a wake-up, `on_end(status, text)` once."""

    cdef MessagesC messages
    cdef object on_messages
    cdef object on_end

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
        if taken:
            self.on_messages(taken)

    cdef object end(self, int status, object text):
        self.on_end(status, text)


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
    memcpy(messages.data + messages.size + sizeof(size_t), data, size)
    messages.size = need
    return 0


cdef class Call:
    """One call under way. `cancel` resets it at the engine and silences its sink; `pause` and `resume` steer its flow control."""

    def __cinit__(self):
        memset(&self.c, 0, sizeof(CallC))
        self.c.grpc_status = -1

    def __dealloc__(self):
        free(self.c.body)

    def cancel(self):
        """Resets the stream; the sink hears nothing more. Does nothing on a call that has ended."""
        if self.c.ended or self.connection is None:
            return
        self.c.deliver = _drop
        self.c.ended = True
        nghttp2_submit_rst_stream(self.connection.session, NGHTTP2_FLAG_NONE, self.c.stream_id, NGHTTP2_CANCEL)
        self.sink = None
        self.connection._writable()

    def pause(self):
        """Stops giving window back to the engine: it may send at most one stream window more."""
        self.c.paused = True

    def resume(self):
        """Gives back what was taken meanwhile."""
        self.c.paused = False
        if self.c.unconsumed and not self.c.ended and not self.connection.closed:
            nghttp2_session_consume_stream(self.connection.session, self.c.stream_id, self.c.unconsumed)
            self.c.unconsumed = 0
            self.connection._flush()


cdef class Connection:
    """One HTTP/2 connection. `socket`: connected, non-blocking; `tls`: an ssl.SSLObject whose handshake is done, with its two BIOs.

    `on_close()` is called once, after every call has been told UNAVAILABLE. `leaving` is true once the engine has sent GOAWAY.
    """

    def __cinit__(self, loop, socket, on_close, tls=None):
        self.loop = loop
        self.socket = socket
        self.fd = socket.fileno()
        self.on_close = on_close
        self.calls = {}
        if tls is not None:
            self.tls, self.tls_in, self.tls_out = tls
        self._open()

    def __dealloc__(self):
        nghttp2_session_del(self.session)

    @property
    def leaving(self):
        """True once the engine has sent GOAWAY: no new calls may start here."""
        return self.c.leaving

    @property
    def active(self):
        """How many calls are under way."""
        return len(self.calls)

    def start(self, on_ready):
        """Registers the socket with the loop and sends the preface; `on_ready()` is called once the engine has answered it."""
        self.on_ready = on_ready
        self.loop.add_reader(self.fd, self._readable)
        self._flush()

    def call(self, bytes path not None, bytes authority not None, list metadata not None, bytes request not None, Sink sink not None,
             *, size_t message_limit=536870912):
        """Starts a call; gives its Call. `request` is the serialized message, `metadata` lower-case (name, value) pairs."""
        cdef Call call = Call()
        if self.closed:
            raise ConnectionError("connection closed")
        call.connection = self
        call.sink = sink
        call.request = b"\0" + len(request).to_bytes(4, "big") + request
        call.c.owner = <void *>call
        call.c.sink = sink.target
        call.c.deliver = sink.deliver
        call.c.request = <const uint8_t *>PyBytes_AS_STRING(call.request)
        call.c.request_size = <size_t>PyBytes_GET_SIZE(call.request)
        call.c.body_limit = message_limit
        headers = [
            (b":method", b"POST"), (b":scheme", b"https" if self.tls is not None else b"http"), (b":path", path),
            (b":authority", authority), (b"te", b"trailers"), (b"content-type", b"application/grpc"), *metadata,
        ]
        self._submit(call, headers)
        self.calls[call.c.stream_id] = call
        self._flush()
        return call

    def close(self):
        """Ends every call as UNAVAILABLE and closes the socket."""
        self._lost("the connection was closed")

    cdef int _open(self) except -1:
        cdef nghttp2_session_callbacks *callbacks
        cdef nghttp2_option *option
        cdef nghttp2_settings_entry settings[3]
        if nghttp2_session_callbacks_new(&callbacks) or nghttp2_option_new(&option):
            raise MemoryError()
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, _on_frame)
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, _on_data)
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, _on_stream_close)
        nghttp2_session_callbacks_set_on_header_callback(callbacks, _on_header)
        nghttp2_option_set_no_auto_window_update(option, 1)
        failed = nghttp2_session_client_new2(&self.session, callbacks, &self.c, option)
        nghttp2_session_callbacks_del(callbacks)
        nghttp2_option_del(option)
        if failed:
            raise MemoryError()
        settings[0] = nghttp2_settings_entry(NGHTTP2_SETTINGS_ENABLE_PUSH, 0)
        settings[1] = nghttp2_settings_entry(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW)
        settings[2] = nghttp2_settings_entry(NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HEADERS_MAX)
        nghttp2_submit_settings(self.session, NGHTTP2_FLAG_NONE, settings, 3)
        nghttp2_session_set_local_window_size(self.session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW)
        return 0

    cdef int _submit(self, Call call, list headers) except -1:
        cdef nghttp2_data_provider provider
        cdef nghttp2_nv *fields = <nghttp2_nv *>malloc(len(headers) * sizeof(nghttp2_nv))
        cdef Py_ssize_t i
        cdef bytes name, value
        if fields == NULL:
            raise MemoryError()
        for i in range(len(headers)):
            name, value = headers[i]
            fields[i].name = <uint8_t *>PyBytes_AS_STRING(name)
            fields[i].namelen = <size_t>PyBytes_GET_SIZE(name)
            fields[i].value = <uint8_t *>PyBytes_AS_STRING(value)
            fields[i].valuelen = <size_t>PyBytes_GET_SIZE(value)
            fields[i].flags = NGHTTP2_FLAG_NONE
        provider.source.ptr = &call.c
        provider.read_callback = _read_request
        call.c.stream_id = nghttp2_submit_request(self.session, NULL, fields, <size_t>len(headers), &provider, &call.c)
        free(fields)
        if call.c.stream_id < 0:
            raise ConnectionError(nghttp2_strerror(call.c.stream_id).decode())
        return 0

    def _readable(self):
        cdef uint8_t buffer[READ_SIZE]
        cdef ssize_t got = 0
        cdef ssize_t used = 0
        cdef int reads = 0
        if self.tls is not None:
            return self._readable_tls()
        with nogil:
            while reads < READS_PER_WAKE:
                got = recv(self.fd, buffer, READ_SIZE, MSG_DONTWAIT)
                if got <= 0:
                    break
                used = nghttp2_session_mem_recv(self.session, buffer, <size_t>got)
                reads += 1
                if used < 0 or got < READ_SIZE:
                    break
        self._after_read(used, got == 0 or (got < 0 and c_errno not in (EAGAIN, EWOULDBLOCK, EINTR)))

    def _readable_tls(self):
        cdef ssize_t used = 0
        cdef const unsigned char[::1] plain
        ended = False
        try:
            data = self.socket.recv(READ_SIZE)
            ended = not data
            self.tls_in.write(data)
            while used >= 0:
                plain = self.tls.read(READ_SIZE)
                if not plain.shape[0]:
                    break
                used = nghttp2_session_mem_recv(self.session, &plain[0], <size_t>plain.shape[0])
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        except (ssl.SSLError, OSError):
            ended = True
        self._after_read(used, ended)

    cdef object _after_read(self, ssize_t used, bint ended):
        if self.c.ready and self.on_ready is not None:
            on_ready, self.on_ready = self.on_ready, None
            on_ready()
        self._wake()
        if used < 0:
            self._lost("the engine broke the HTTP/2 protocol")
        elif ended:
            self._lost("the engine closed the connection")
        elif not self.closed:
            self._writable()
            if not self.closed and not nghttp2_session_want_read(self.session) and not nghttp2_session_want_write(self.session):
                self._lost("the engine left")

    cdef object _wake(self):
        """Wakes each sink that got something, and ends each call that ended."""
        cdef CallC *c = self.c.dirty
        cdef Call call
        self.c.dirty = NULL
        woken = []
        while c != NULL:
            woken.append(<Call>c.owner)
            c.dirty = False
            c = c.next_dirty
        for call in woken:
            if call.sink is not None:
                call.sink.wake()
            if call.c.closed:
                self._end(call)

    cdef object _end(self, Call call):
        self.calls.pop(call.c.stream_id, None)
        sink, call.sink = call.sink, None
        call.c.ended = True
        if sink is not None:
            status, text = _status(&call.c)
            (<Sink>sink).end(status, text)

    def _writable(self):
        """Sends, and ends the calls whose reset has left."""
        self._flush()
        self._wake()

    def _flush(self):
        """Sends what nghttp2 wants to send; the rest waits until the socket takes more."""
        cdef ssize_t size = 0
        cdef ssize_t sent = 0
        if self.closed:
            return
        if self.tls is not None:
            return self._flush_tls()
        with nogil:
            while True:
                if self.unsent_size == 0:
                    size = nghttp2_session_mem_send(self.session, &self.unsent)
                    if size <= 0:
                        break
                    self.unsent_size = <size_t>size
                sent = send(self.fd, self.unsent, self.unsent_size, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent < 0:
                    break
                self.unsent += sent
                self.unsent_size -= <size_t>sent
        if size < 0:
            self._lost("the engine broke the HTTP/2 protocol")
        elif sent < 0 and c_errno not in (EAGAIN, EWOULDBLOCK, EINTR):
            self._lost("the engine closed the connection")
        else:
            self._watch_writes(self.unsent_size > 0)

    def _flush_tls(self):
        cdef const uint8_t *data
        cdef ssize_t size
        while True:
            size = nghttp2_session_mem_send(self.session, &data)
            if size <= 0:
                break
            self.tls.write(PyBytes_FromStringAndSize(<const char *>data, size))
        try:
            pending = self.tls_out.read()
            sent = self.socket.send(pending) if pending else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            return self._lost("the engine closed the connection")
        if sent < len(pending):
            self.tls_out.write(pending[sent:])
        self._watch_writes(sent < len(pending))

    cdef object _watch_writes(self, bint wanted):
        if wanted and not self.writing:
            self.loop.add_writer(self.fd, self._writable)
        elif self.writing and not wanted:
            self.loop.remove_writer(self.fd)
        self.writing = wanted

    cdef object _lost(self, str reason):
        """Closes the socket, then tells every call; a call whose status had arrived keeps it."""
        cdef Call call
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self.fd)
        if self.writing:
            self.loop.remove_writer(self.fd)
        self.socket.close()
        calls = list(self.calls.values())
        self.calls.clear()
        for call in calls:
            sink, call.sink = call.sink, None
            call.c.ended = True
            if sink is not None:
                (<Sink>sink).end(UNAVAILABLE, reason)
        self.on_close()


cdef int _drop(void *sink, const uint8_t *data, size_t size) noexcept nogil:
    return 0


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
    memcpy(into, c.request + c.request_sent, size)
    c.request_sent += size
    if c.request_sent == c.request_size:
        flags[0] |= NGHTTP2_DATA_FLAG_EOF
    return <ssize_t>size


cdef int _on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *connection) noexcept nogil:
    if frame.hd.type == NGHTTP2_GOAWAY:
        (<ConnectionC *>connection).leaving = True
    elif frame.hd.type == NGHTTP2_SETTINGS:
        (<ConnectionC *>connection).ready = True
    return 0


cdef int _on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t size,
                  void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>nghttp2_session_get_stream_user_data(session, stream_id)
    nghttp2_session_consume_connection(session, size)
    if c == NULL or c.ended:
        nghttp2_session_consume_stream(session, stream_id, size)
        return 0
    if c.paused:
        c.unconsumed += size
    else:
        nghttp2_session_consume_stream(session, stream_id, size)
    if c.failed == 0:
        c.failed = _messages(c, data, size)
        if c.failed:
            nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream_id, NGHTTP2_CANCEL)
    _mark(connection, c)
    return 0


cdef int _messages(CallC *c, const uint8_t *data, size_t size) noexcept nogil:
    """Cuts the stream's bytes into messages and delivers each; gives 0, or the gRPC status that the call fails with."""
    cdef size_t take
    while size:
        if c.prefix_size == 0 and size >= 5 and data[0] == 0:
            take = _length(data)
            if size >= 5 + take and take <= c.body_limit:  # a whole message lies in this frame: no copy
                if c.deliver(c.sink, data + 5, take):
                    return INTERNAL
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
                return INTERNAL  # compressed, though no encoding was offered
            c.body_need = _length(c.prefix)
            c.body_size = 0
            if c.body_need > c.body_limit:
                return RESOURCE_EXHAUSTED
        take = min(size, c.body_need - c.body_size)
        if take and _append(c, data, take):
            return RESOURCE_EXHAUSTED
        data += take
        size -= take
        if c.body_size == c.body_need:
            c.prefix_size = 0
            if c.deliver(c.sink, c.body, c.body_size):
                return INTERNAL
    return 0


cdef size_t _length(const uint8_t *prefix) noexcept nogil:
    return (<size_t>prefix[1] << 24) | (<size_t>prefix[2] << 16) | (<size_t>prefix[3] << 8) | prefix[4]


cdef int _append(CallC *c, const uint8_t *data, size_t size) noexcept nogil:
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


cdef int _on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                    const uint8_t *value, size_t value_size, uint8_t flags, void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>nghttp2_session_get_stream_user_data(session, frame.hd.stream_id)
    if c == NULL:
        return 0
    if name_size == 7 and memcmp(name, b":status", 7) == 0:
        c.http_status = _number(value, value_size)
    elif name_size == 11 and memcmp(name, b"grpc-status", 11) == 0:
        c.grpc_status = _number(value, value_size)
    elif name_size == 12 and memcmp(name, b"grpc-message", 12) == 0:
        c.text_size = min(value_size, sizeof(c.text))
        memcpy(c.text, value, c.text_size)
    return 0


cdef int _number(const uint8_t *digits, size_t size) noexcept nogil:
    cdef int value = 0
    cdef size_t i
    if size == 0 or size > 3:
        return UNKNOWN
    for i in range(size):
        if digits[i] < 48 or digits[i] > 57:
            return UNKNOWN
        value = value * 10 + digits[i] - 48
    return value


cdef int _on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t code, void *connection) noexcept nogil:
    cdef CallC *c = <CallC *>nghttp2_session_get_stream_user_data(session, stream_id)
    if c != NULL:
        c.closed = True
        c.reset_code = code
        _mark(connection, c)
    return 0


cdef object _status(CallC *c):
    """Gives (gRPC status, text): the trailer's, else what the reset or the HTTP status stands for (gRPC over HTTP/2, section Errors)."""
    if c.failed:
        text = "a message is larger than max" if c.failed == RESOURCE_EXHAUSTED else "a message of the engine is malformed"
        return c.failed, text
    if c.grpc_status >= 0:
        return c.grpc_status, unquote_to_bytes(c.text[:c.text_size]).decode("utf-8", "replace")
    if c.reset_code:
        by_reset = {2: INTERNAL, 7: UNAVAILABLE, 8: CANCELLED, 11: RESOURCE_EXHAUSTED, 12: PERMISSION_DENIED}
        return by_reset.get(c.reset_code, INTERNAL), f"the engine reset the stream (HTTP/2 code {c.reset_code})"
    if c.http_status != 200:
        by_http = {400: INTERNAL, 401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: UNIMPLEMENTED,
                   429: UNAVAILABLE, 502: UNAVAILABLE, 503: UNAVAILABLE, 504: UNAVAILABLE}
        return by_http.get(c.http_status, UNKNOWN), f"the engine answered with HTTP status {c.http_status}"
    return INTERNAL, "the engine ended the stream without a status"
