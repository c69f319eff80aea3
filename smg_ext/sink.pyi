from collections.abc import Callable

__all__ = ["Inbox", "Sink"]

class Sink: ...

class Inbox(Sink):
    def __init__(self, on_messages: Callable[[list[bytes]], object], on_end: Callable[[int, str], object]) -> None: ...
