"""The control process's watch over one engine, which is opened, described, checked and polled, and kept true in the registry."""

import asyncio
import contextlib
import logging
import time
import traceback
from array import array
from collections.abc import Callable, Iterable

from msgspec import structs

from smg.config import Config
from smg.config.tree import Health
from smg.engine import Engine, Load
from smg.errors import ConfigError, EngineError, EngineProtocol, SmgError
from smg.obs.metrics import Meter
from smg.obs.shm import Shm, now_ms
from smg.worker.breaker import Breaker
from smg.worker.detect import Detector
from smg.worker.health import HealthTracker
from smg.worker.record import EngineRecord, EngineState
from smg.worker.registry import Registry

__all__ = ["Watcher"]

log = logging.getLogger(__name__)

MOST_RANKS = 256
# What a call may take beyond its own deadline before it is given up here.
SLACK_S = 2.0
# Pause after an unforeseen failure of a watch: it doubles with each that follows.
FAULT_PAUSE_S = 0.5
FAULT_GROWTH = 2
LONGEST_FAULT_PAUSE_S = 30.0
LONGEST_FAULT = 200  # characters of it that are told
# Bound of every number that an engine tells: sums of a few do not overflow.
MOST = 1 << 60


class Watcher:
    """Watches one engine; `failed` is called with its address when it becomes Failed, `described` with what it has said of itself.

    `seen` is set once the first check has ended, well or not; `reason` says what was wrong with the last one, and `since_s` is the Unix
    time at which the state began.
    """

    def __init__(
        self,
        record: EngineRecord,
        *,
        config: Config,
        shm: Shm,
        registry: Registry,
        detector: Detector,
        meter: Meter,
        failed: Callable[[str], None] = lambda url: None,
        described: Callable[[EngineRecord], None] = lambda record: None,
    ) -> None:
        self.seen = asyncio.Event()
        self.reason = ""
        self.since_s = time.time()
        self._record = record
        self._config = config
        self._health = health_of(record, config.health)
        self._shm = shm
        self._registry = registry
        self._detector = detector
        self._meter = meter
        self._failed = failed
        self._tell_described = described
        self._breaker = Breaker(shm, config=config.resilience)
        self._tracker = HealthTracker(self._health, now_s=time.monotonic(), state=registry.state(record))
        self._engine: Engine | None = None
        self._described = False
        self._hurry = asyncio.Event()
        self._poll_at = 0.0
        self._faults = 0
        self._told: set[tuple[type[Exception], str, int | None]] = set()

    def hurry(self) -> None:
        """Checks at once: somebody could not reach the engine, or another one has changed what becomes of it."""
        self._hurry.set()

    async def run(self) -> None:
        """Watches until cancelled. What nobody foresaw is logged, and the watch goes on: other engines need not know of it."""
        try:
            while True:
                try:
                    await self._turn()
                except Exception as error:
                    await self._stumble(error)
        finally:
            await self._let_go()

    async def _turn(self) -> None:
        """One check, and what is done until the next."""
        await self._check()
        self._faults = 0
        check_at = time.monotonic() + self._tracker.delay_s()
        while not self._hurry.is_set() and (left := check_at - time.monotonic()) > 0:
            await self._poll_loads()
            await self._pause(min(left, max(0.0, self._poll_at - time.monotonic())))
        self._hurry.clear()

    async def _stumble(self, error: Exception) -> None:
        """Leaves the engine's state as it is, since a fault of ours says nothing of the engine, and pauses before the next check."""
        self.reason = f"a fault of the gateway: {type(error).__name__}: {str(error)[:LONGEST_FAULT]}"
        self.seen.set()
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = type(error), place.filename, place.lineno
        if fault not in self._told:
            self._told.add(fault)
            log.error("the watch over an engine stumbled and goes on", exc_info=error, extra={"engine": self._record.url})
        self._meter.add("smg_worker_health_checks_total", ("regular", "fault"))
        if self._faults:
            await self._let_go()  # whatever is wrong may be in the driver
        await asyncio.sleep(min(FAULT_PAUSE_S * FAULT_GROWTH ** min(self._faults, 20), LONGEST_FAULT_PAUSE_S))
        self._faults += 1

    async def _let_go(self) -> None:
        """Closes the driver; one that cannot even be closed is none to wait for."""
        try:
            await self._reopen()
        except Exception:
            log.exception("an engine's driver cannot be closed", extra={"engine": self._record.url})

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
        self._registry.set_state(self._record.address, state)
        if state is not before:
            self._poll_at = 0.0
            self.since_s = time.time()
            if state is EngineState.READY:
                for record in self._registry.ranks(self._record.address):
                    self._breaker.came_back(record.slot, epoch=record.epoch)
        self._tell(before, state, reason)
        if reason or state is EngineState.READY:
            self.seen.set()
        if state is EngineState.FAILED and before is not state:
            self._failed(self._record.address)

    async def _ask(self) -> str:
        """One whole check; gives what is wrong, empty when nothing is."""
        deadline_s = self._health.check_timeout_s + self._config.engines.connect_timeout_s + SLACK_S
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
            self._registry.describe(self._record, ranks=self._ranks(self._engine))
            self._described = True
            self._tell_described(self._record)
        if not self._health.disable_check and not await self._engine.health():
            raise EngineError("the engine says that it does not serve")
        if self._registry.set_aside(self._record):
            raise EngineError("it is asked over HTTP, and its model is served by engines over gRPC: a model's engines must be of one kind")

    def _ranks(self, engine: Engine) -> int:
        """How many data-parallel ranks of the engine are routed to, each by itself."""
        known = self._config.engines.dp_aware and engine.features.data_parallel_rank
        return min(self._record.server.data_parallel_size, MOST_RANKS) if known else 1

    async def _reopen(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _poll_loads(self) -> None:
        """Asks for loads when it is time; an engine that cannot tell is not ill for it."""
        if time.monotonic() < self._poll_at:
            return
        self._poll_at = time.monotonic() + self._config.routing.load_monitor_interval_s
        if self._engine is None or not self._engine.features.loads or self._tracker.state is not EngineState.READY:
            return
        ranks = self._registry.ranks(self._record.address)
        before = [self._registry.inflight(record) for record in ranks]
        try:
            loads = await self._engine.loads()
        except SmgError as error:
            log.debug("no loads: %s", error.message, extra={"engine": self._record.url})
            return
        for record, counted in zip(ranks, before, strict=True):
            of_rank = [load for load in loads if record.rank in (None, load.rank)]
            after = self._registry.inflight(record)
            if self._shm.engine_epoch(record.slot) != record.epoch:  # it was removed meanwhile, and the slot is another's
                continue
            self._shm.set_load(record.slot, load_fields(of_rank, counted=(max(counted[0], after[0]), max(counted[1], after[1]))))

    def _tell(self, before: EngineState, state: EngineState, reason: str) -> None:
        if state is not before:
            level = logging.INFO if state is EngineState.READY else logging.WARNING
            fields = {"engine": self._record.url, "runtime": self._record.runtime, "model": self._record.model}
            log.log(level, f"engine is {state.name}" + (f": {reason}" if reason else ""), extra=fields)
        elif reason and reason != self.reason:
            log.warning("engine check failed: %s", reason, extra={"engine": self._record.url, "state": state.name})
        self.reason = reason


def health_of(record: EngineRecord, config: Health) -> Health:
    """Gives how an engine is watched: as configured, but for what was said of it alone."""
    edit = record.health
    return structs.replace(config, **{name: value for name in edit.__struct_fields__ if (value := getattr(edit, name)) is not None})


def load_fields(loads: Iterable[Load], *, counted: tuple[int, int]) -> "array[int]":
    """Gives the sum over an engine's ranks, in the order of `LOAD_FIELDS`.

    `counted`: the most requests and tokens that this gateway had there while it asked, so that none of them is taken for another's.
    """
    ranks = list(loads)
    numbers = (
        sum(load.running for load in ranks),
        sum(load.waiting for load in ranks),
        sum(load.used_tokens for load in ranks),
        sum(load.max_tokens for load in ranks),
        sum(load.waiting_uncached_tokens for load in ranks),
        int(sum(load.generated_per_s for load in ranks) * 1000),
        now_ms(),
        *counted,
    )
    return array("q", (min(max(number, 0), MOST) for number in numbers))
