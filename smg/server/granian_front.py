"""Granian's RSGI worker, run inside a data worker of ours: the only file that leans on its internals, which are those of version 2.8.9.

Its own supervisor is not used, because that can neither share one listening socket, nor stop accepting without closing connections, nor
bring back a worker that was killed in time.
"""

import asyncio
import os
import socket
from typing import Any

from granian import _futures, _granian
from granian.http import HTTP1Settings, HTTP2Settings

from smg.config import Config
from smg.server.boot import Application
from smg.server.closing import ClosingProtocol
from smg.server.crowd import Crowd

__all__ = ["GranianFront"]

# Granian's stubs are of an earlier version.
FUTURES: Any = _futures
NATIVE: Any = _granian

CONNECTIONS = 1 << 16
HTTP2_STREAMS = 1000


class GranianFront:
    """Serves an application in the running loop, with Granian's own threads for HTTP. `number` is the worker's in Granian's log."""

    def __init__(
        self, application: Application, *, config: Config, number: int, crowd: Crowd
    ) -> None:  # its threads take connections by themselves
        self._application = application
        self._config = config
        self._number = number
        self._closing = False
        self._stopped = asyncio.Event()
        self._quit: Any = None
        self._listener = -1

    async def start(self, listener: socket.socket) -> None:
        """Takes connections from a listening socket, which it closes."""
        loop = asyncio.get_running_loop()
        self._listener = os.dup(listener.fileno())
        listener.close()
        self._quit = NATIVE.WorkerSignal()
        self._quit.add_cb(lambda: loop.call_soon_threadsafe(self._stopped.set))
        worker = NATIVE.RSGIWorker(
            self._number,
            (None, NATIVE.SocketHolder(self._listener, False, self._config.server.backlog)),
            None,  # pipe for metrics
            1,  # threads of the HTTP runtime
            64,  # its blocking threads
            1,  # Python threads
            30,  # seconds that these may be idle
            CONNECTIONS,  # backpressure
            "auto",
            HTTP1Settings(),
            HTTP2Settings(max_concurrent_streams=HTTP2_STREAMS),
            True,  # websockets
            None,  # static files
            *self._tls(),
            (None, None),  # metrics
        )
        callback = FUTURES._future_watcher_wrapper(self._answer)
        worker.serve_str(FUTURES._new_cbscheduler(loop, callback, impl_asyncio=True), loop, self._quit)

    def say_close(self) -> None:
        """From now on each HTTP/1 response asks for the end of its connection, so that clients go elsewhere without losing a request."""
        self._closing = True

    def stop_accepting(self) -> None:
        """Takes no further connections; those that are open are served.

        Granian cannot do that, so a socket that nobody connects to is put in the listener's place. The kernel goes on to wake this process
        for the listener while others have it open, and it finds nothing.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.bind("")  # an abstract address that the kernel chooses
            silent.listen(1)
            silent.setblocking(False)
            os.dup2(silent.fileno(), self._listener, inheritable=False)

    async def stop(self, *, within_s: float) -> bool:
        """Closes idle connections at once, others after what is under way; True when all were closed in time."""
        self._quit.set()
        try:
            async with asyncio.timeout(within_s):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True

    async def _answer(self, scope: Any, protocol: Any) -> None:
        if self._closing and scope.proto == "http" and scope.http_version.startswith("1"):
            protocol = ClosingProtocol(protocol)
        await self._application.__rsgi__(scope, protocol)

    def _tls(self) -> tuple[Any, ...]:
        """On, certificate, key, its password, lowest version, authorities, revocations, whether clients must show a certificate."""
        tls = self._config.tls
        if not tls.cert_path:
            return (False, None, None, None, "tls1.2", None, [], False)
        return (True, tls.cert_path, tls.key_path, None, "tls1.2", None, [], False)
