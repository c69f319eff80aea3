"""An HTTP engine that says, byte by byte, what a test wrote down; and what it was asked."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["STREAM_HEAD", "Asked", "Script", "Upstream", "answer", "chunked", "upstream"]


class Asked:
    """One request as it came."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body
        lines = head.decode("latin-1").split("\r\n")
        self.line = lines[0]
        self.path = lines[0].split(" ")[1]
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    """`asked`: every request; `connections`: how many were made; `left`: set once a client closed in the middle of an answer."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections = 0
        self.left = asyncio.Event()
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self.serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            early = b""  # of the next request, read while looking whether the client has left
            while not writer.is_closing():
                head = early + await reader.readuntil(b"\r\n\r\n")
                asked = Asked(head, b"")
                asked.body = await reader.readexactly(int(asked.headers.get("content-length", "0")))
                self.asked.append(asked)
                early = await self.answer(asked, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answering = asyncio.ensure_future(self.script(asked, writer))
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([answering, watching], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() or isinstance(answering.exception(), OSError):
                self.left.set()
        finally:
            answering.cancel()
            watching.cancel()
            _, early = await asyncio.gather(answering, watching, return_exceptions=True)
        return early if isinstance(early, bytes) else b""


@contextlib.asynccontextmanager
async def upstream(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """Serves on a free port of the loopback."""
    made = Upstream(script)
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(made.tasks):
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)


def answer(body: bytes = b"{}", *, status: str = "200 OK", media: str = "application/json", more: str = "") -> bytes:
    """A whole answer with a length."""
    return f"HTTP/1.1 {status}\r\ncontent-type: {media}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def chunked(*pieces: bytes) -> bytes:
    """Pieces as chunks, without the end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
