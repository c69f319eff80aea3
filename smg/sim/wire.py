"""The network misbehaving on purpose: a TCP front before the gRPC server that can reset a stream, say GOAWAY, or drop every connection.

grpc.aio offers none of that. Client bytes pass unread. Server bytes are followed frame by frame (RFC 9113 section 4.1), only to find the
secret message that `distress` makes: the protocol writes it into the stream that shall break, and the front does so instead of sending it.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from smg.sim.http import until_closed

__all__ = ["Wire", "distress"]

SECRET = b"smg-sim-distress"
SECRET_FIELD = 2047
FRAME_HEAD = 9
DATA, RST_STREAM, GOAWAY = 0x0, 0x3, 0x7
LAST_STREAM = 0x7FFFFFFF
HIGH_WATER = 1 << 20


def distress(kind: str, code: int) -> bytes:
    """Gives the wire form of a protobuf message that no engine sends: an unknown field with rst, goaway or die and an error number."""
    body = SECRET + kind.encode().ljust(8) + struct.pack(">I", code)
    key = SECRET_FIELD << 3 | 2
    return bytes([key & 0x7F | 0x80, key >> 7 & 0x7F, len(body)]) + body


class Wire:
    """Listens on TCP and relays to the UNIX socket `upstream`. `kill` is what the network sees when a process dies; `die` is called
    where a stream says that it shall, after what was sent before.
    """

    def __init__(self, upstream: str, *, die: Callable[[], None]) -> None:
        self._upstream = upstream
        self.die = die
        self._server: asyncio.Server | None = None
        self._links: set[_ClientSide] = set()
        self.closed = False

    async def start(self, host: str, *, port: int) -> int:
        """Listens; gives the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ClientSide(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def kill(self) -> None:
        """Stops listening and resets every connection, with nothing said."""
        self.closed = True
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.reset()

    async def close(self) -> None:
        """Stops listening and closes every connection."""
        self.closed = True
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.shut()
        await until_closed(self._links)


class _ClientSide(asyncio.Protocol):
    """The connection of one client, and its twin to the server."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._opening: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self.server: _ServerSide | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.wire._links.add(self)
        if self.wire.closed:  # it was accepted in that moment
            self.reset()
            return
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_unix_connection(lambda: _ServerSide(self), self.wire._upstream)
        except OSError:
            self.reset()
            return
        self.server = server
        for data in self._early:
            server.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.server is None:
            self._early.append(data)
        else:
            self.server.write(data)

    def pause_writing(self) -> None:
        if self.server is not None and self.server.transport is not None:
            self.server.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.server is not None and self.server.transport is not None:
            self.server.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire._links.discard(self)
        if self._opening is not None:
            self._opening.cancel()
        if self.server is not None and self.server.transport is not None:
            self.server.transport.abort()

    def shut(self) -> None:
        """Closes after what is written."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Closes with a TCP reset."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _ServerSide(asyncio.Protocol):
    """The connection to the gRPC server: passes whole frames on, except those of streams that it broke."""

    def __init__(self, client: _ClientSide) -> None:
        self._client = client
        self._rest = b""
        self._broken: set[int] = set()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        client = self._client.transport
        if client is None or client.is_closing():
            self.transport.abort()

    def write(self, data: bytes) -> None:
        """Sends client bytes."""
        if self.transport is not None:
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self._client.transport is not None:
            self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._client.transport is not None and not self._client.transport.is_closing():
            self._client.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.shut()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if not self._broken and SECRET not in data and _is_whole(data):
            self._rest = b""
            self._send(data)
            return
        start = 0
        while len(data) - start >= FRAME_HEAD:
            end = start + FRAME_HEAD + int.from_bytes(data[start : start + 3])
            if end > len(data):
                break
            self._pass(data[start:end])
            start = end
        self._rest = data[start:]

    def _pass(self, frame: bytes) -> None:
        """Sends one frame on, or what a secret in it asks for."""
        stream = int.from_bytes(frame[5:9]) & LAST_STREAM
        if stream in self._broken:
            return
        at = frame.find(SECRET) if frame[3] == DATA else -1
        if at < 0:
            self._send(frame)
            return
        kind = frame[at + len(SECRET) : at + len(SECRET) + 8].decode().strip()
        code = int.from_bytes(frame[at + len(SECRET) + 8 : at + len(SECRET) + 12])
        body = frame[FRAME_HEAD : at - 8]  # before it: 5 bytes of gRPC's head, 3 of the field's
        if body:
            self._send(len(body).to_bytes(3) + bytes([DATA, 0]) + frame[5:9] + body)
        self._broken.add(stream)
        if kind == "die":
            self._client.wire.die()
        elif kind == "rst":
            self._send((4).to_bytes(3) + bytes([RST_STREAM, 0]) + frame[5:9] + code.to_bytes(4))
        else:
            self._send((8).to_bytes(3) + bytes([GOAWAY, 0]) + bytes(4) + LAST_STREAM.to_bytes(4) + code.to_bytes(4))
            self._client.shut()

    def _send(self, data: bytes) -> None:
        if self._client.transport is not None and not self._client.transport.is_closing():
            self._client.transport.write(data)


def _is_whole(data: bytes) -> bool:
    """True when `data` ends at the end of a frame."""
    start = 0
    while start + FRAME_HEAD <= len(data):
        start += FRAME_HEAD + int.from_bytes(data[start : start + 3])
    return start == len(data)
