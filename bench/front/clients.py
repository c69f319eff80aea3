"""Load for `bench.front.compare`: keep-alive clients of raw HTTP/1.1 as uvloop protocols, so that they cost less than what they measure."""

import asyncio
import time

POST = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer k\r\naccept: */*\r\nuser-agent: b\r\n"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"Hello " * 30 + b'"}]}'


class Poster(asyncio.Protocol):
    """Posts one request after the other until a time; each response comes in one read."""

    def __init__(self, until_s: float, done: "asyncio.Future[None]") -> None:
        self.request = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        self.until_s = until_s
        self.done = done
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the first."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Counts a response and sends the next."""
        assert data.startswith(b"HTTP/1.1 200")
        self.count += 1
        if time.monotonic() < self.until_s:
            self.transport.write(self.request)
        else:
            self.transport.close()
            self.done.set_result(None)


class Listener(asyncio.Protocol):
    """Reads one stream to its end and counts its chunks."""

    def __init__(self, path: str, done: "asyncio.Future[None]") -> None:
        self.request = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        self.done = done
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the stream."""
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Counts chunks by their first bytes."""
        self.count += data.count(b"data: ")
        if data.endswith(b"0\r\n\r\n"):
            self.transport.close()
            self.done.set_result(None)


async def post(port: int, *, clients: int, seconds: float) -> int:
    """Gives the number of requests."""
    until_s = time.monotonic() + seconds
    return await _run(port, [Poster(until_s, _future()) for _ in range(clients)])


async def listen(port: int, *, clients: int, count: int, milliseconds: int) -> int:
    """Gives the number of chunks."""
    return await _run(port, [Listener(f"/stream/{count}/{milliseconds}", _future()) for _ in range(clients)])


def _future() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def _run(port: int, protocols: list[Poster] | list[Listener]) -> int:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*[loop.create_connection(lambda each=each: each, "127.0.0.1", port) for each in protocols])  # type: ignore[misc]
    await asyncio.gather(*[each.done for each in protocols])
    return sum(each.count for each in protocols)
