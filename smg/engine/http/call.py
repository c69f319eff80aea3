"""One request under way at an HTTP engine: its head when that is there, then its body, whole or poured out piece by piece.

Filled by `connection.py` from the event loop's callbacks; read by one task. What comes before somebody reads is kept up to a bound, then
the engine is held up.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from smg.errors import EngineUnavailable

__all__ = ["Head", "HttpCall", "HttpRequest", "Line"]

# Of a body that nobody reads yet; then the engine is held up.
UNREAD_BYTES = 1 << 18


class HttpRequest(Struct, frozen=True, kw_only=True):
    """`target` is path and query, without the engine's prefix; `headers` are whole lines with their ends, without Host and framing."""

    method: str = "POST"
    target: str
    headers: str = ""
    body: bytes = b""


class Head(Struct, frozen=True, kw_only=True):
    """Of an answer. Names are in lower case; `length` in bytes, None where the engine does not say. `until_close`: nothing but the end of
    the connection tells where the body ends, whether the engine wants that or dies.
    """

    status: int
    headers: list[tuple[str, str]]
    length: int | None = None
    until_close: bool = False

    def get(self, name: str) -> str:
        """Gives the first value of a header, empty when there is none."""
        return next((value for known, value in self.headers if known == name), "")


class Line(Protocol):
    """What a call needs of its connection."""

    def hold(self) -> None:
        """Stops reading."""

    def go_on(self) -> None:
        """Reads again."""

    def part(self) -> bool:
        """Closes our side; False when that cannot be done."""

    def release(self) -> None:
        """Gives the connection back, or cuts it when the answer is not complete."""


class HttpCall:
    """`fresh`: nothing of an answer has come, not even a part of its head. Methods raise the EngineError family only."""

    def __init__(self, line: Line) -> None:
        self.fresh = True
        self._line: Line | None = line
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._take: Callable[[bytes], None] | None = None
        self._complete = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._held = False

    # What the reader calls.

    async def head(self) -> Head:
        """Waits for the head of the answer."""
        while self._head is None:
            await self._more()
        return self._head

    async def read(self, limit: int) -> bytes | None:
        """Gives the body once it is complete; None as soon as it has more than `limit` bytes, which can then be poured."""
        while not self._complete and self._unread <= limit:
            self.go_on()
            await self._more()
        return self._taken() if self._complete else None

    async def pour(self, take: Callable[[bytes], None]) -> None:
        """Calls `take` with each piece at the moment it comes, from a callback of the loop; returns when the body is complete.

        What `take` raises ends it, and comes out here.
        """
        self.go_on()
        self._take = take
        try:
            if self._unread:
                take(self._taken())
            while not self._complete:
                await self._more()
            if self._error is not None:
                raise self._error
        finally:
            self._take = None

    def hold(self) -> None:
        """Lets the engine wait: who reads from us is slow."""
        if self._line is not None and not self._held and not self._complete:
            self._held = True
            self._line.hold()

    def go_on(self) -> None:
        """Takes more from the engine."""
        if self._line is not None and self._held:
            self._held = False
            self._line.go_on()

    def part(self) -> bool:
        """Tells the engine that its client leaves, but takes what it has said by then; False when only `close` can tell it."""
        self.fresh = False  # the end that follows is no reason to ask again
        return self._line is not None and self._line.part()

    def close(self) -> None:
        """Ends it: an engine that is still at work sees its client leave. May be called again."""
        line, self._line = self._line, None
        if line is not None:
            line.release()

    # What the connection calls, and who reads no more.

    def begin(self, head: Head) -> None:
        """The head is complete."""
        self._head = head
        self._wake()

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        if self._take is None:
            self._pieces.append(data)
            self._unread += len(data)
            if self._unread > UNREAD_BYTES:
                self.hold()
            self._wake()
            return
        try:
            self._take(data)
        except Exception as error:  # it is for who waits in `pour`
            self._take = None
            self.stop(error)

    def end(self) -> None:
        """The answer is complete. The connection is free now, whatever the reader does."""
        self.go_on()
        self._complete = True
        line, self._line = self._line, None
        if line is not None:
            line.release()
        self._wake()

    def stop(self, error: Exception) -> None:
        """Ends whoever waits with an error; the rest of the answer is of no use any more."""
        if not self._complete and self._error is None:
            self._error = error
            self._wake()

    def _taken(self) -> bytes:
        pieces, self._pieces, self._unread = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        if self._line is None:
            raise EngineUnavailable("the connection to the engine is closed")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
