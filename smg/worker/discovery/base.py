"""The sources that the configuration asks for, each watched by a task of its own; what they find goes into the fleet."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypedDict

from smg.config import Config
from smg.obs.metrics import Meter
from smg.worker.discovery.apiserver import ApiServer
from smg.worker.discovery.file import WorkersFile
from smg.worker.discovery.kubernetes import Pods
from smg.worker.fleet import Fleet
from smg.worker.record import EngineSpec, Source

__all__ = ["Discovery"]

log = logging.getLogger(__name__)


class Listener(TypedDict):
    """What a source calls: with all engines that it names, and when it could not find out."""

    found: Callable[[Iterable[EngineSpec]], None]
    failed: Callable[[], None]


class Discovery:
    """Made once a control process, from its event loop. Sources that are switched off lose what they had named before."""

    def __init__(self, config: Config, *, fleet: Fleet, meter: Meter) -> None:
        self._config = config
        self._fleet = fleet
        self._meter = meter
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to watch."""
        settings = self._config.discovery

        def into(source: Source) -> Listener:
            return {"found": partial(self._found, source), "failed": partial(self._failed, source)}

        if settings.workers_file:
            self._begin(WorkersFile(settings.workers_file, **into("file")).run())
        else:
            self._found("file", ())
        if settings.service_discovery:
            server = ApiServer(settings.kubernetes_api, account=settings.kubernetes_account_dir)
            self._begin(Pods(settings, server=server, **into("kubernetes")).run())
        else:
            self._found("kubernetes", ())

    async def close(self) -> None:
        """Ends the watch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(tell_failure)
        self._tasks.append(task)

    def _found(self, source: Source, specs: Iterable[EngineSpec]) -> None:
        began_s = time.perf_counter()
        self._fleet.replace(source, specs)
        self._meter.histogram("smg_discovery_sync_duration_seconds", (source,)).observe(time.perf_counter() - began_s)

    def _failed(self, source: Source) -> None:
        self._meter.add("smg_discovery_registrations_total", (source, "failed"))


def tell_failure(task: "asyncio.Task[None]") -> None:
    """Logs what ended a watch: a fault of ours, by which its source is not heard any more; what it said stays."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a discovery failed", exc_info=error)
