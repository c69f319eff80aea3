"""The one place that touches the fronts' response objects: sends a whole reply, opens a stream, writes chunks without waiting."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from smg.api.base import Reply, StreamReply
from smg.server.front import Responder

__all__ = ["Outlet", "Stream", "cut_unfinished", "send_reply"]

# What granian 2.8 returns from `send_bytes` once nobody reads any more; it is an awaitable that raises, but its type says it at once.
GONE = "PyErrAwaitable"

Fields: TypeAlias = tuple[tuple[str, str], ...]


def send_reply(protocol: Any, reply: Reply, *, headers: list[tuple[str, str]]) -> None:
    """Sends a whole response; the first response of a protocol object wins, later ones are dropped by granian."""
    if reply.body:
        protocol.response_bytes(reply.status, headers, reply.body)
    else:
        protocol.response_empty(reply.status, headers)


def cut_unfinished(protocol: Any) -> None:
    """Cuts the connection of a response that was begun and could not be ended, by a fault of ours: its client must not wait for ever."""
    if isinstance(protocol, Responder):
        protocol.break_off()


class Stream(Protocol):
    """An open event stream. `count`: chunks written so far."""

    @property
    def count(self) -> int:
        """Grows with each chunk."""

    def write(self, chunk: bytes) -> bool:
        """Queues one chunk without waiting, from any callback; False when the client is gone."""

    def close(self, last: bytes = b"") -> None:
        """Ends the body, with one chunk more."""


class GranianStream:
    """A stream of granian's, which copies each chunk into a queue of its own."""

    def __init__(self, transport: Any) -> None:
        self.count = 0
        self._transport = transport

    def write(self, chunk: bytes) -> bool:
        """Queues one chunk; False when the client is gone."""
        self.count += 1
        return type(self._transport.send_bytes(chunk)).__name__ != GONE

    def close(self, last: bytes = b"") -> None:
        """Ends the body, with one chunk more: granian does so when its object dies."""
        if last:
            self.write(last)
        self._transport = None


class Outlet:
    """Where the body of a streamed response is written. The head is held back until the first chunk: an error before it has its own status.

    Called with a chunk it writes; False when the client is gone. `status`: of the head; `comments`: silence may be filled.
    """

    def __init__(self, protocol: Any, *, reply: StreamReply, headers: Callable[[Fields], list[tuple[str, str]]]) -> None:
        self.status = reply.status
        self.comments = reply.comments
        self.stream: Stream | None = None
        self._protocol = protocol
        self._headers = headers
        self._fields = reply.headers
        self._whole = False

    def __call__(self, chunk: bytes) -> bool:
        return (self.stream or self._open()).write(chunk)

    def begin(self, status: int, headers: Fields, *, comments: bool) -> bool:
        """Says what the head is to be; False when it has left already."""
        if self.stream is not None:
            return False
        self.status, self._fields, self.comments = status, headers, comments
        return True

    def whole(self, status: int, headers: Fields, body: bytes) -> bool:
        """Sends a whole response instead; False when a head has left already."""
        if self.stream is not None:
            return False
        self.status, self._whole = status, True
        send_reply(self._protocol, Reply(status=status, headers=headers, body=body), headers=self._headers(headers))
        return True

    def backlog(self) -> int:
        """Gives the bytes that the client has not read yet; granian does not tell."""
        return self._protocol.backlog() if isinstance(self._protocol, Responder) else 0

    def finish(self, last: bytes) -> None:
        """Ends the body with one chunk more."""
        if not self._whole:
            (self.stream or self._open()).close(last)

    def close(self) -> None:
        """Ends the body, if one was begun, and lets go of the response, which an error's traceback would keep alive."""
        stream, self.stream, self._protocol = self.stream, None, None
        if stream is not None:
            stream.close()

    def _open(self) -> Stream:
        protocol, status, headers = self._protocol, self.status, self._headers(self._fields)
        if isinstance(protocol, Responder):
            self.stream = protocol.open_stream(status, headers)
        else:
            self.stream = GranianStream(protocol.response_stream(status, headers))
        return self.stream
