from collections.abc import Callable
from typing import Protocol

__all__ = ["ResponseStream"]

class Link(Protocol):
    gone: bool
    closed: bool
    write_paused: bool

    def give_up_if_full(self) -> bool: ...

class Transport(Protocol):
    def write(self, data: bytes, /) -> None: ...
    def get_write_buffer_size(self) -> int: ...

class ResponseStream:
    @property
    def count(self) -> int: ...
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
    ) -> None: ...
    def write(self, data: bytes, /) -> bool: ...
    def close(self, last: bytes = b"") -> None: ...
