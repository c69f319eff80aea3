"""The control process's watch over engines: one task each, which opens, describes, checks and polls it, and keeps the registry true."""

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Iterable

from smg.config import Config
from smg.engine import Engine, Load
from smg.errors import ConfigError, EngineError, EngineProtocol, SmgError
from smg.obs.metrics import Meter
from smg.obs.shm import Shm, now_ms
from smg.worker.detect import Detector
from smg.worker.health import HealthTracker
from smg.worker.listed import listed_engines
from smg.worker.record import EngineRecord, EngineState
from smg.worker.registry import Registry

__all__ = ["Fleet", "Watcher"]

log = logging.getLogger(__name__)

LOAD_INTERVAL_S = 10.0
# What a call may take beyond its own deadline before it is given up here.
SLACK_S = 2.0


class Watcher:
    """Watches one engine. `seen` is set once the first check has ended, well or not."""

    def __init__(self, record: EngineRecord, *, config: Config, shm: Shm, registry: Registry, detector: Detector, meter: Meter) -> None:
        self.seen = asyncio.Event()
        self._record = record
        self._config = config
        self._shm = shm
        self._registry = registry
        self._detector = detector
        self._meter = meter
        self._tracker = HealthTracker(config.health, now_s=time.monotonic(), state=registry.state(record))
        self._engine: Engine | None = None
        self._described = False
        self._hurry = asyncio.Event()
        self._reason = ""
        self._poll_at = 0.0

    def hurry(self) -> None:
        """Checks at once: somebody could not reach the engine."""
        self._hurry.set()

    async def run(self) -> None:
        """Watches until cancelled."""
        try:
            while True:
                await self._check()
                check_at = time.monotonic() + self._tracker.delay_s()
                while not self._hurry.is_set() and (left := check_at - time.monotonic()) > 0:
                    await self._poll_loads()
                    await self._pause(min(left, max(0.0, self._poll_at - time.monotonic())))
                self._hurry.clear()
        finally:
            if self._engine is not None:
                await self._engine.close()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _check(self) -> None:
        before = self._tracker.state
        reason = await self._ask()
        now_s = time.monotonic()
        state = self._tracker.failure(now_s=now_s) if reason else self._tracker.success(now_s=now_s)
        self._meter.add("smg_worker_health_checks_total", ("regular", "error" if reason else "success"))
        if state is not EngineState.READY:
            self._described = self._described and state is EngineState.PENDING
        self._registry.set_state(self._record.url, state)
        if state is not before:
            self._poll_at = 0.0
        self._tell(before, state, reason)
        if reason or state is EngineState.READY:
            self.seen.set()

    async def _ask(self) -> str:
        """One whole check; gives what is wrong, empty when nothing is."""
        deadline_s = self._config.health.check_timeout_s + self._config.engines.connect_timeout_s + SLACK_S
        try:
            async with asyncio.timeout(None if not self._described else deadline_s):
                await self._ask_engine()
        except TimeoutError:
            return "no answer in time"
        except ConfigError as error:
            return "; ".join(error.mistakes)
        except SmgError as error:
            return f"{error.message}: {error.detail}" if error.detail else error.message
        return ""

    async def _ask_engine(self) -> None:
        if self._engine is None:
            self._engine, self._record = await self._detector.open(self._record)
        if not self._described:
            try:
                self._record = await self._detector.describe(self._engine, self._record)
            except EngineProtocol:
                await self._reopen()  # another runtime may answer at this address now
                raise
            self._registry.describe(self._record)
            self._described = True
        if not self._config.health.disable_check and not await self._engine.health():
            raise EngineError("the engine says that it does not serve")

    async def _reopen(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _poll_loads(self) -> None:
        """Asks for loads when it is time; an engine that cannot tell is not ill for it."""
        if time.monotonic() < self._poll_at:
            return
        self._poll_at = time.monotonic() + LOAD_INTERVAL_S
        if self._engine is None or not self._engine.features.loads or self._tracker.state is not EngineState.READY:
            return
        try:
            loads = await self._engine.loads()
        except SmgError as error:
            log.debug("no loads: %s", error.message, extra={"engine": self._record.url})
            return
        self._shm.set_load(self._record.slot, load_fields(loads))

    def _tell(self, before: EngineState, state: EngineState, reason: str) -> None:
        if state is not before:
            level = logging.INFO if state is EngineState.READY else logging.WARNING
            fields = {"engine": self._record.url, "runtime": self._record.runtime, "model": self._record.model}
            log.log(level, f"engine is {state.name}" + (f": {reason}" if reason else ""), extra=fields)
        elif reason and reason != self._reason:
            log.warning("engine check failed: %s", reason, extra={"engine": self._record.url, "state": state.name})
        self._reason = reason


def load_fields(loads: Iterable[Load]) -> "array[int]":
    """Gives the sum over an engine's ranks, in the order of `LOAD_FIELDS`."""
    ranks = list(loads)
    numbers = (
        sum(load.running for load in ranks),
        sum(load.waiting for load in ranks),
        sum(load.used_tokens for load in ranks),
        sum(load.max_tokens for load in ranks),
        sum(load.waiting_uncached_tokens for load in ranks),
        int(sum(load.generated_per_s for load in ranks) * 1000),
        now_ms(),
    )
    return array("q", (min(max(number, 0), (1 << 63) - 1) for number in numbers))


class Fleet:
    """All watchers of a control process."""

    def __init__(self, config: Config, *, shm: Shm, registry: Registry, detector: Detector, meter: Meter) -> None:
        self._shm = shm
        self.watchers: dict[int, Watcher] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for record in registry.add(listed_engines(config)):
            watcher = Watcher(record, config=config, shm=shm, registry=registry, detector=detector, meter=meter)
            self.watchers[record.slot] = watcher
            self._tasks.append(asyncio.create_task(watcher.run()))

    async def seen(self, *, within_s: float) -> None:
        """Returns when every engine was asked once, or after `within_s`."""
        waiting = [asyncio.ensure_future(watcher.seen.wait()) for watcher in self.watchers.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=within_s)
            for task in late:
                task.cancel()

    async def run_until(self, told: asyncio.Event) -> None:
        """Returns when `told` is set. Raises when a watch ends, which only a fault of ours can do."""
        stop = asyncio.create_task(told.wait())
        try:
            await asyncio.wait([stop, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                if task.done():
                    task.result()
        finally:
            stop.cancel()

    def hurry(self) -> None:
        """Checks the engines that data workers suspect."""
        for slot, watcher in self.watchers.items():
            if self._shm.take_suspect(slot):
                watcher.hurry()

    async def close(self) -> None:
        """Ends the watch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
