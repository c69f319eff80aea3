import asyncio
import socket
import ssl
from collections.abc import Callable

from smg_ext.headers import Headers
from smg_ext.sink import Sink

__all__ = ["Call", "Connection"]

class Call:
    def cancel(self) -> None: ...
    def linger(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...

class Connection:
    closed: bool
    @property
    def leaving(self) -> bool: ...
    @property
    def active(self) -> int: ...
    @property
    def room(self) -> bool: ...
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: socket.socket,
        on_close: Callable[[], object],
        tls: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO] | None = None,
    ) -> None: ...
    def start(self, on_ready: Callable[[], object]) -> None: ...
    def call(
        self,
        headers: Headers,
        timeout: bytes | None,
        request: bytes,
        sink: Sink,
        *,
        message_limit: int = 536870912,
    ) -> Call: ...
    def close(self) -> None: ...
