"""A request's body on its way from the connection to the application: what has arrived and was not read yet."""

import asyncio
from collections.abc import Callable

from smg.errors import SmgError

__all__ = ["Body"]


class Body:
    """Filled by `feed`, ended by `end` or `fail`; read by one reader at a time. `on_read` is called when bytes were taken out."""

    __slots__ = ("_data", "_error", "_on_read", "_waiter", "complete")

    def __init__(self, *, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        self._data: bytes | bytearray = b""
        self._error: SmgError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.complete = False

    def __len__(self) -> int:
        """Bytes that wait."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Adds a piece."""
        if not self._data:
            self._data = data
        elif isinstance(self._data, bytearray):
            self._data += data
        else:
            self._data = bytearray(self._data)
            self._data += data
        self._wake()

    def end(self) -> None:
        """The body is complete."""
        self.complete = True
        self._wake()

    def fail(self, error: SmgError) -> None:
        """The rest will never come: the reader is told, after what is there already when it reads in pieces."""
        if not self.complete and self._error is None:
            self._error = error
            self._wake()

    async def read_all(self) -> bytes:
        """Gives all of what was not read yet, once it is complete. Raises what `fail` was given."""
        while not self.complete:
            await self._more(everything=True)
        return self.take()

    async def read_some(self) -> bytes:
        """Gives what is there, and waits if that is nothing; empty at the end. Raises what `fail` was given."""
        while not self._data and not self.complete:
            await self._more(everything=False)
        return self.take()

    async def _more(self, *, everything: bool) -> None:
        if self._error is not None:
            raise self._error
        if everything and self._data:
            self._on_read()  # a reader of the whole has no use for a client that is held up
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """Gives what waits, without waiting."""
        if not self._data:
            return b""
        data = bytes(self._data)
        self._data = b""
        self._on_read()
        return data

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
