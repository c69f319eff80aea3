"""How a data worker is told that its first waiter may have a seat: an empty datagram to a socket named after its row.

Losing one is harmless, as waiters look around by themselves now and then. Made by `smg.middleware.gate`.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

__all__ = ["Bell"]


class Bell:
    """One process's bell, and the means to ring those of others."""

    def __init__(self, folder: Path, *, row: int) -> None:
        self._folder = folder
        self._path = self._place(row)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._rung: Callable[[], None] = lambda: None

    def open(self, rung: Callable[[], None]) -> None:
        """From now on `rung` is called in the running loop when somebody has rung, once for many that came together."""
        self._rung = rung
        Path(self._path).unlink(missing_ok=True)  # of a process that had this row before
        self._socket.bind(self._path)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    def ring(self, row: int) -> None:
        """Rings another process's bell. One that is not there or has been rung often enough needs none."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._place(row))

    def close(self) -> None:
        """Takes the bell away."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
        Path(self._path).unlink(missing_ok=True)

    def _place(self, row: int) -> str:
        return str(self._folder / f"bell-{row}")

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
        self._rung()
