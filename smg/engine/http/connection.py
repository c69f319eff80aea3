"""One connection to an HTTP engine: a request goes out, llhttp reads the answer, and the connection can be used again. Owned by `pool.py`.

What llhttp leaves to its caller: a bound for heads, answers without a length, which end with the connection, interim answers (1xx), and
bytes after an answer, by which the connection is lost for others.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

from smg.engine.http.call import Head, HttpCall
from smg.errors import EngineProtocol, EngineUnavailable

__all__ = ["HttpConnection"]

HEAD_BYTES = 65536
# Up to this size a body is joined to its head, which costs less than a second buffer.
JOINED_BYTES = 16384
WENT_AWAY = "the engine went away before its answer was complete"


class HttpConnection(asyncio.Protocol):
    """`freed` is called at the end of each call, `lost` when the connection is gone; `idle_since_s` is on the clock of `time.monotonic`."""

    def __init__(self, *, freed: Callable[["HttpConnection"], None], lost: Callable[["HttpConnection"], None]) -> None:
        self.idle_since_s = 0.0
        self.closed = False
        self._freed = freed
        self._lost = lost
        self._call: HttpCall | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[str, str]] = []
        self._head_bytes = 0
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._until_close = False
        self._complete = True
        self._spoilt = False

    @property
    def usable(self) -> bool:
        """True when the last answer is complete and the engine keeps the connection open."""
        return self._complete and not self._spoilt and not self.closed

    def send(self, head: bytes, body: bytes) -> HttpCall:
        """Sends a request; `head` is all that comes before its body."""
        call = self._call = HttpCall(self)
        self._complete = self._until_close = False
        self._head, self._head_bytes = None, 0
        if self.closed:
            call.stop(EngineUnavailable(WENT_AWAY))
        elif len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return call

    def cut(self) -> None:
        """Closes at once; whatever was sent is dropped."""
        self.closed = True
        self._transport.abort()

    # What a call asks for.

    def hold(self) -> None:
        """Stops reading."""
        if not self.closed:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Reads again."""
        if not self.closed:
            self._transport.resume_reading()

    def part(self) -> bool:
        """Sends the end of our side. Servers take that for the client's leaving, and close."""
        if self.closed or self._transport.get_write_buffer_size() or not self._transport.can_write_eof():
            return False
        self._spoilt = True
        self._transport.write_eof()
        return True

    def release(self) -> None:
        """Is free for others if the answer is complete and the request was read to its end; else it is cut."""
        self._call = None
        if not self.usable or self._transport.get_write_buffer_size():
            self.cut()
        self.idle_since_s = time.monotonic()
        self._freed(self)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Takes what came. All of a body that came in one wake-up goes on as one piece."""
        call = self._call
        if call is None:  # an engine that speaks unasked
            self.cut()
            return
        call.fresh = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break(call, "the engine changes to another protocol")
            return
        except httptools.HttpParserError as error:
            self._break(call, f"malformed HTTP: {error.__context__ or error}")
            return
        if self._head is None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._break(call, "the headers of the answer are too long")
            return
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            call.feed(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._complete:
            call.end()

    def eof_received(self) -> bool:
        """The engine closes; there is nothing that we still had to send."""
        self._spoilt = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the answer: well if it had no length, else not."""
        self.closed = True
        call = self._call
        if call is not None and self._until_close and error is None and self._head is not None:
            self._complete = True
            call.end()
        elif call is not None:
            call.stop(EngineUnavailable(WENT_AWAY, detail=str(error) if error else "closed"))
        self._lost(self)
        del self._parser  # which holds this object in turn

    # What llhttp calls.

    def on_message_begin(self) -> None:
        """An answer begins; one that nobody asked for spoils the connection."""
        self._spoilt = self._spoilt or self._complete
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one header. Trailers are not kept: they come too late for the client, and are no part of the head (RFC 9110, 6.5.1)."""
        if self._head is None:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Tells who waits, unless the answer is an interim one."""
        status = self._parser.get_status_code()
        if self._complete or status < 200:
            return
        first = dict(reversed(self._headers))
        length = first.get("content-length", "")
        coded = any(name == "transfer-encoding" and value.lower() != "identity" for name, value in self._headers)
        self._until_close = not length and not coded and status not in (204, 304)
        size = int(length) if length.isdecimal() else None
        self._head = Head(status=status, headers=self._headers, length=size, until_close=self._until_close)
        self._spoilt = self._spoilt or not self._parser.should_keep_alive()
        if self._call is not None:
            self._call.begin(self._head)

    def on_body(self, data: bytes) -> None:
        """Takes a piece of the body."""
        if not self._complete:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The answer is complete, unless it was an interim one."""
        self._complete = self._complete or self._head is not None

    def _break(self, call: HttpCall, detail: str) -> None:
        self._spoilt = True
        call.stop(EngineProtocol("the engine's answer is not valid HTTP", detail=detail))
