"""What a data worker serves: the RSGI application with its services, kept up to date with the registry. Made once a process."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any

import msgspec

from smg.middleware import Gate
from smg.obs.metrics import HttpObserver, Meter
from smg.obs.shm import CONTROL_ROW
from smg.server.admin import call
from smg.server.app import App
from smg.server.boot import Boot, Phase
from smg.server.folders import CONTROL_SOCKET
from smg.server.services import build, close
from smg.worker import Breaker, EngineRecord, WorkerView

__all__ = ["DataApplication"]

log = logging.getLogger(__name__)

FIRST_REGISTRY_S = 3.0
LOOK_AGAIN_S = 0.25
STALE_INTERVALS = 3  # after which an engine's word on its load is old


class DataApplication:
    """App and Services of one process, and the task that follows the registry."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._services = app.services
        self._follower: asyncio.Task[None] | None = None

    @classmethod
    async def make(cls, boot: Boot) -> "DataApplication":
        """Waits until the control process has asked each engine once, so that models are loaded before the first request."""
        await registry_ready(boot)
        meter = Meter(boot.shm, row=boot.row)
        breaker = Breaker(boot.shm, config=boot.config.resilience)
        stale_ms = int(STALE_INTERVALS * boot.config.routing.load_monitor_interval_s * 1000)
        view = WorkerView(boot.shm, row=boot.row, folder=boot.runtime_dir, wake_fd=boot.wake_fd, breaker=breaker, stale_ms=stale_ms)
        control = partial(call, boot.runtime_dir / CONTROL_SOCKET)
        services = await build(boot.config, view, meter=meter, control=control, state=boot.state_dir)
        gate = Gate.make(boot.config, shm=boot.shm, row=boot.row, folder=boot.runtime_dir, meter=meter, engines=lambda: engines_of(view))
        made = cls(App(services, observer=HttpObserver(meter), gate=gate))
        view.on_change(made._engines_changed)
        made._follower = asyncio.create_task(made._follow(view))
        return made

    @property
    def draining(self) -> bool:
        """True from the moment the process was told to stop."""
        return self._app.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._app.draining = value

    def __rsgi__(self, scope: Any, protocol: Any) -> Awaitable[None]:
        """Answers one request."""
        return self._app.__rsgi__(scope, protocol)

    async def drained(self) -> None:
        """Returns when no request is being answered."""
        await self._app.drained()

    async def close(self) -> None:
        """Closes services and connections."""
        if self._follower:
            self._follower.cancel()
        if self._app.gate is not None:
            await self._app.gate.close()
        await close(self._services)

    def _engines_changed(self, records: list[EngineRecord]) -> None:
        self._services.pool.retain(records, held=self._services.view.held)

    async def _follow(self, view: WorkerView) -> None:
        """Loads models as they come, also when no request asks for them; sees to requests that wait for an engine in vain."""
        generation = -1
        while True:
            try:
                view.refresh()
            except (OSError, msgspec.DecodeError):
                log.exception("the registry cannot be read")
            if view.generation != generation:
                generation = view.generation
                await self._services.models.preload()
            self._services.pipeline.tend()
            self._services.relay.tend()
            await asyncio.sleep(LOOK_AGAIN_S)


def engines_of(view: WorkerView) -> int:
    """Gives the number of engines that are registered with a model."""
    return sum(map(len, view.models().values()))


async def registry_ready(boot: Boot) -> None:
    """Returns when the control process serves, or after a while: an engine that hangs must not hold up the others."""
    end = time.monotonic() + FIRST_REGISTRY_S
    while boot.shm.row(CONTROL_ROW)[1] != Phase.READY:
        if time.monotonic() > end:
            return
        await asyncio.sleep(0.01)
