"""The protocol object of one request, as granian's RSGI has it: the body to read, one response to give, and word of a client that left.

Made by `connection.py` with each request. The first response wins; later ones are dropped, as granian does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from smg.errors import ClientGone, SmgError
from smg.server.front.body import Body
from smg.server.front.scope import Scope
from smg.server.front.stream import Link, ResponseStream, Transport
from smg.server.front.wire import CONTINUE, Fields, bodiless, error_page, render_head

__all__ = ["Channel", "Responder"]

# Up to this size a body is joined to its head, which costs less than a second buffer.
JOINED_BYTES = 16384


class Channel(Link, Protocol):
    """What a request needs of its connection."""

    fd: int

    @property
    def transport(self) -> Transport:
        """What bytes are queued in; `fd` is its socket, -1 where it is not to be written to besides."""

    @property
    def date(self) -> str:
        """The Date header's line."""

    @property
    def may_persist(self) -> bool:
        """False when this response has to be the last one."""

    def write(self, data: bytes, /) -> None:
        """Queues bytes."""

    def body_read(self) -> None:
        """Learns that the application took bytes of the body."""

    def response_done(self, *, keep_alive: bool) -> None:
        """Learns that the response is complete."""

    def abort(self) -> None:
        """Cuts the connection, so that the client can tell a broken stream from a complete one."""


class Responder:
    """`keep_alive` is what the client asked for; `task` is the application's, kept by the front.

    `on_leave` is called when the client leaves; `left`: it has.
    """

    def __init__(self, channel: Channel, scope: Scope, *, keep_alive: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.body = Body(on_read=channel.body_read)
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.left = False
        self.on_leave: Callable[[], object] | None = None
        self._channel: Channel | None = channel
        self._loop = loop
        self._keep_alive = keep_alive
        self._old = scope.http_version == "1.0"
        self._silent = scope.method == "HEAD"
        self._expects = not self._old and "expect" in scope.headers
        self._chunked = False
        self._watchers: list[asyncio.Future[None]] = []

    def __call__(self) -> Awaitable[bytes]:
        """Gives the whole body. Raises ClientGone when it breaks off, RequestError when it is malformed."""
        self._ask_for_body()
        return self.body.read_all()

    def arrived(self) -> bytes | None:
        """Gives the whole body if it is here already; None means that it has to be waited for."""
        return self.body.take() if self.body.complete else None

    def __aiter__(self) -> "Responder":
        return self

    async def __anext__(self) -> bytes:
        """Gives what has arrived of the body; errors as in `__call__`."""
        self._ask_for_body()
        data = await self.body.read_some()
        if not data:
            raise StopAsyncIteration
        return data

    def client_disconnect(self) -> asyncio.Future[None]:
        """Gives a future that is done once the client has left."""
        watcher: asyncio.Future[None] = self._loop.create_future()
        if self.left:
            watcher.set_result(None)
        else:
            self._watchers.append(watcher)
        return watcher

    def response_empty(self, status: int, headers: Fields) -> None:
        """Answers without a body."""
        self.response_bytes(status, headers, b"")

    def response_str(self, status: int, headers: Fields, body: str) -> None:
        """Answers with text."""
        self.response_bytes(status, headers, body.encode())

    def response_bytes(self, status: int, headers: Fields, body: bytes) -> None:
        """Answers with bytes."""
        channel = self._usable()
        if channel is None:
            return
        size = "" if bodiless(status) else f"content-length: {len(body)}\r\n"
        head = self._head(status, headers, channel, size)
        if self._silent or not size:
            channel.write(head)
        elif len(body) <= JOINED_BYTES:
            channel.write(head + body)
        else:
            channel.write(head)
            channel.write(body)
        self._end()

    def response_stream(self, status: int, headers: Fields) -> ResponseStream:
        """Sends the head and gives what its body is written to. A client of HTTP/1.0 reads it up to the end of the connection."""
        return self._open_stream(status, headers, at_once=True)

    def open_stream(self, status: int, headers: Fields) -> ResponseStream:
        """As `response_stream`, but the head leaves together with the first chunk."""
        return self._open_stream(status, headers, at_once=False)

    def _open_stream(self, status: int, headers: Fields, *, at_once: bool) -> ResponseStream:
        channel = self._usable()
        if channel is None:
            return ResponseStream(None, None, on_end=_nothing)
        self._silent = self._silent or bodiless(status)
        self._chunked = not self._old
        if self._old:
            self._keep_alive = False
        coding = "transfer-encoding: chunked\r\n" if self._chunked and not bodiless(status) else ""
        head = self._head(status, headers, channel, coding)
        if at_once:
            channel.write(head)
            head = b""
        return ResponseStream(
            channel, channel.transport, on_end=self._end, fd=channel.fd, chunked=self._chunked, silent=self._silent, head=head
        )

    def backlog(self) -> int:
        """Gives the bytes that the client has not read yet."""
        channel = self._channel
        return 0 if channel is None or channel.closed else channel.transport.get_write_buffer_size()

    def respond_error(self, error: SmgError, *, status: int) -> None:
        """Answers with an error page."""
        headers, body = error_page(error)
        self.response_bytes(status, headers, body)

    def break_off(self) -> None:
        """Cuts the connection if the response is begun and not complete."""
        if self.begun and self._channel is not None:
            self._channel.abort()

    def leave(self) -> None:
        """The client has left: nothing more of the body will come, and whoever asked for it is told."""
        self.left = True
        self.body.fail(ClientGone("the body broke off"))
        if self.on_leave is not None:
            self.on_leave()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _ask_for_body(self) -> None:
        if not self._expects:
            return
        self._expects = False
        channel = self._usable()
        if channel is not None and not self.body and not self.body.complete:
            channel.write(CONTINUE)

    def _usable(self) -> Channel | None:
        """Gives the connection for the first response; None for later ones, and when the connection is lost."""
        channel = self._channel
        return None if self.begun or channel is None or channel.closed else channel

    def _head(self, status: int, headers: Fields, channel: Channel, ending: str) -> bytes:
        self._keep_alive = self._keep_alive and channel.may_persist
        if not self._keep_alive:
            ending += "connection: close\r\n"
        elif self._old:
            ending += "connection: keep-alive\r\n"
        head = render_head(status, headers, ending=ending + channel.date)
        self.begun = True
        return head

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and not channel.closed:
            channel.response_done(keep_alive=self._keep_alive)


def _nothing() -> None:
    """Has no end to tell."""
