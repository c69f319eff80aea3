"""The native data plane's connections to one engine: opened when needed, replaced when they leave. Used by `smg.engine.grpc`.

Only streaming calls go this way; the rest stays on grpc.aio. Failures have the same types on both ways.
"""

import asyncio
import socket
import ssl
from pathlib import Path

from smg._ext import Call, Connection, Inbox, Sink
from smg.engine.base import EngineOptions
from smg.engine.channel import call_metadata, split_url
from smg.engine.status import error_of_call
from smg.errors import ConfigError, EngineUnavailable

__all__ = ["Messages", "NativeLink"]

# The pause after a failed attempt to connect doubles from the first to the last of these; requests meanwhile fail at once.
BACKOFF_S = (0.02, 1.0)
# Messages that may wait for a reader before the engine is held back.
HELD_MESSAGES = 256
GONE = "the engine cannot be reached, or it went away"


class NativeLink:
    """All calls share one connection while it takes new ones; a connection that the engine leaves keeps its running calls to their end."""

    def __init__(self, url: str, *, options: EngineOptions) -> None:
        target, self._secure = split_url(url)
        self._options = options
        self._path = target.removeprefix("unix:") if target.startswith("unix:") else None
        host, _, port = target.rpartition(":")
        self._address = (host.strip("[]"), int(port)) if self._path is None else None
        self._authority = b"localhost" if self._path is not None else target.encode()
        self._metadata = [(name.encode(), value.encode()) for name, value in call_metadata(options)]
        self._connection: Connection | None = None
        self._leaving: set[Connection] = set()
        self._connecting: asyncio.Task[Connection] | None = None
        self._failures = 0
        self._blocked_until = 0.0

    async def call(self, path: bytes, request: bytes, sink: Sink, *, timeout_s: float) -> Call:
        """Starts a call, connecting first where needed. The deadline goes to the engine; keeping it here is the caller's.

        Raises EngineUnavailable when there is no connection within `connect_timeout_s`.
        """
        connection = self._connection
        if connection is None or connection.closed or connection.leaving:
            connection = await self._connected()
        metadata = [*self._metadata, (b"grpc-timeout", b"%dm" % min(99_999_999, max(1, int(timeout_s * 1000))))]
        try:
            return connection.call(path, self._authority, metadata, request, sink, message_limit=self._options.max_message_bytes)
        except ConnectionError as error:
            raise EngineUnavailable(GONE, detail=str(error)) from error

    def close(self) -> None:
        """Closes every connection; their calls end as unavailable."""
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in (self._connection, *self._leaving):
            if connection is not None:
                connection.close()
        self._connection = None

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._connecting is None:
            if loop.time() < self._blocked_until:
                raise EngineUnavailable(GONE, detail="connecting failed a moment ago")
            self._connecting = loop.create_task(self._connect(loop))
        return await asyncio.shield(self._connecting)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                connection = await self._open(loop)
        except (OSError, TimeoutError) as error:
            first, last = BACKOFF_S
            self._blocked_until = loop.time() + min(last, first * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            raise EngineUnavailable(GONE, detail=f"connect: {error}") from error
        finally:
            self._connecting = None
        self._failures = 0
        if self._connection is not None and not self._connection.closed:
            self._leaving.add(self._connection)
        self._connection = connection
        return connection

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """Connects, and waits for the engine's SETTINGS: a port that is open and says nothing is no engine."""
        peer = await self._connect_socket(loop)
        try:
            tls = await self._handshake(loop, peer) if self._secure else None
        except BaseException:
            peer.close()
            raise
        greeted: asyncio.Future[None] = loop.create_future()
        connection: Connection

        def lost() -> None:
            self._leaving.discard(connection)
            if not greeted.done():
                greeted.set_exception(OSError("closed before it answered"))

        def ready() -> None:
            if not greeted.done():
                greeted.set_result(None)

        connection = Connection(loop, peer, lost, tls)
        connection.start(ready)
        try:
            await greeted
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect_socket(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        if self._address is None:
            return await _dial(loop, socket.AF_UNIX, self._path)
        host, port = self._address
        error: OSError | None = None
        for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return await _dial(loop, family, address)
            except OSError as failed:
                error = failed
        raise error or OSError(f"{host} has no address")

    async def _handshake(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        host = self._address[0] if self._address else "localhost"
        tls = (await asyncio.to_thread(_tls_context, self._options)).wrap_bio(received, to_send, server_hostname=host)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(peer, to_send.read())
                data = await loop.sock_recv(peer, 65536)
                if not data:
                    raise OSError("closed during the TLS handshake") from None
                received.write(data)
                continue
            await loop.sock_sendall(peer, to_send.read())
            return tls, received, to_send


class Messages:
    """The messages of one call, for a reader that takes them one by one; the engine is held back when the reader is slow.

    `read` gives None at a good end and raises the `EngineError` family otherwise, EngineTimeout at the deadline.
    """

    def __init__(self) -> None:
        self.sink = Inbox(self._take, self._end)
        self._loop = asyncio.get_running_loop()
        self._messages: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._status: tuple[int, str] | None = None
        self._call: Call | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: Call, *, timeout_s: float) -> None:
        """Takes over the started call and its deadline."""
        self._call = call
        self._timer = self._loop.call_later(timeout_s, self._expire)

    @property
    def ended(self) -> bool:
        """True once the engine has closed the call, or the deadline has passed."""
        return self._status is not None

    async def read(self) -> bytes | None:
        """Gives the next message."""
        while not self._messages:
            if self._status is not None:
                return self._finished(*self._status)
            self._waiter = self._loop.create_future()
            await self._waiter
        message = self._messages.pop()
        if self._paused and not self._messages and self._call is not None:
            self._paused = False
            self._call.resume()
        return message

    def cancel(self) -> None:
        """Resets the call at the engine, if it still runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.cancel()

    def _take(self, messages: list[bytes]) -> None:
        self._messages = messages[::-1] + self._messages if self._messages else messages[::-1]
        if len(self._messages) > HELD_MESSAGES and self._call is not None and not self._paused:
            self._paused = True
            self._call.pause()
        self._wake()

    def _end(self, status: int, text: str) -> None:
        self._status = self._status or (status, text)
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _expire(self) -> None:
        self._status = (4, "the deadline passed")
        self.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @staticmethod
    def _finished(status: int, text: str) -> None:
        if status:
            raise error_of_call(status, text)


async def _dial(loop: asyncio.AbstractEventLoop, family: int, address: object) -> socket.socket:
    peer = socket.socket(family, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        await loop.sock_connect(peer, address)  # type: ignore[arg-type]  # what getaddrinfo gives, or a path
        if family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except BaseException:
        peer.close()
        raise
    return peer


def _tls_context(options: EngineOptions) -> ssl.SSLContext:
    if bool(options.client_cert_path) != bool(options.client_key_path):
        raise ConfigError(["a client certificate for engines needs both certificate and key"])
    for path in (options.ca_cert_path, options.client_cert_path, options.client_key_path):
        if path and not Path(path).is_file():
            raise ConfigError([f"cannot read {path!r}"])
    context = ssl.create_default_context(cafile=options.ca_cert_path)
    if options.client_cert_path:
        context.load_cert_chain(options.client_cert_path, options.client_key_path)
    context.set_alpn_protocols(["h2"])
    return context
