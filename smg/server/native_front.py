"""The native front, run inside a data worker; the other choice is `granian_front.py`, which has the same shape."""

import asyncio
import socket
import ssl

from smg.config import Config
from smg.server.boot import Application
from smg.server.crowd import Crowd
from smg.server.front import Front

__all__ = ["NativeFront"]


class NativeFront:
    """Serves an application in the running loop. `number` is the worker's; only granian's log wants it."""

    def __init__(self, application: Application, *, config: Config, number: int, crowd: Crowd) -> None:
        self._front = Front(application, config=config, loop=asyncio.get_running_loop(), crowd=crowd)
        self._config = config

    async def start(self, listener: socket.socket) -> None:
        """Takes connections from a listening socket, which it closes."""
        await self._front.serve(listener, tls=self._tls())

    def say_close(self) -> None:
        """From now on each response asks for the end of its connection, so that clients go elsewhere without losing a request."""
        self._front.say_close()

    def stop_accepting(self) -> None:
        """Takes no further connections; those that are open are served."""
        self._front.stop_accepting()

    async def stop(self, *, within_s: float) -> bool:
        """Closes idle connections at once, others after what is under way; True when all were closed in time."""
        drained = await self._front.drain(within_s)
        self._front.close()
        return drained

    def _tls(self) -> ssl.SSLContext | None:
        tls = self._config.tls
        if not tls.cert_path:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(tls.cert_path, tls.key_path)
        return context
