"""The native data plane's connections to one engine: opened when needed, replaced when they leave. Used by `smg.engine.grpc`.

Only streaming calls go this way; the rest stays on grpc.aio. Failures have the same types on both ways.
"""

import asyncio
import math
from collections import deque

from smg._ext import Call, Connection, Headers, Inbox, Sink
from smg.engine.base import EngineOptions
from smg.engine.channel import call_metadata, split_url
from smg.engine.dial import Address, connect, handshake
from smg.engine.status import error_of_call
from smg.errors import EngineTimeout, EngineUnavailable

__all__ = ["Messages", "NativeLink"]

# The pause after a failed attempt to connect doubles from the first to the last of these; requests meanwhile fail at once.
BACKOFF_S = (0.02, 1.0)
# An engine that limits the streams of a connection gets more connections, up to this; beyond it calls are queued on the least busy one.
CONNECTIONS_MAX = 16
# What may wait for a reader before the engine is held back; at most one stream window (256 KB) and one message come on top.
HELD_MESSAGES = 256
HELD_BYTES = 1024 * 1024
GONE = "the engine cannot be reached, or it went away"
LATE = "the engine did not answer in time"
DEADLINE_EXCEEDED = 4
RESOURCE_EXHAUSTED = 8
# A deadline further off than this goes to the engine in whole seconds, so that both sides have the header in their tables.
EXACT_S = 10.0


class NativeLink:
    """Calls share a connection while the engine takes more on it; one that the engine leaves keeps its running calls to their end."""

    def __init__(self, url: str, *, options: EngineOptions) -> None:
        target, self._secure = split_url(url)
        self._options = options
        self._address: Address
        if target.startswith("unix:"):
            self._address, self._host, self._authority = target.removeprefix("unix:"), "localhost", b"localhost"
        else:
            host, _, port = target.rpartition(":")
            self._host, self._authority = host.strip("[]"), target.encode()
            self._address = (self._host, int(port))
        self._headers: dict[str, Headers] = {}
        self._connection: Connection | None = None  # the one that had room last
        self._connections: set[Connection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        self._blocked_until = 0.0
        self._closed = False

    async def call(self, path: str, request: bytes, sink: Sink, *, timeout_s: float) -> Call:
        """Starts a call, connecting first where needed. The deadline goes to the engine; keeping it here is the caller's.

        Raises EngineUnavailable when there is no connection within `connect_timeout_s`, EngineTimeout when the deadline comes first,
        EngineRejected when the request is over `max_message_bytes`.
        """
        limit = self._options.max_message_bytes
        if len(request) > limit:
            raise error_of_call(RESOURCE_EXHAUSTED, f"Sent message larger than max ({len(request)} vs. {limit})")
        connection = self._connection
        if connection is None or not connection.room:
            connection = await self._with_room(timeout_s)
        try:
            return connection.call(self._headers.get(path) or self._add(path), _timeout(timeout_s), request, sink, message_limit=limit)
        except (ConnectionError, ValueError) as error:
            raise EngineUnavailable(GONE, detail=str(error)) from error

    async def reach(self, *, timeout_s: float) -> None:
        """Waits for a connection as `call` would, and raises what it would raise without one."""
        if self._connection is None or not self._connection.room:
            await self._with_room(timeout_s)

    def _add(self, path: str) -> Headers:
        metadata = [(name.encode(), value.encode()) for name, value in call_metadata(self._options)]
        self._headers[path] = Headers(path.encode(), self._authority, secure=self._secure, metadata=metadata)
        return self._headers[path]

    def close(self) -> None:
        """Closes every connection for good; their calls, and those that wait for a connection, end as unavailable."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._connections):
            connection.close()

    async def _with_room(self, timeout_s: float) -> Connection:
        """Gives a connection that takes a call at once, else the least busy one when there can be no more."""
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(CONNECTIONS_MAX + 1):
                    usable = [connection for connection in self._connections if not connection.leaving and not connection.closed]
                    free = next((connection for connection in usable if connection.room), None)
                    if free is not None:
                        self._connection = free
                        return free
                    if usable and (len(usable) >= CONNECTIONS_MAX or not self._may_connect()):
                        return min(usable, key=lambda connection: connection.active)
                    await self._one_more(needed=not usable)
        except TimeoutError as error:
            raise EngineTimeout(LATE, detail="the deadline passed while connecting") from error
        raise EngineUnavailable(GONE, detail="it leaves each connection at once")

    def _may_connect(self) -> bool:
        return self._connecting is not None or asyncio.get_running_loop().time() >= self._blocked_until

    async def _one_more(self, *, needed: bool) -> None:
        """Opens a connection; whoever else needs one meanwhile waits for the same. A failure is raised where there is no other."""
        if self._closed:
            raise EngineUnavailable(GONE, detail="the connection to the engine is closed")
        if not self._may_connect():
            raise EngineUnavailable(GONE, detail="connecting failed a moment ago")
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(_retrieve)
        connecting = self._connecting
        await asyncio.wait([connecting])
        if connecting.cancelled():
            raise EngineUnavailable(GONE, detail="the connection to the engine is closed")
        failed = connecting.exception()
        if failed is not None and (needed or not isinstance(failed, EngineUnavailable)):
            raise failed

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await self._open(loop)
        except (OSError, TimeoutError) as error:
            first, last = BACKOFF_S
            self._blocked_until = loop.time() + min(last, first * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            raise EngineUnavailable(GONE, detail=f"connect: {error}") from error
        finally:
            self._connecting = None
        self._failures = 0

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connects, and waits for the engine's SETTINGS: a port that is open and says nothing is no engine."""
        peer = await connect(self._address)
        try:
            tls = await handshake(peer, host=self._host, options=self._options) if self._secure else None
        except BaseException:
            peer.close()
            raise
        greeted: asyncio.Future[None] = loop.create_future()

        def lost() -> None:
            self._connections.discard(connection)
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
        if connection.closed:
            raise OSError("closed as soon as it had answered")
        self._connections.add(connection)


class Messages:
    """The messages of one call, for a reader that takes them one by one; the engine is held back when the reader is slow.

    `read` gives None at a good end and raises the `EngineError` family otherwise, EngineTimeout at the deadline.
    """

    def __init__(self) -> None:
        self.sink = Inbox(self._take, self._end)
        self._loop = asyncio.get_running_loop()
        self._messages: deque[bytes] = deque()
        self._held_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._status: tuple[int, str] | None = None
        self._call: Call | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, call: Call, *, timeout_s: float) -> None:
        """Takes over the started call and its deadline."""
        self._call = call
        if self._status is None:
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
        message = self._messages.popleft()
        self._held_bytes -= len(message)
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

    def linger(self) -> None:
        """Leaves the call, whose answer is whole, a moment to end by itself."""
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.linger()

    def _take(self, messages: list[bytes]) -> None:
        self._messages += messages
        self._held_bytes += sum(map(len, messages))
        if len(self._messages) > HELD_MESSAGES or self._held_bytes > HELD_BYTES:
            self._hold()
        self._wake()

    def _hold(self) -> None:
        if self._call is not None and not self._paused:
            self._paused = True
            self._call.pause()

    def _end(self, status: int, text: str) -> None:
        self._status = self._status or (status, text)
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _expire(self) -> None:
        self._status = self._status or (DEADLINE_EXCEEDED, "the deadline passed")
        self.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @staticmethod
    def _finished(status: int, text: str) -> None:
        if status:
            raise error_of_call(status, text)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Nobody may be left who waits for the task: its failure is then of no interest."""
    if not task.cancelled():
        task.exception()


def _timeout(timeout_s: float) -> bytes:
    """The header's value: at most eight digits and a unit."""
    if timeout_s < EXACT_S:
        return b"%dm" % max(1, int(timeout_s * 1000))
    return b"%dS" % min(99_999_999, math.ceil(timeout_s))
