"""Takes connections from one listening socket that several processes share, so that each gets its part of them.

In: the socket; out: a protocol from `make` on each connection. The event loop's own server empties the kernel's queue whenever it wakes, so
that whoever wakes first has all of a burst, and its streams for as long as they last. This one takes a connection and goes on with the
loop's other work: the less a process has to do, the sooner it is back for the next; one that is fuller than others waits for them a
moment before each. Made by `Front`.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

__all__ = ["Acceptor"]

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
TLS_SHUTDOWN_S = 1.0
# What accept(2) says when the process or the machine has no room for a connection; the client waits in the kernel's queue meanwhile.
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
FULL_PAUSE_S = 0.5
# What a fuller process leaves to the others to be quicker.
YIELD_S = 0.002


class Acceptor:
    """Owns the socket. Used from one event loop."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        make: Callable[[], asyncio.Protocol],
        loop: asyncio.AbstractEventLoop,
        backlog: int,
        tls: ssl.SSLContext | None = None,
        is_fuller: Callable[[], bool] | None = None,
    ) -> None:
        self._sock = sock
        self._make = make
        self._loop = loop
        self._tls = tls
        self._is_fuller = is_fuller
        self._yielded = False
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(backlog)
        loop.add_reader(sock, self._take)

    def close(self) -> None:
        """Takes no more; connections live on."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def abort(self) -> None:
        """Gives up connections whose handshake is not over."""
        for task in self._opening:
            task.cancel()

    def _take(self) -> None:
        if self._is_fuller is not None and not self._yielded and self._is_fuller():
            self._yielded = True
            self._wait(YIELD_S)
            return
        self._yielded = False
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process was quicker, or the client left
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.error("no connection can be taken: %s", error.strerror)
            self._wait(FULL_PAUSE_S)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(seconds, self._loop.add_reader, self._sock, self._take)

    async def _open(self, connection: socket.socket) -> None:
        limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": TLS_SHUTDOWN_S} if self._tls else {}
        try:
            await self._loop.connect_accepted_socket(self._make, connection, ssl=self._tls, **limits)
        except (OSError, asyncio.CancelledError):  # a handshake that failed, or the end: the connection is closed
            connection.close()
