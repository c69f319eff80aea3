"""One client's connection: reads requests in turn, hands each to the front, and keeps time and memory bounded. Made by `front.py`.

A client that closes its sending side counts as gone, as in nginx, uvicorn, hyper and Go's server: the FIN of a client that cancelled looks
the same, and an engine must not work for it until the next write fails. What is answered at once still reaches a client that only shut its
sending side, because the other side stays open until the response is complete.
"""

import asyncio
import math
from typing import Protocol, cast

from smg.errors import RequestError
from smg.server.front.limits import Limits
from smg.server.front.reader import Refused, RequestReader
from smg.server.front.responder import Responder
from smg.server.front.scope import Peer, Scope
from smg.server.front.wire import date_line, error_page, render_head

__all__ = ["Connection", "Host"]


class Host(Protocol):
    """What a connection needs of the front."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    draining: bool
    ending: bool
    date: str

    def opened(self, connection: "Connection") -> None:
        """Learns of a connection."""

    def lost(self, connection: "Connection") -> None:
        """Learns that it ended."""

    def answer(self, scope: Scope, responder: Responder) -> None:
        """Starts the application on a request."""


class Connection(asyncio.Protocol):
    """`gone` tells that the client left, `closed` that nothing can be written; `deadline` is when `expire` is to be called (loop time)."""

    def __init__(self, host: Host) -> None:
        self.gone = False
        self.closed = False
        self.write_paused = False
        self.deadline = math.inf
        self.fd = -1
        self._host = host
        self._limits = host.limits
        self._current: Responder | None = None
        self._received = True  # the current request is complete; nothing more of it is to come
        self._pending = b""  # bytes behind the current request
        self._reading = True
        self._stalled = False  # the next request waits until earlier responses are sent
        self._lingering = False
        self._budget = host.limits.linger_bytes
        self._unsent = 0

    # What uvloop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the clock on the first request."""
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write
        self._tls = transport.get_extra_info("sslcontext") is not None
        sock = transport.get_extra_info("socket")
        if sock is not None and not self._tls:
            self.fd = sock.fileno()
        self.transport.set_write_buffer_limits(high=self._limits.client_buffer_bytes)
        self._reader = RequestReader(self, peer=_peer(transport, tls=self._tls), limits=self._limits)
        self.deadline = self._host.loop.time() + self._limits.head_s
        self._host.opened(self)

    def data_received(self, data: bytes) -> None:
        """Takes what came over the wire."""
        if self._lingering:
            self._discard(len(data))
        elif self._stalled or (self._received and self._current is not None):
            self._pending += data
            self._hold_client()
        else:
            self._consume(data)

    def eof_received(self) -> bool:
        """Takes the end of what the client sends; True keeps our side open."""
        self.gone = True
        if self._current is not None:
            self._current.leave()
        # uvloop's TLS cannot keep our side open alone
        self.closed = self._tls or (self._current is None and not self._stalled)
        return not self.closed

    def connection_lost(self, error: Exception | None) -> None:
        """Tells whoever serves this client."""
        self.gone = self.closed = True
        if self._current is not None:
            self._current.leave()
            self._current = None
        self._reader.close()
        self._host.lost(self)

    def pause_writing(self) -> None:
        """The client reads too slowly: more than the limit waits to be sent."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The client caught up."""
        self.write_paused = False
        if self._stalled:
            self._stalled = False
            self._next()

    # What the reader calls.

    def request_begun(self, scope: Scope, *, keep_alive: bool) -> None:
        """Starts the application as soon as the head is there."""
        self._received = False
        self.deadline = math.inf
        self._current = Responder(self, scope, keep_alive=keep_alive, loop=self._host.loop)
        if self.gone:
            self._current.leave()
        self._host.answer(scope, self._current)

    def body_received(self, data: bytes) -> None:
        """Takes a piece of the current request's body."""
        if self._current is not None:
            self._current.body.feed(data)

    def request_received(self) -> None:
        """The current request is complete."""
        self._received = True
        if self._current is not None:
            self._current.body.end()

    # What the responder calls.

    @property
    def date(self) -> str:
        """The Date header's line."""
        return self._host.date or date_line()

    @property
    def may_persist(self) -> bool:
        """False when a response has to be the last one: the rest of its request would have to be read first, or the server stops."""
        return self._received and not self._host.draining

    def body_read(self) -> None:
        """Lets the client send on, if it was held up for the body's sake."""
        if not self._reading and not self._pending:
            self._resume()

    def response_done(self, *, keep_alive: bool) -> None:
        """Goes on with the next request, or closes."""
        self._current = None
        if not self._received:
            self._linger()
        elif keep_alive:
            self._next()
        else:
            self._close()

    def give_up_if_full(self) -> bool:
        """Aborts if a stream's client is further behind than it may be, whatever the kernel holds besides."""
        if self.transport.get_write_buffer_size() <= self._limits.client_buffer_bytes:
            return False
        self.abort()
        return True

    def abort(self) -> None:
        """Cuts the connection; what is queued is dropped."""
        self.gone = self.closed = True
        self.transport.abort()
        if self._current is not None:
            self._current.leave()

    # What the front calls.

    def drain(self) -> None:
        """Closes if no request is under way; one that is will be the last."""
        if self._current is None and not self._reader.begun and not self._lingering and not self._stalled:
            self._close()

    def expire(self) -> None:
        """The deadline is over."""
        if self._lingering or self.closed or self._stalled:
            self._check_flush()
        elif self._reader.begun:
            self._refuse(Refused(408, "the request's headers did not arrive in time"))
        else:
            self._close()

    def _consume(self, data: bytes) -> None:
        if self._current is None and not self._reader.begun:
            self.deadline = self._host.loop.time() + self._limits.head_s
        try:
            self._pending = self._reader.feed(data)
        except Refused as refused:
            self._refuse(refused)
            return
        self._hold_client()

    def _next(self) -> None:
        if self.write_paused:
            self._stalled = True
            self._wait_for_flush()
            return
        pending, self._pending = self._pending, b""
        if not self._reading:
            self._resume()
        self.deadline = self._host.loop.time() + self._limits.idle_s
        if pending and not self._host.ending:
            self._consume(pending)
        if self._current is None and (self.gone or self._host.ending) and not self.closed:
            self._close()

    def _refuse(self, refused: Refused) -> None:
        """Answers what is no request. One whose body breaks the rules has an application already, which is told and answers itself."""
        error = RequestError(refused.message)
        if self._current is not None:
            self._lingering = True  # nothing more is parsed; the deadline begins with the end of the response
            self._current.body.fail(error)
            return
        headers, body = error_page(error)
        ending = f"content-length: {len(body)}\r\nconnection: close\r\n{self.date}"
        self.write(render_head(refused.status, headers, ending=ending) + body)
        self._linger()

    def _linger(self) -> None:
        """Ends our side and reads on for a while: closing with bytes unread resets the connection, and the response with it."""
        self._lingering = True
        if self.gone:
            self._close()
            return
        self.deadline = self._host.loop.time() + self._limits.linger_s
        self._unsent = self.transport.get_write_buffer_size()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if not self._reading:
            self._resume()

    def _discard(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0 and self._current is None:
            self._close()
        elif self._budget < 0:
            self._pause()

    def _close(self) -> None:
        self.closed = True
        self.transport.close()
        self._wait_for_flush()

    def _wait_for_flush(self) -> None:
        self.deadline = self._host.loop.time() + self._limits.flush_s
        self._unsent = self.transport.get_write_buffer_size()

    def _check_flush(self) -> None:
        """Waits on while the client still reads what is left of its response."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._wait_for_flush()
        else:
            self.abort()

    def _hold_client(self) -> None:
        """Stops reading when too much waits for the application or for an earlier response."""
        waits = len(self._pending) > self._limits.pipelined_bytes
        if waits or (self._current is not None and len(self._current.body) > self._limits.unread_bytes):
            self._pause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _resume(self) -> None:
        self._reading = True
        self.transport.resume_reading()


def _peer(transport: asyncio.BaseTransport, *, tls: bool) -> Peer:
    scheme = "https" if tls else "http"
    return Peer(_address(transport.get_extra_info("peername")), _address(transport.get_extra_info("sockname")), scheme)


def _address(name: object) -> str:
    if not isinstance(name, tuple):
        return name if isinstance(name, str) else ""
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
