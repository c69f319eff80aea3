"""A small HTTP/1.1 server that can also misbehave: requests come in, a handler answers through a `Reply`. Used by `status` and `openai`.

One request at a time on a connection, bodies by Content-Length only. A client that closes its connection cancels its handler.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

__all__ = ["Handler", "HttpRequest", "HttpServer", "Reply", "until_closed"]

HEAD_LIMIT_BYTES = 64 * 1024
BODY_LIMIT_BYTES = 256 * 1024 * 1024
FLUSH_S = 0.1
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A whole request. Header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Reply:
    """How a handler answers: `send` once, or `start`, `write`… and `end`. `reset` breaks the connection."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.started = False
        self.ended = False

    async def send(self, body: bytes, *, status: int = 200, content_type: str = "application/json") -> None:
        """Sends a whole answer."""
        self.started = self.ended = True
        await self._connection.send(_head(status, content_type, f"Content-Length: {len(body)}") + body)

    async def start(self, *, status: int = 200, content_type: str = "text/event-stream") -> None:
        """Sends the head of a streamed answer."""
        self.started = True
        await self._connection.send(_head(status, content_type, "Transfer-Encoding: chunked"))

    async def write(self, data: bytes) -> None:
        """Sends a piece of it."""
        await self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """Ends it."""
        self.ended = True
        await self._connection.send(b"0\r\n\r\n")

    def close(self) -> None:
        """Closes the connection in the middle, politely."""
        self._connection.close()

    def reset(self) -> None:
        """Closes the connection with a TCP reset."""
        self._connection.reset()


Handler: TypeAlias = Callable[[HttpRequest, Reply], Awaitable[None]]


class HttpServer:
    """Listens, and calls `handler` for each request."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.handler = handler
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()
        self.closed = False

    async def start(self, host: str, *, port: int) -> int:
        """Listens; gives the port."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def kill(self) -> None:
        """Stops listening and resets every connection."""
        self.closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.reset()

    async def close(self) -> None:
        """Stops listening, closes every connection and waits for their handlers."""
        self.closed = True
        if self._server is not None:
            self._server.close()
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        for connection in list(self.connections):
            connection.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_closed(self.connections)


class Resettable(Protocol):
    """A connection that can be closed with a TCP reset."""

    def reset(self) -> None:
        """Closes it."""


async def until_closed(connections: Collection[Resettable]) -> None:
    """Waits until each of these has taken itself away; resets those whose client does not read what is left for it."""
    end = time.monotonic() + FLUSH_S
    while connections:
        if time.monotonic() > end:
            for connection in list(connections):
                connection.reset()
        await asyncio.sleep(0.001)


class _Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        if self._server.closed:  # it was accepted in that moment
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._writable.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.task is None:
            self._next()

    async def send(self, data: bytes) -> None:
        """Writes, and waits while the client does not read."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self._transport.write(data)
        await self._writable.wait()

    def close(self) -> None:
        """Closes after what is written."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Closes with a TCP reset."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _next(self) -> None:
        """Starts the handler of the next whole request, if there is one."""
        request = self._parse()
        if request is not None and self._server.handler is not None:
            reply = Reply(self)
            self.task = asyncio.get_running_loop().create_task(self._run(self._server.handler, request, reply))

    async def _run(self, handler: Handler, request: HttpRequest, reply: Reply) -> None:
        try:
            await handler(request, reply)
        except ConnectionResetError:
            return
        finally:
            self.task = None
        if not reply.ended or request.headers.get("connection", "").lower() == "close":
            self.close()
        elif self._buffer:
            self._next()

    def _parse(self) -> HttpRequest | None:
        """Takes one whole request from the buffer; closes the connection when it is not HTTP."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_LIMIT_BYTES:
                self.close()
            return None
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        words, length = first.split(" "), headers.get("content-length", "0")
        if len(words) != 3 or not length.isdigit() or int(length) > BODY_LIMIT_BYTES:
            self.close()
            return None
        total = end + 4 + int(length)
        if len(self._buffer) < total:
            return None
        body = bytes(self._buffer[end + 4 : total])
        del self._buffer[:total]
        target = urlsplit(words[1])
        return HttpRequest(method=words[0], path=target.path, query=dict(parse_qsl(target.query)), headers=headers, body=body)


def _head(status: int, content_type: str, line: str) -> bytes:
    return f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}\r\nContent-Type: {content_type}\r\n{line}\r\n\r\n".encode()
