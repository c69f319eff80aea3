from collections.abc import Callable
from typing import Any

__all__ = ["ResponseStream"]

class ResponseStream:
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        link: Any,
        transport: Any,
        *,
        on_end: Callable[[], None],
        fd: int = -1,
        chunked: bool = True,
        silent: bool = False,
        head: bytes = b"",
    ) -> None: ...
    def write(self, data: bytes) -> bool: ...
    def close(self, last: bytes = b"") -> None: ...
