"""A real granian server around an application, in the test's own loop, and the bytes of raw HTTP requests."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable

from granian.constants import Interfaces
from granian.net import SocketSpec
from granian.server import embed

from smg.server.app import App
from smg.sim.processes import free_port

BOUND_S = 20.0


class Server(embed.Server):
    """Granian's binds one more socket than it serves on, to learn early whether it can, and never closes that."""

    def _init_shared_socket(self) -> None:
        self._ssp = SocketSpec(self.bind_addr, self.bind_port, self.backlog)


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[int]:
    """Serves on a free port of the loopback, which it gives."""
    port = free_port()
    threads = _native_threads()
    server = Server(app, address="127.0.0.1", port=port, interface=Interfaces.RSGI, log_enabled=False)
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: _listens(port))
        yield port
    finally:
        server.stop()
        await task
        # A native thread that outlives the interpreter would bring it down at exit.
        await until(lambda: _native_threads() <= threads)


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection, closed at the end if the test did not do so."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task")) - threading.active_count()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def until(condition: Callable[[], object], within_s: float = BOUND_S) -> float:
    """Polls until the condition holds; gives the seconds it took, fails after the bound."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "the condition did not come true"
        await asyncio.sleep(0.002)
    return time.monotonic() - start


async def exchange(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends bytes and reads until the server closes; gives status, headers and the body without chunk sizes."""
    async with connection(port) as (reader, writer):
        writer.write(data)
        raw = await asyncio.wait_for(reader.read(), BOUND_S)
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split(" ")[1]), headers, _unchunked(body) if "transfer-encoding" in headers else body


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", "connection: close", *headers, "", ""]).encode()


def post(
    body: bytes, *headers: str, path: str = "/v1/chat/completions", media: str = "application/json", length: int | None = None
) -> bytes:
    """A request with a body; `length` overrides the true content-length, and -1 leaves it out."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close", *headers]
    lines += [f"content-type: {media}"] if media else []
    lines += [f"content-length: {len(body) if length is None else length}"] if length != -1 else []
    return "\r\n".join([*lines, "", ""]).encode() + body
