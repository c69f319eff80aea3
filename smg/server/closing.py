"""Responses of a worker that is on its way out: each says `connection: close`, so that clients open their next connection elsewhere."""

from collections.abc import AsyncIterator
from typing import Any

__all__ = ["ClosingProtocol"]

CLOSE = ("connection", "close")


class ClosingProtocol:
    """Stands before Granian's HTTP/1 protocol object and passes everything on."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self) -> Any:
        return self._inner()

    def __aiter__(self) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = self._inner.__aiter__()
        return chunks

    def client_disconnect(self) -> Any:
        """Waits for the client to leave."""
        return self._inner.client_disconnect()

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Answers without a body."""
        self._inner.response_empty(status, [*headers, CLOSE])

    def response_str(self, status: int, headers: list[tuple[str, str]], body: str) -> None:
        """Answers with text."""
        self._inner.response_str(status, [*headers, CLOSE], body)

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answers with bytes."""
        self._inner.response_bytes(status, [*headers, CLOSE], body)

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Any:
        """Opens a stream."""
        return self._inner.response_stream(status, [*headers, CLOSE])
