"""The other end of an HTTP/2 connection, with hand-made frames: says what it is told, and keeps what it heard. RFC 9113, RFC 7541."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from smg._ext import Call, Connection, Headers, Inbox

DEADLINE_S = 30.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 1
END_HEADERS = 4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4

COMMON = Headers(b"/s/m", b"localhost", secure=False, metadata=[])
HEAD = ((":status", "200"), ("content-type", "application/grpc"))
Field = tuple[str, str]


class Frame(NamedTuple):
    """One frame as it was received."""

    type: int
    flags: int
    stream_id: int
    payload: bytes


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream_id) + payload


def block(fields: Iterable[Field]) -> bytes:
    """A header block: every field a literal without indexing."""
    parts = []
    for name, value in fields:
        parts.append(b"\0")
        for text in (name.encode(), value.encode()):
            parts.append(bytes([len(text)]) if len(text) < 127 else b"\x7f" + _rest(len(text) - 127))
            parts.append(text)
    return b"".join(parts)


def _rest(number: int) -> bytes:
    digits = b""
    while number >= 128:
        digits += bytes([number % 128 + 128])
        number //= 128
    return digits + bytes([number])


def settings(values: dict[int, int] | None = None) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in (values or {}).items()))


def head(stream_id: int, fields: Iterable[Field] = HEAD, *, end: bool = False) -> bytes:
    """A HEADERS frame."""
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block(fields))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    """DATA frames, each at most 16 KB."""
    pieces = [payload[i : i + 16384] for i in range(0, len(payload), 16384)] or [b""]
    return b"".join(frame(DATA, END_STREAM if end and i == len(pieces) - 1 else 0, stream_id, piece) for i, piece in enumerate(pieces))


def trailer(stream_id: int, status: int = 0, text: str = "") -> bytes:
    """The end of a call."""
    fields = [("grpc-status", str(status))] + ([("grpc-message", text)] if text else [])
    return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block(fields))


def rst(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", code))


def goaway(last_stream_id: int, code: int = 0) -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code))


def window(stream_id: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", size))


def message(body: bytes, *, compressed: int = 0) -> bytes:
    """A gRPC message with its prefix."""
    return bytes([compressed]) + struct.pack(">I", len(body)) + body


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for happens in native code, or in a peer
            await asyncio.sleep(0.001)


class Peer:
    """One connection. SETTINGS and PING are answered unless `polite` is false; `give_window` returns what DATA frames used up."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, polite: bool = True, give_window: bool = True
    ) -> None:
        self.frames: list[Frame] = []
        self.closed = False
        self.polite = polite
        self.give_window = give_window
        self._reader = reader
        self.writer = writer
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            preface = await self._reader.readexactly(len(PREFACE))
            while preface == PREFACE:
                start = await self._reader.readexactly(9)
                size = int.from_bytes(start[:3], "big")
                got = Frame(start[3], start[4], int.from_bytes(start[5:], "big"), await self._reader.readexactly(size))
                self.frames.append(got)
                self._answer(got)
        self.closed = True

    def _answer(self, got: Frame) -> None:
        if not self.polite:
            return
        if got.type in (SETTINGS, PING) and not got.flags & ACK:
            self.send(frame(got.type, ACK, 0, got.payload if got.type == PING else b""))
        if got.type == DATA and got.payload and self.give_window:
            self.send(window(0, len(got.payload)) + window(got.stream_id, len(got.payload)))

    def send(self, *frames: bytes) -> None:
        """Sends frames, or any bytes."""
        self.writer.write(b"".join(frames))

    def of(self, kind: int) -> list[Frame]:
        """The frames of one type, acknowledgements left out."""
        return [got for got in self.frames if got.type == kind and not (kind in (SETTINGS, PING) and got.flags & ACK)]

    @property
    def streams(self) -> list[int]:
        """The streams that were opened."""
        return [got.stream_id for got in self.of(HEADERS)]

    def body(self, stream_id: int) -> bytes:
        """What a stream's request held."""
        return b"".join(got.payload for got in self.of(DATA) if got.stream_id == stream_id)

    async def close(self) -> None:
        """Closes the connection."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Heard:
    """A call and all that its sink was told."""

    def __init__(self, connection: Connection, request: bytes = b"hello", **options: int) -> None:
        self.messages: list[bytes] = []
        self.wakes = 0
        self.ends: list[tuple[int, str]] = []
        self.call: Call = connection.call(COMMON, None, request, Inbox(self._take, self._end), **options)

    def _take(self, messages: list[bytes]) -> None:
        self.wakes += 1
        self.messages += messages

    def _end(self, status: int, text: str) -> None:
        self.ends.append((status, text))

    async def ended(self) -> tuple[int, str]:
        """Waits for the end."""
        await until(lambda: self.ends)
        assert len(self.ends) == 1
        return self.ends[0]


class Line:
    """A native connection and its peer, over a socket pair. `lost` counts calls of `on_close`."""

    def __init__(self, connection: Connection, peer: Peer) -> None:
        self.connection = connection
        self.peer = peer
        self.lost = 0

    def start(self, request: bytes = b"hello", **options: int) -> Heard:
        """Starts a call."""
        return Heard(self.connection, request, **options)


@asynccontextmanager
async def line(*, first: bytes | None = None, polite: bool = True, give_window: bool = True) -> AsyncIterator[Line]:
    """A connection whose peer has said `first`, by default empty SETTINGS."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)
    peer = Peer(reader, writer, polite=polite, give_window=give_window)
    made: list[Line] = []

    def lost() -> None:
        made[0].lost += 1

    made.append(Line(Connection(asyncio.get_running_loop(), ours, lost), peer))
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    made[0].connection.start(lambda: ready.set_result(None))
    peer.send(settings() if first is None else first)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await ready
        yield made[0]
    finally:
        made[0].connection.close()
        assert made[0].lost == 1
        await peer.close()


@asynccontextmanager
async def server(on_peer: Callable[[Peer], None], *, port: int = 0) -> AsyncIterator[str]:
    """A server whose connections are peers; gives its URL."""
    peers: list[Peer] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(reader, writer))
        on_peer(peers[-1])

    listener = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield f"grpc://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for peer in peers:
            await peer.close()
        await listener.wait_closed()
