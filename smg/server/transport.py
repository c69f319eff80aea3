"""The one place that touches the fronts' response objects: sends a whole reply, opens a stream, writes chunks without waiting."""

from typing import Any, Protocol

from smg.api.base import Reply
from smg.server.front import ResponseStream

__all__ = ["Stream", "open_stream", "send_reply"]

# What granian 2.8 returns from `send_bytes` once nobody reads any more; it is an awaitable that raises, but its type says it at once.
GONE = "PyErrAwaitable"


def send_reply(protocol: Any, reply: Reply, *, headers: list[tuple[str, str]]) -> None:
    """Sends a whole response; the first response of a protocol object wins, later ones are dropped by granian."""
    if reply.body:
        protocol.response_bytes(reply.status, headers, reply.body)
    else:
        protocol.response_empty(reply.status, headers)


class Stream(Protocol):
    """An open event stream."""

    def write(self, chunk: bytes) -> bool:
        """Queues one chunk without waiting, from any callback; False when the client is gone."""

    def close(self) -> None:
        """Ends the body."""


def open_stream(protocol: Any, *, status: int, headers: list[tuple[str, str]]) -> Stream:
    """Sends the head of a streamed response."""
    stream = protocol.response_stream(status, headers)
    return stream if isinstance(stream, ResponseStream) else GranianStream(stream)


class GranianStream:
    """A stream of granian's, which copies each chunk into a queue of its own."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, chunk: bytes) -> bool:
        """Queues one chunk; False when the client is gone."""
        return type(self._transport.send_bytes(chunk)).__name__ != GONE

    def close(self) -> None:
        """Ends the body: granian does so when its object dies."""
        self._transport = None
