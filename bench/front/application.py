"""The trivial application that both fronts serve: an echo of the length of a JSON body, and a paced stream. Answers to GET /cpu too.

`POST /echo` takes JSON and gives JSON; `GET /stream/COUNT/MILLISECONDS` gives COUNT chunks of 230 bytes, one every so many milliseconds,
all streams in step from one timer; `GET /cpu` gives the processor seconds of this process.
"""

import asyncio
import time
from typing import Any

CHUNK = b"data: " + b"x" * 222 + b"\n\n"
JSON = [("content-type", "application/json"), ("x-request-id", "req-0123456789abcdef01234567")]
EVENTS = [("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-request-id", "req-0123456789abcdef01234567")]


class Bench:
    """An RSGI application. `paces` has the open streams by interval; a stream leaves when it has sent its chunks."""

    def __init__(self) -> None:
        self.paces: dict[int, list[Paced]] = {}

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answers one request."""
        path = scope.path
        if path == "/echo":
            body = await protocol()
            protocol.response_bytes(200, JSON, b'{"length": %d}' % len(body))
        elif path == "/cpu":
            protocol.response_str(200, JSON, str(time.process_time()))
        else:
            _, _, count, milliseconds = path.split("/")
            await self._stream(protocol, count=int(count), milliseconds=int(milliseconds))

    async def _stream(self, protocol: Any, *, count: int, milliseconds: int) -> None:
        loop = asyncio.get_running_loop()
        paced = Paced(protocol.response_stream(200, EVENTS), count, loop.create_future())
        streams = self.paces.setdefault(milliseconds, [])
        streams.append(paced)
        if len(streams) == 1:
            loop.call_later(milliseconds / 1000, self._tick, milliseconds, loop)
        await paced.done
        paced.transport = None

    def _tick(self, milliseconds: int, loop: asyncio.AbstractEventLoop) -> None:
        streams = [each for each in self.paces[milliseconds] if not each.send()]
        self.paces[milliseconds] = streams
        if streams:
            loop.call_later(milliseconds / 1000, self._tick, milliseconds, loop)


class Paced:
    """A stream and how much of it is left."""

    def __init__(self, transport: Any, left: int, done: "asyncio.Future[None]") -> None:
        self.transport = transport
        self.left = left
        self.done = done

    def send(self) -> bool:
        """Sends one chunk; true after the last."""
        self.transport.send_bytes(CHUNK)
        self.left -= 1
        if not self.left:
            self.done.set_result(None)
        return not self.left
