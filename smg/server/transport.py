"""The one place that touches granian's response objects: sends a whole reply, opens a stream, writes chunks without waiting."""

from typing import Any

from smg.api.base import Reply

__all__ = ["Stream", "send_reply"]

# What granian 2.8 returns from `send_bytes` once nobody reads any more; it is an awaitable that raises, but its type says it at once.
GONE = "PyErrAwaitable"


def send_reply(protocol: Any, reply: Reply, *, headers: list[tuple[str, str]]) -> None:
    """Sends a whole response; the first response of a protocol object wins, later ones are dropped by granian."""
    if reply.body:
        protocol.response_bytes(reply.status, headers, reply.body)
    else:
        protocol.response_empty(reply.status, headers)


class Stream:
    """An open event stream. Granian copies each chunk into its own queue, so a write never waits and may come from a callback."""

    def __init__(self, protocol: Any, *, status: int, headers: list[tuple[str, str]]) -> None:
        self._transport = protocol.response_stream(status, headers)

    def write(self, chunk: bytes) -> bool:
        """Queues one chunk; False when the client is gone."""
        return type(self._transport.send_bytes(chunk)).__name__ != GONE

    def close(self) -> None:
        """Ends the body: granian does so when its object dies."""
        self._transport = None
