"""The connections of one data worker to one HTTP engine: kept open for the next request, bounded in number. Owned by `engine.py`."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable

from smg.engine.base import EngineOptions
from smg.engine.dial import connect, tls_context
from smg.engine.http.address import HttpAddress
from smg.engine.http.call import HttpCall, HttpRequest
from smg.engine.http.connection import HttpConnection
from smg.errors import EngineBusy, EngineUnavailable

__all__ = ["HttpPool", "Sent"]

Sent = Callable[[HttpCall], object] | None

# uvicorn closes after 5 s without a request, and a request that crosses the close on its way is lost.
IDLE_S = 4.0
MOST_IDLE = 128


class HttpPool:
    """The newest idle connection is used first, so that those that are not needed grow old."""

    def __init__(self, address: HttpAddress, *, options: EngineOptions) -> None:
        self._address = address
        self._options = options
        self._idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._host = f"host: {address.authority}\r\n"
        self._key = f"authorization: Bearer {options.api_key}\r\n" if options.api_key else ""

    def __len__(self) -> int:
        """Connections that are open."""
        return len(self._all)

    async def send(self, request: HttpRequest, *, keyless: bool = False, sent: Sent = None) -> HttpCall:
        """Sends a request and gives the call once its head is there. Raises EngineUnavailable, EngineBusy, EngineProtocol.

        `keyless`: without the engine's key, because the request brings its own. `sent` gets the call at the moment from which on the engine
        may see the request. A connection that the engine closed while it was idle is replaced: nothing of the request was answered.
        """
        head = self._head(request, keyless=keyless)  # before a connection is counted, as it may raise
        while True:
            connection, reused = await self._take()
            call = connection.send(head, request.body)
            try:
                if sent is not None:
                    sent(call)
                await call.head()
            except EngineUnavailable:
                call.close()
                if not (reused and call.fresh):
                    raise
            except BaseException:
                call.close()
                raise
            else:
                return call

    def _head(self, request: HttpRequest, *, keyless: bool) -> bytes:
        start = f"{request.method} {self._address.prefix}{request.target} HTTP/1.1\r\n{self._host}{'' if keyless else self._key}"
        size = f"content-length: {len(request.body)}\r\n" if request.body or request.method != "GET" else ""
        return f"{start}{request.headers}{size}\r\n".encode("latin-1")

    def close(self) -> None:
        """Cuts every connection."""
        self._closed = True
        for connection in list(self._all):
            connection.cut()
        while self._waiting:
            self._leave()

    async def _take(self) -> tuple[HttpConnection, bool]:
        """Gives a connection and whether it was used before; `_freed` counts it out again."""
        await self._enter()
        try:
            if self._closed:
                raise EngineUnavailable("the connection to the engine is closed")
            oldest_s = time.monotonic() - IDLE_S
            while self._idle:
                connection = self._idle.pop()
                if connection.idle_since_s >= oldest_s and connection.usable:
                    return connection, True
                connection.cut()
            return await self._open(), False
        except BaseException:
            self._leave()
            raise

    async def _enter(self) -> None:
        """Counts a request in: first come, first served, up to the deadline of a connect."""
        if self._used < self._options.max_connections:
            self._used += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._leave()  # the place that it was given is the next one's
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            if isinstance(error, TimeoutError):
                raise EngineBusy("as many requests as may be are under way at the engine") from error
            raise

    def _leave(self) -> None:
        """Counts a request out: its place is the next one's, if one waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._used -= 1

    async def _open(self) -> HttpConnection:
        address, loop = self._address, asyncio.get_running_loop()
        connection = HttpConnection(freed=self._freed, lost=self._lost)
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                sock = await connect((address.host, address.port))
                context = await asyncio.to_thread(tls_context, self._options, protocol="http/1.1") if address.tls else None
                await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=address.host if context else None)
        except TimeoutError as error:
            raise _unreachable(sock, "no connection in time") from error
        except OSError as error:
            raise _unreachable(sock, str(error)) from error
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        self._all.add(connection)
        return connection

    def _freed(self, connection: HttpConnection) -> None:
        self._leave()
        if connection.closed:
            return
        if connection.usable and len(self._idle) < MOST_IDLE and not self._closed:
            self._idle.append(connection)
        else:
            connection.cut()

    def _lost(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def _unreachable(sock: socket.socket | None, detail: str) -> EngineUnavailable:
    if sock is not None:
        sock.close()
    return EngineUnavailable("the engine cannot be reached", detail=detail)
