"""The front as a whole: listens, makes connections, runs the application on each request, keeps time, and ends in order.

Used by a data worker in place of granian: `serve` once for each listening socket, then `drain` and `close`. A socket may be shared with
other processes; each closes its own.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol

from smg.api.errors import internal_error
from smg.config import Config
from smg.server.crowd import Crowd
from smg.server.front.acceptor import Acceptor
from smg.server.front.connection import Connection
from smg.server.front.limits import Limits
from smg.server.front.responder import Responder
from smg.server.front.scope import Scope
from smg.server.front.wire import date_line

__all__ = ["Application", "Front"]

log = logging.getLogger(__name__)


class Application(Protocol):
    """What is served: `smg.server.app.App`, or anything else that speaks RSGI."""

    def __rsgi__(self, scope: Any, protocol: Any) -> Awaitable[None]:
        """Answers one request."""


class Front:
    """Everything it owns lives in `loop`.

    `draining`: each response that begins is the last of its connection, and says so. `ending`, set by `drain`: connections that were told
    nothing are closed as well.
    """

    def __init__(
        self, app: Application, *, config: Config, loop: asyncio.AbstractEventLoop, limits: Limits | None = None, crowd: Crowd | None = None
    ) -> None:
        self.limits = limits or Limits(client_buffer_bytes=config.server.max_client_buffer_bytes)
        self.loop = loop
        self.draining = self.ending = False
        self.date = date_line()
        self._app = app
        self._crowd = crowd
        self._backlog = config.server.backlog
        self._acceptors: list[Acceptor] = []
        self._opening: list[Acceptor] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    async def serve(self, sock: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Starts to accept on a bound TCP or UNIX socket, which it takes over. Returns at once; raises OSError."""
        is_fuller = self._crowd.is_fuller if self._crowd else None
        make = partial(Connection, self)
        self._acceptors.append(Acceptor(sock, make=make, loop=self.loop, backlog=self._backlog, tls=tls, is_fuller=is_fuller))
        if self._timer is None:
            self._tick()

    def say_close(self) -> None:
        """From now on each response is the last of its connection, so that clients go elsewhere without losing a request.

        A response whose head has left promised more: its client's next request is served, as the last.
        """
        self.draining = True

    def stop_accepting(self) -> None:
        """Closes the listening sockets; connections live on."""
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()
        self._opening += acceptors

    async def drain(self, timeout_s: float) -> bool:
        """Ends in order: idle connections close now, others after the request under way. Tells whether all did so in time."""
        self.stop_accepting()
        self.draining = self.ending = True
        for connection in list(self._connections):
            connection.drain()
        if not self._connections and not self._tasks:
            return True
        self._empty = self.loop.create_future()
        done, _ = await asyncio.wait([self._empty], timeout=timeout_s)
        return bool(done)

    def close(self) -> None:
        """Cuts what is left: listeners, connections, and the application's tasks."""
        self.stop_accepting()
        for acceptor in self._opening:
            acceptor.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()

    # What connections call.

    def opened(self, connection: Connection) -> None:
        """Keeps a connection."""
        self._connections.add(connection)
        self._count()

    def lost(self, connection: Connection) -> None:
        """Forgets it."""
        self._connections.discard(connection)
        self._count()
        self._tell_if_empty()

    def answer(self, scope: Scope, responder: Responder) -> None:
        """Runs the application on a request, in a task of its own."""
        responder.task = self.loop.create_task(self._answer(scope, responder))
        self._tasks.add(responder.task)

    async def _answer(self, scope: Scope, responder: Responder) -> None:
        try:
            await self._app.__rsgi__(scope, responder)
        except Exception:
            log.exception("the application failed")
            responder.break_off()
        except asyncio.CancelledError:
            responder.break_off()
            raise
        finally:
            if not responder.begun:
                responder.respond_error(internal_error(), status=500)
            self._forget(responder)

    def _forget(self, responder: Responder) -> None:
        if responder.task is not None:
            self._tasks.discard(responder.task)
            responder.task = None
        if self._empty is not None:
            self._tell_if_empty()

    def _count(self) -> None:
        if self._crowd is not None:
            self._crowd.count(len(self._connections))

    def _tell_if_empty(self) -> None:
        if self._empty is not None and not self._empty.done() and not self._connections and not self._tasks:
            self._empty.set_result(None)

    def _tick(self) -> None:
        self._timer = self.loop.call_later(self.limits.tick_s, self._tick)
        self.date = date_line()
        now = self.loop.time()
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.expire()
