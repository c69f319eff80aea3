"""The RSGI application of a data worker: what is shared by all requests, and their count.

Granian calls it once a request, each in a task of its own. Handlers raise SmgError; here, and only here, errors become responses.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from smg.api.base import Services
from smg.api.routes import RouteTable
from smg.middleware import Cors, Gate, load_keys
from smg.pipeline.deadlines import Deadlines
from smg.server.exchange import Exchange

__all__ = ["App", "Observer"]


class Observer(Protocol):
    """Who counts requests; `path` is the route's template, so that the number of series is bounded."""

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Takes one finished request. A stream that failed after its head was sent has the status of its error."""


class NoObserver:
    """Counts nothing."""

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Drops it."""


class App:
    """Serves requests until its process ends. `inflight` counts those being answered."""

    def __init__(self, services: Services, *, observer: Observer | None = None, gate: Gate | None = None) -> None:
        """`gate`: what limits requests, if anything does."""
        self.services = services
        self.routes = RouteTable()
        self.keys = load_keys(services.config)
        self.cors = Cors(services.config.server.cors_allowed_origins)
        self.gate = gate
        self.observer: Observer = observer or NoObserver()
        self.inflight = 0
        self.looks = Deadlines()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        """True from the moment the process was told to stop: readiness says 503, requests are still answered."""
        return self.services.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self.services.draining = value

    async def drained(self) -> None:
        """Returns when no request is being answered."""
        await self._idle.wait()

    def __rsgi__(self, scope: Any, protocol: Any) -> Awaitable[None]:
        """Answers one request. No coroutine of its own: each one on the way is gone through again at every token's wake-up."""
        return Exchange(self, scope, protocol).run() if scope.proto == "http" else _refuse(protocol)

    def enter(self) -> None:
        """Counts a request in."""
        self.inflight += 1
        if self.inflight == 1:
            self._idle.clear()

    def leave(self, method: str, template: str, status: int, seconds: float) -> None:
        """Counts it out."""
        self.inflight -= 1
        if not self.inflight:
            self._idle.set()
        self.observer.observe(method, template, status, seconds)


async def _refuse(protocol: Any) -> None:
    """Closes what is no HTTP: WebSockets are not served yet."""
    protocol.close(501)
