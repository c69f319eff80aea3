"""`python -m bench.front.serve front|granian|floor PORT`: serves the trivial application until SIGTERM. Started by `compare.py`."""

import asyncio
import os
import signal
import socket
import sys
from typing import ClassVar

import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server

from bench.front.application import CHUNK, EVENTS, JSON, Bench
from smg.config import Config
from smg.server.front import Front
from smg.server.front.wire import render_head

ANSWER = render_head(200, JSON, ending="content-length: 15\r\n") + b'{"length": 234}'
FRAMED = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)


async def serve_front(port: int, stop: asyncio.Event) -> None:
    """Ours."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    front = Front(Bench(), config=Config(), loop=asyncio.get_running_loop())
    await front.serve(sock)
    await stop.wait()
    front.close()


async def serve_granian(port: int, stop: asyncio.Event) -> None:
    """The other."""
    server = Server(Bench(), address="127.0.0.1", port=port, interface=Interfaces.RSGI, log_enabled=False)
    task = asyncio.create_task(server.serve())
    await stop.wait()
    server.stop()
    await task


class Floor(asyncio.Protocol):
    """Answers as the application would and parses nothing: what any front on this loop pays for the loop and the kernel."""

    streams: ClassVar[dict[int, list[list[int]]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport, and its descriptor for writes past uvloop."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.fd = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        """Answers a POST at once; a GET opens a stream."""
        if data.startswith(b"POST"):
            self.transport.write(ANSWER)
            return
        count, milliseconds = (int(part) for part in data.split(b" ", 2)[1].split(b"/")[2:])
        os.write(self.fd, render_head(200, EVENTS, ending="transfer-encoding: chunked\r\n"))
        streams = self.streams.setdefault(milliseconds, [])
        streams.append([self.fd, count])
        if len(streams) == 1:
            asyncio.get_running_loop().call_later(milliseconds / 1000, self.tick, milliseconds)

    def tick(self, milliseconds: int) -> None:
        """Writes a chunk to each stream."""
        for stream in self.streams[milliseconds]:
            stream[1] -= 1
            os.write(stream[0], FRAMED if stream[1] else FRAMED + b"0\r\n\r\n")
        self.streams[milliseconds] = [stream for stream in self.streams[milliseconds] if stream[1]]
        if self.streams[milliseconds]:
            asyncio.get_running_loop().call_later(milliseconds / 1000, self.tick, milliseconds)


async def serve_floor(port: int, stop: asyncio.Event) -> None:
    """What cannot be undercut."""
    server = await asyncio.get_running_loop().create_server(Floor, "127.0.0.1", port)
    await stop.wait()
    server.close()


SERVERS = {"front": serve_front, "granian": serve_granian, "floor": serve_floor}


async def main() -> None:
    """Serves until told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kind, port = sys.argv[1:]
    await SERVERS[kind](int(port), stop)


if __name__ == "__main__":
    uvloop.run(main())
