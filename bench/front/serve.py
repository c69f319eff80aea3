"""Serves the trivial application: `python -m bench.front.serve front|granian PORT`, until SIGTERM. Started by `bench.front.compare`."""

import asyncio
import signal
import socket
import sys

import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server

from bench.front.application import Bench
from smg.config import Config
from smg.server.front import Front


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


async def main() -> None:
    """Serves until told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kind, port = sys.argv[1:]
    await (serve_front if kind == "front" else serve_granian)(int(port), stop)


if __name__ == "__main__":
    uvloop.run(main())
