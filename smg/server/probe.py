"""The metrics listener of the control process: GET /metrics, and the probes, on a small HTTP server of their own."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping

__all__ = ["Page", "ProbeServer"]

HEAD_BYTES = 8192
HEAD_S = 5.0
MOST_CONNECTIONS = 64

Page = tuple[int, str, bytes]
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class ProbeServer:
    """Serves `pages`: path -> function that gives (status, content type, body). One request a connection."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, listener: socket.socket) -> None:
        """Serves on a listening socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=HEAD_BYTES)

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS:
                async with asyncio.timeout(HEAD_S):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        status, kind, body = self._page(words)
        lines = (
            f"HTTP/1.1 {status} {REASONS[status]}",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
            "connection: close",
        )
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if words[0] == "HEAD" else body))
        with contextlib.suppress(ConnectionError):
            await writer.drain()

    def _page(self, words: list[str]) -> Page:
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return 400, "text/plain", b"not an HTTP/1 request\n"
        if words[0] not in ("GET", "HEAD"):
            return 405, "text/plain", b"only GET\n"
        page = self._pages.get(words[1].partition("?")[0])
        return page() if page else (404, "text/plain", b"no such page\n")
