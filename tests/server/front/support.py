"""A front around a small application, in a uvloop loop of the test's own, and raw clients."""

import asyncio
import contextlib
import socket
import ssl
import time

import uvloop

from smg.config import Config
from smg.server.front import Front

BOUND_S = 20.0


class App:
    """Speaks RSGI; what a path does is in the method of its name. `seen` has what requests said, `left` those whose client left."""

    def __init__(self):
        self.seen = []
        self.left = []
        self.release = asyncio.Event()
        self.errors = []

    async def __rsgi__(self, scope, protocol):
        assert scope.proto == "http"
        name = scope.path.strip("/").split("/")[0] or "echo"
        await getattr(self, name)(scope, protocol)

    async def echo(self, scope, protocol):
        """Gives back method, path, query and body."""
        body = await protocol()
        self.seen.append(body)
        text = f"{scope.method} {scope.path} {scope.query_string} {scope.headers.get('x', '')} ".encode()
        protocol.response_bytes(200, [("content-type", "text/plain")], text + body)

    async def pieces(self, scope, protocol):
        """Reads the body piece by piece."""
        body = b"".join([piece async for piece in protocol])
        self.seen.append(body)
        protocol.response_str(200, [], str(len(body)))

    async def deaf(self, scope, protocol):
        """Answers without reading the body."""
        protocol.response_str(413, [], "too long")

    async def empty(self, scope, protocol):
        protocol.response_empty(204, [])

    async def nothing(self, scope, protocol):
        """Gives no response."""

    async def boom(self, scope, protocol):
        raise ValueError("boom")

    async def twice(self, scope, protocol):
        protocol.response_str(200, [], "first")
        protocol.response_str(500, [], "second")
        stream = protocol.response_stream(200, [])
        assert type(stream.send_bytes(b"third")).__name__ == "PyErrAwaitable"

    async def split(self, scope, protocol):
        """Tries to smuggle a header of its own."""
        try:
            protocol.response_str(200, [("a", "b\r\nc: d")], "x")
        except ValueError as error:
            self.errors.append(error)
        protocol.response_str(200, [], "clean")

    async def stream(self, scope, protocol):
        stream = protocol.response_stream(200, [("content-type", "text/event-stream")])
        for piece in (b"one", b"", b"two"):
            await stream.send_bytes(piece)
        await stream.send_str("é")

    async def halves(self, scope, protocol):
        """Streams half of its body, and the rest when told to."""
        stream = protocol.response_stream(200, [])
        await stream.send_bytes(b"one")
        await self.release.wait()
        await stream.send_bytes(b"two")

    async def broken(self, scope, protocol):
        stream = protocol.response_stream(200, [])
        await stream.send_bytes(b"one")
        raise ValueError("boom")

    async def hang(self, scope, protocol):
        """Answers when told to, or when the client leaves."""
        gone = asyncio.ensure_future(protocol.client_disconnect())
        release = asyncio.ensure_future(self.release.wait())
        done, _ = await asyncio.wait([gone, release], return_when=asyncio.FIRST_COMPLETED)
        release.cancel()
        if gone in done:
            self.left.append(scope.path)
        protocol.response_str(200, [], "done")

    async def flow(self, scope, protocol):
        """Streams until the client is gone: 64 KiB a time, as fast as the loop turns."""
        stream = protocol.response_stream(200, [])
        sent = 0
        while sent < 200 << 20:
            if type(stream.send_bytes(bytes(65536))).__name__ == "PyErrAwaitable":
                self.left.append(sent)
                return
            sent += 65536
            await asyncio.sleep(0)

    async def large(self, scope, protocol):
        protocol.response_bytes(200, [], bytes(4 << 20))

    async def scope(self, scope, protocol):
        headers = scope.headers
        self.seen.append((scope.authority, scope.client, scope.server, scope.scheme, scope.http_version, headers.items()))
        protocol.response_str(200, [], headers.get("x", "none"))


class Place:
    """A served application."""

    def __init__(self, app, front, address):
        self.app = app
        self.front = front
        self.address = address

    @contextlib.asynccontextmanager
    async def client(self, **options):
        """A connection, closed at the end."""
        opening = asyncio.open_connection if isinstance(self.address, int) else asyncio.open_unix_connection
        where = ("127.0.0.1", self.address) if isinstance(self.address, int) else (self.address,)
        reader, writer = await opening(*where, **options)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, *pieces, half_close=False):
        """Sends bytes and gives all that comes until the server closes."""
        async with self.client() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            if half_close:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), BOUND_S)


@contextlib.asynccontextmanager
async def place(limits=None, tls=None, path=None):
    """Serves the application on a free port, or on a path."""
    app = App()
    front = Front(app, config=Config(), loop=asyncio.get_running_loop(), limits=limits)
    sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    sock.bind(str(path) if path else ("127.0.0.1", 0))
    await front.serve(sock, tls=tls)
    try:
        yield Place(app, front, str(path) if path else sock.getsockname()[1])
    finally:
        front.close()
        await until(lambda: not front._connections and not front._tasks)


def run(coroutine):
    """Runs on uvloop, as data workers do; an exception that only the loop saw fails the test."""
    unseen = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        return await coroutine

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(main())
    assert not unseen
    return result


async def until(condition, within_s=BOUND_S):
    """Polls until the condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.002)


def request(path="/", body=b"", *headers, method=None, close=True):
    """A well-formed request."""
    lines = [f"{method or ('POST' if body else 'GET')} {path} HTTP/1.1", "Host: h", *headers]
    lines += [f"Content-Length: {len(body)}"] if body else []
    lines += ["Connection: close"] if close else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def responses(raw):
    """Splits responses of known or chunked length: (status, headers, body) each."""
    found = []
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        headers.pop("date", None)
        if headers.get("transfer-encoding") == "chunked":
            body, raw = unchunked(raw)
        else:
            size = int(headers.get("content-length", 0))
            body, raw = raw[:size], raw[size:]
        found.append((int(status.split(" ")[1]), headers, body))
    return found


def unchunked(raw):
    """Gives a chunked body and what follows it; fails when it is not complete."""
    parts = []
    while True:
        size, found, rest = raw.partition(b"\r\n")
        assert found, "the chunked body is not complete"
        count = int(size, 16)
        assert rest[count : count + 2] == b"\r\n"
        parts.append(rest[:count])
        raw = rest[count + 2 :]
        if not count:
            return b"".join(parts), raw


def contexts(certificate):
    """TLS contexts of a server and of a client that trusts it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    client = ssl.create_default_context(cafile=certificate[0])
    client.check_hostname = False
    return server, client
