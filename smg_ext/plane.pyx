# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""gRPC client for server-streaming calls, on nghttp2, inside the event loop of a data worker.

In: a connected non-blocking socket and serialized requests. Out: each whole message goes to a `Sink` without the GIL; once a wake-up, every
sink that got something is woken with it. Flow control is manual, so that a paused call holds its engine back. Used by `smg.engine.native`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from smg_ext.headers cimport HEADERS_MOST, Headers
from smg_ext.nghttp2 cimport *
from smg_ext.session cimport BLOCKED, BROKEN, ENDED, WELL, CallC, open_session, put_length, status_of_call, submit_call
from smg_ext.sink cimport Sink, free_cutter, stop_cutting
from smg_ext.text cimport put
from smg_ext.tls cimport TlsPipe

__all__ = ["Call", "Connection"]

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
    SEND_SIZE = 65536               # frames are gathered up to this, so that a request leaves in one packet
    CALLS_PER_SEND = 8              # that many wait for no others: the work between them is the engine's idle time
    REQUEST_MOST = 0xFFFFFFFF
    INTERNAL = 13
    UNAVAILABLE = 14

LINGER_S = 1.0

REASONS = {ENDED: "the engine closed the connection", BROKEN: "the engine broke the HTTP/2 protocol"}


cdef class Call:
    """One call under way. `cancel` resets it at the engine and silences its sink; `pause` and `resume` steer its flow control."""

    def __cinit__(self):
        memset(&self.c, 0, sizeof(CallC))
        self.c.trailer.grpc_status = -1

    def __dealloc__(self):
        free_cutter(&self.c.cutter)

    def cancel(self):
        """Resets the stream; the sink hears nothing more. Does nothing on a call that has ended."""
        if self.c.ended or self.connection is None:
            return
        self.c.ended = True
        stop_cutting(&self.c.cutter)
        self.c.request_size = self.c.request_sent = 0  # an engine that takes no more streams may hold the reset up for long
        self.request = None
        sink, self.sink = self.sink, None
        if not self.c.closed:
            nghttp2_submit_rst_stream(self.connection.session, NGHTTP2_FLAG_NONE, self.c.stream_id, NGHTTP2_CANCEL)
            self.connection._flush_soon()
        self.connection._settle_soon()
        if sink is not None:
            (<Sink>sink).drop()

    def linger(self):
        """Leaves the call, whose answer is whole, one to two seconds to end by itself; then cancels it."""
        if not self.c.ended and self.connection is not None:
            self.connection._linger(self)

    def pause(self):
        """Stops giving window back to the engine: it may send at most one stream window more."""
        self.c.paused = True

    def resume(self):
        """Gives back what was taken meanwhile."""
        self.c.paused = False
        if self.c.unconsumed and not self.c.ended and not self.c.closed:
            nghttp2_session_consume_stream(self.connection.session, self.c.stream_id, self.c.unconsumed)
            self.c.unconsumed = 0
            self.connection._flush_soon()


cdef class Connection:
    """One HTTP/2 connection. `socket`: connected, non-blocking; `tls`: an ssl.SSLObject whose handshake is done, with its two BIOs.

    `on_close()` is called once, after every call has been told UNAVAILABLE. `leaving` is true once the engine has sent GOAWAY.
    """

    def __cinit__(self, loop, socket, on_close, tls=None):
        self.loop = loop
        self.socket, self.fd, self.on_close = socket, socket.fileno(), on_close
        self.calls, self.lingering, self.fading = set(), set(), set()
        self.tls = TlsPipe(socket, tls) if tls is not None else None
        if open_session(&self.session, &self.c):
            raise MemoryError()

    def __dealloc__(self):
        nghttp2_session_del(self.session)
        free(self.out.data)

    @property
    def leaving(self):
        """True once the engine has sent GOAWAY: no new calls may start here."""
        return self.c.leaving

    @property
    def active(self):
        """How many calls are under way, queued ones and those whose reset has not left included."""
        return len(self.calls)

    @property
    def room(self):
        """True when a call would start at once. Calls over the engine's limit are queued."""
        if self.closed or self.c.leaving or self.fault is not None:
            return False
        return len(self.calls) < nghttp2_session_get_remote_settings(self.session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)

    def start(self, on_ready):
        """Registers the socket with the loop and sends the preface; `on_ready()` is called once the engine has answered it."""
        self.on_ready = on_ready
        self.loop.add_reader(self.fd, self._readable)
        self._flush()
        if self.tls is not None:
            self.loop.call_soon(self._readable)  # the answer may have come with the end of the handshake

    def call(self, Headers headers not None, bytes timeout, bytes request not None, Sink sink not None,
             *, size_t message_limit=536870912):
        """Starts a call; gives its Call. `request` is the serialized message, `timeout` the value of grpc-timeout, None = no deadline.

        It leaves with the others of the loop's iteration. Raises ConnectionError when the connection takes no more calls.
        """
        cdef Call call = Call()
        cdef Py_ssize_t size = PyBytes_GET_SIZE(request)
        if self.closed or self.c.leaving or self.fault is not None:
            raise ConnectionError("connection closed")
        if sink.deliver == NULL:
            raise TypeError("a bare Sink takes no messages")
        if size > REQUEST_MOST:
            raise ValueError("a message's length has 32 bits")
        call.connection = self
        call.sink = sink
        call.request = request
        call.c.owner = <void *>call
        call.c.cutter.sink = sink.target
        call.c.cutter.deliver = sink.deliver
        call.c.cutter.body_limit = message_limit
        put_length(call.c.prefix, <size_t>size)
        call.c.request = <const uint8_t *>PyBytes_AS_STRING(request)
        call.c.request_size = sizeof(call.c.prefix) + <size_t>size
        self.calls.add(call)
        try:
            self._submit(call, headers, timeout)
        except BaseException:
            self.calls.discard(call)
            raise
        self._flush_soon()
        return call

    def close(self):
        """Ends every call as UNAVAILABLE and closes the socket."""
        self._lost("the connection was closed")

    cdef int _submit(self, Call call, Headers headers, bytes timeout) except -1:
        cdef nghttp2_nv fields[HEADERS_MOST]
        cdef int failed = submit_call(self.session, &call.c, fields, headers.fill(fields, timeout))
        if failed:
            self.c.leaving = True  # such as the last stream id being used
            raise ConnectionError(nghttp2_strerror(failed).decode())
        return 0

    def _readable(self):
        cdef int outcome
        if self.closed:
            return
        if self.tls is not None:
            outcome = self.tls.receive(self.session)
        else:
            with nogil:
                outcome = self._receive()
        self._after_read(outcome)

    cdef int _receive(self) noexcept nogil:
        cdef uint8_t buffer[READ_SIZE]
        cdef ssize_t got
        cdef int reads = 0
        while reads < READS_PER_WAKE:
            got = recv(self.fd, buffer, READ_SIZE, MSG_DONTWAIT)
            if got < 0 and c_errno == EINTR:
                continue
            if got < 0:
                return WELL if c_errno == EAGAIN or c_errno == EWOULDBLOCK else ENDED
            if got == 0:
                return ENDED
            if nghttp2_session_mem_recv(self.session, buffer, <size_t>got) < 0:
                return BROKEN
            if got < READ_SIZE:
                return WELL
            reads += 1
        return WELL

    cdef object _after_read(self, int outcome):
        if self.c.ready and self.on_ready is not None:
            on_ready, self.on_ready = self.on_ready, None
            on_ready()
        self._wake()
        if outcome != WELL and self.fault is None:
            self.fault = REASONS[outcome]
        self._flush()
        self._settle()

    cdef object _wake(self):
        """Wakes each sink that got something, and ends each call that ended."""
        cdef CallC *c = self.c.dirty
        cdef Call call
        self.c.dirty = NULL
        touched = []
        while c != NULL:
            touched.append(<Call>c.owner)
            c.dirty = False
            c = c.next_dirty
        for call in reversed(touched):
            self._wake_call(call)

    cdef object _wake_call(self, Call call):
        sink = call.sink
        if sink is not None:
            try:
                (<Sink>sink).wake()
            except Exception as error:
                self._report(error)
                self._end(call, INTERNAL, "the reader of the answer failed")
                if not call.c.closed and not self.closed:
                    nghttp2_submit_rst_stream(self.session, NGHTTP2_FLAG_NONE, call.c.stream_id, NGHTTP2_CANCEL)
                    self._flush()
        if call.c.closed and not call.c.dirty and call in self.calls:  # a dirty one is on the list anew: it must live until then
            self._closed(call)
            status, text = status_of_call(&call.c)
            self._end(call, status, text)

    cdef object _closed(self, Call call):
        self.calls.discard(call)
        if call.lingering:
            self.lingering.discard(call)
            self.fading.discard(call)

    cdef object _linger(self, Call call):
        self.lingering.add(call)
        call.lingering = True
        if self.sweeping is None:
            self.sweeping = self.loop.call_later(LINGER_S, self._sweep)

    def _sweep(self):
        """Cancels the calls that had their time."""
        fading, self.fading, self.lingering = self.fading, self.lingering, set()
        self.sweeping = self.loop.call_later(LINGER_S, self._sweep) if self.fading else None
        for call in fading:
            (<Call>call).cancel()

    cdef object _end(self, Call call, int status, object text):
        sink, call.sink = call.sink, None
        call.c.ended = True
        stop_cutting(&call.c.cutter)
        if sink is None:
            return
        try:
            (<Sink>sink).end(status, text)
        except Exception as error:
            self._report(error)

    cdef object _report(self, object error):
        self.loop.call_exception_handler({"message": "a sink of the native data plane failed", "exception": error})

    cdef object _flush_soon(self):
        """Sends when the loop's iteration ends, or when enough has gathered."""
        self.unsent += 1
        if self.unsent == 1:
            self.loop.call_soon(self._flush_now)
        elif self.unsent % CALLS_PER_SEND == 0:
            self._flush()

    def _flush_now(self):
        self.unsent = 0
        self._flush()

    cdef object _settle_soon(self):
        if not self.settling and not self.closed:
            self.settling = True
            self.loop.call_soon(self._settle)

    def _settle(self):
        """Ends the calls whose reset has left, and the connection when it has nothing more to say."""
        self.settling = False
        self._wake()
        if self.fault is not None:
            self._lost(self.fault)
        elif not self.closed and not nghttp2_session_want_read(self.session) and not nghttp2_session_want_write(self.session):
            self._lost("the engine left")

    def _writable(self):
        self._flush()
        self._settle()

    cdef object _flush(self):
        """Sends what nghttp2 wants to send; the rest waits until the socket takes more. Calls nobody: a fault is settled soon."""
        cdef int outcome
        if self.closed or self.fault is not None:
            return
        if self.tls is not None:
            outcome = self._send_tls()
        else:
            with nogil:
                outcome = self._send()
        self.fault = REASONS.get(outcome)
        if self.fault is not None or self.c.dirty != NULL:
            self._settle_soon()
        self._watch_writes(outcome == BLOCKED)

    cdef int _fill(self) noexcept nogil:
        """Gathers frames in `out`; WELL or BROKEN."""
        cdef const uint8_t *data
        cdef ssize_t size
        self.out.size = self.out_sent = 0
        while self.out.size < SEND_SIZE:
            size = nghttp2_session_mem_send(self.session, &data)
            if size <= 0:
                return WELL if size == 0 else BROKEN
            if put(&self.out, data, <size_t>size):
                return BROKEN
        return WELL

    cdef int _send(self) noexcept nogil:
        cdef ssize_t sent
        while True:
            if self.out_sent == self.out.size:
                if self._fill() != WELL:
                    return BROKEN
                if self.out.size == 0:
                    return WELL
            sent = send(self.fd, self.out.data + self.out_sent, self.out.size - self.out_sent, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                self.out_sent += <size_t>sent
            elif c_errno == EAGAIN or c_errno == EWOULDBLOCK:
                return BLOCKED
            elif c_errno != EINTR:
                return ENDED

    cdef int _send_tls(self) except -1:
        cdef int outcome
        while True:
            outcome = self.tls.push()
            if outcome != WELL:
                return outcome
            if self._fill() != WELL:
                return BROKEN
            if self.out.size == 0:
                return WELL
            outcome = self.tls.put(self.out.data, self.out.size)
            if outcome != WELL:
                return outcome

    cdef object _watch_writes(self, bint wanted):
        if wanted and not self.writing:
            self.loop.add_writer(self.fd, self._writable)
        elif self.writing and not wanted:
            self.loop.remove_writer(self.fd)
        self.writing = wanted

    cdef object _lost(self, str reason):
        """Closes the socket, then tells every call; a call whose status had arrived keeps it."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self.fd)
        if self.writing:
            self.loop.remove_writer(self.fd)
        self.socket.close()
        if self.sweeping is not None:
            self.sweeping.cancel()
        self.sweeping, self.lingering, self.fading = None, set(), set()
        self._wake()
        nghttp2_session_del(self.session)  # before the calls that its streams point to
        self.session, self.c.dirty = NULL, NULL
        calls, self.calls = self.calls, set()
        for call in calls:
            self._end(call, UNAVAILABLE, reason)
        self.on_close()
