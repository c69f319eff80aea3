"""The body of a streamed response. Made by `responder.py`; written to from any callback of the loop."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Protocol

from smg._ext import NO_EXT, NativeStream

__all__ = ["GONE", "SENT", "Link", "PlainStream", "PyErrAwaitable", "ResponseStream", "Transport"]


class Link(Protocol):
    """What a stream needs of its connection."""

    gone: bool
    closed: bool
    write_paused: bool

    def give_up_if_full(self) -> bool:
        """Aborts the connection if its client is too far behind; tells whether it did."""


class Transport(Protocol):
    """What a stream needs of uvloop's transport."""

    def write(self, data: bytes, /) -> None:
        """Queues bytes."""

    def get_write_buffer_size(self) -> int:
        """Gives the number of bytes that wait."""


class PyEmptyAwaitable:
    """Is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class PyErrAwaitable:
    """Fails at once: nobody reads any more. Both have the names of granian's, which is how its users tell them apart without waiting."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()
        raise RuntimeError("the client is gone")


SENT = PyEmptyAwaitable()
GONE = PyErrAwaitable()


class PlainStream:
    """The twin of `smg_ext.response.ResponseStream`: writes only through the transport. `fd` is of no use to it."""

    def __init__(
        self,
        link: Link | None,
        transport: Transport | None,
        *,
        on_end: Callable[[], None],
        fd: int = -1,
        chunked: bool = True,
        silent: bool = False,
        head: bytes = b"",
    ) -> None:
        self.count = 0
        self._head = head
        self._link = link
        self._transport = transport
        self._on_end = on_end
        self._chunked = chunked
        self._silent = silent

    def write(self, data: bytes) -> bool:
        """Sends one chunk without waiting; False when the client is gone, or was given up because it does not read."""
        link = self._link
        if link is None or self._transport is None or link.gone or (link.write_paused and link.give_up_if_full()):
            return False
        if data and not self._silent:
            self.count += 1
            self._transport.write(self._taken_head() + self._framed(data))
        return True

    def close(self, last: bytes = b"") -> None:
        """Ends the body, with one chunk more. May be called again."""
        link, transport = self._link, self._transport
        if link is None or transport is None:
            return
        if not link.closed:
            body = (self._framed(last) if last else b"") + (b"0\r\n\r\n" if self._chunked else b"")
            transport.write(self._taken_head() + (b"" if self._silent else body))
        self._link = self._transport = None
        self._on_end()

    def _taken_head(self) -> bytes:
        head, self._head = self._head, b""
        return head

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data


if TYPE_CHECKING:
    Stream = NativeStream
else:
    Stream = PlainStream if NO_EXT else NativeStream


class ResponseStream(Stream):
    """An open response. Ends at `close`, or as granian's do when nobody holds it any more. `count`: chunks written so far."""

    def send_bytes(self, data: bytes) -> PyEmptyAwaitable | PyErrAwaitable:
        """Sends one chunk; what it gives needs no await."""
        return SENT if self.write(data) else GONE

    def send_str(self, data: str) -> PyEmptyAwaitable | PyErrAwaitable:
        """Sends text as one chunk."""
        return self.send_bytes(data.encode())

    def __del__(self) -> None:
        self.close()
