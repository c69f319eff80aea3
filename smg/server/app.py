"""The RSGI application of a data worker: what is shared by all requests, and their count.

Granian calls it once a request, each in a task of its own. Handlers raise SmgError; here, and only here, errors become responses.
"""

import asyncio
import time
from typing import Any, Protocol

from smg.api.base import Services
from smg.api.routes import RouteTable
from smg.middleware import Cors, load_keys
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

    def __init__(self, services: Services, *, observer: Observer | None = None) -> None:
        self.services = services
        self.routes = RouteTable()
        self.keys = load_keys(services.config)
        self.cors = Cors(services.config.server.cors_allowed_origins)
        self.observer: Observer = observer or NoObserver()
        self.inflight = 0
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

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answers one request."""
        if scope.proto != "http":
            protocol.close(501)
            return
        started = time.monotonic()
        exchange = Exchange(self, scope, protocol, received_s=started)
        self.inflight += 1
        self._idle.clear()
        try:
            await exchange.run()
        finally:
            self.inflight -= 1
            if not self.inflight:
                self._idle.set()
            self.observer.observe(exchange.method, exchange.template, exchange.status, time.monotonic() - started)
