"""Attempts of a request at engines, until one answers. In: how to choose an engine; out: one attempt after another, each counted there.

    async for attempt in attempts.of(route, …):
        with attempt:
            …                # uses attempt.record; sets attempt.answered once anything has come from the engine
            return …

The block's end is the request's end at that engine: its breaker learns of it and the lease is released. An error that another attempt may
mend ends the block quietly, and the next attempt begins; when there is to be none the error is raised. Only what was not answered is sent
again: to an engine that has not failed the request, at once; to one that has, when there is no other, after a pause. Used by
`smg.pipeline.run` and whatever else sends requests to engines.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from types import TracebackType

from msgspec import Struct

from smg.config.tree import Resilience
from smg.errors import EngineBusy, EngineError, EngineRejected, EngineTimeout, EngineUnavailable, NoEngine
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.worker import EngineRecord, Lease, WorkerView

__all__ = ["Attempt", "Attempts", "RetryBudget", "Route", "Tries"]

log = logging.getLogger(__name__)

# Chooses an engine that is not among these slots, unless there is no other, and counts the request there. Raises NoEngine.
Route = Callable[[frozenset[int]], tuple[EngineRecord, Lease]]


class RetryBudget:
    """What all processes may spend on retries: a fifth of the requests that came, and a store for when many fail at once.

    Each request adds 1 and each retry takes 5, in one word of shared memory that holds at most the price of 1,000 retries; the supervisor
    fills it with that of 100. So N requests have at most N / 5 + 100 retries.
    """

    PRICE = 5
    MOST = 1000 * PRICE

    def __init__(self, shm: Shm) -> None:
        self._shm = shm

    def earn(self) -> None:
        """A request came."""
        self._shm.earn_retry(1, self.MOST)

    def spend(self) -> bool:
        """True when a retry may be made; it is paid then."""
        return self._shm.spend_retry(self.PRICE)


class Attempts:
    """Makes attempts for one data worker."""

    def __init__(self, view: WorkerView, *, config: Resilience, meter: Meter) -> None:
        self.view = view
        self.config = config
        self.meter = meter
        self.budget = RetryBudget(view.shm)
        self.most = 1 if config.disable_retries else config.retry_max_retries

    def of(self, route: Route, *, endpoint: str, deadline_s: float, request_id: str = "") -> "Tries":
        """Gives the attempts of one request; `deadline_s` on the clock of `time.monotonic`, `endpoint` for the metrics."""
        self.budget.earn()
        return Tries(self, route, endpoint=endpoint, deadline_s=deadline_s, request_id=request_id)

    def pause_s(self, number: int) -> float:
        """Gives the pause before the retry of that number, from 1 on."""
        config = self.config
        wait_ms = min(config.retry_max_backoff_ms, config.retry_initial_backoff_ms * config.retry_backoff_multiplier ** (number - 1))
        return wait_ms / 1000 * (1 + config.retry_jitter_factor * random.uniform(-1, 1))


class Tries:
    """The attempts of one request. `failed`: slots of engines that have failed it; `count`: attempts begun; `over`: there are no more."""

    def __init__(self, attempts: Attempts, route: Route, *, endpoint: str, deadline_s: float, request_id: str) -> None:
        self.failed: frozenset[int] = frozenset()
        self.count = 0
        self.over = False
        self._attempts = attempts
        self._route = route
        self._endpoint = endpoint
        self._deadline_s = deadline_s
        self._request_id = request_id
        self._error: EngineError | None = None
        self._retries = 0
        self._late = False

    def __aiter__(self) -> "Tries":
        return self

    async def __anext__(self) -> "Attempt":
        if self.over:
            raise StopAsyncIteration
        if self.overdue:
            raise self._error or EngineTimeout("the request's deadline passed before an engine was asked")
        try:
            record, lease = await self.choose(self._route)
        except NoEngine as error:
            raise self._error or error from None
        self.count += 1
        return Attempt(self, record, lease)

    async def choose(self, route: Route) -> tuple[EngineRecord, Lease]:
        """Chooses an engine, for an attempt or as its other one. Waits before one gets the request again that has failed it.

        Raises NoEngine, and what an attempt before ended with when the deadline comes before the end of the wait.
        """
        record, lease = route(self.failed)
        if record.slot in self.failed:
            lease.release()
            await self._pause()
            record, lease = route(self.failed)
        return record, lease

    def ended(self, attempt: "Attempt", error: BaseException | None) -> bool:
        """Judges the end of an attempt; True when another one is to follow."""
        record, lease = attempt.record, attempt.lease
        if isinstance(error, EngineError):
            error.engine = error.engine or record.url
        try:
            if error is None or (attempt.blamed is None and not (attempt.answered and isinstance(error, asyncio.CancelledError))):
                self.judge(record, lease, error, again=record.slot in self.failed)
        finally:
            lease.release()
        self.over = not (isinstance(error, EngineError) and self._again(error, attempt))
        return not self.over

    def judge(self, record: EngineRecord, lease: Lease, error: BaseException | None, *, again: bool) -> None:
        """Tells breaker and counts how an engine has done with its part; `again`: it had failed the request before.

        Its own faults are failures, also a part that was cancelled at the request's deadline. What it refuses with good reason is not.
        """
        if error is None or isinstance(error, EngineRejected):
            lease.succeed()
            lease.count("success")
        elif self._blames(error):
            if not again or lease.probe:  # one request that no engine survives is one failure of each
                lease.fail()
            lease.count("failure")
            self._tell_failure(record, error)

    def _blames(self, error: BaseException) -> bool:
        """True when an error is the engine's fault: also a request that was cancelled at its deadline."""
        if isinstance(error, asyncio.CancelledError):
            return self.overdue
        return isinstance(error, EngineError) and not isinstance(error, EngineBusy)

    @property
    def overdue(self) -> bool:
        """True once the request's deadline has passed."""
        return time.monotonic() >= self._deadline_s

    def _tell_failure(self, record: EngineRecord, error: BaseException) -> None:
        meter = self._attempts.meter
        mode = "http" if record.relayed else "grpc"
        code = error.code if isinstance(error, EngineError) else EngineTimeout.code
        meter.add("smg_worker_errors_total", (record.role, mode, code))
        if isinstance(error, EngineUnavailable | EngineTimeout | asyncio.CancelledError):
            self._attempts.view.suspect(record.slot)

    def _again(self, error: EngineError, attempt: "Attempt") -> bool:
        if attempt.answered or not error.retryable or self._late:
            return False
        self._error = error
        self.failed |= {attempt.record.slot if attempt.blamed is None else attempt.blamed}
        labels = (attempt.record.role, self._endpoint)
        if self.count >= self._attempts.most or not self._attempts.budget.spend():
            self._attempts.meter.add("smg_worker_retries_exhausted_total", labels)
            return False
        self._retries += 1
        self._attempts.meter.add("smg_worker_retries_total", labels)
        log.info("the request is sent again", extra={"request_id": self._request_id, "error": error.code, "engine": error.engine})
        return True

    async def _pause(self) -> None:
        """Waits before an engine that failed gets the request again. Raises what it failed with when the deadline comes first."""
        wait_s = self._attempts.pause_s(self._retries)
        if self._error is not None and time.monotonic() + wait_s >= self._deadline_s:
            self._late = True
            raise self._error
        self._attempts.meter.histogram("smg_worker_retry_backoff_seconds", (str(self._retries),)).observe(wait_s)
        await asyncio.sleep(wait_s)


class Attempt(Struct):
    """One attempt at one engine, as a block. `answered`: something has come from the engine, so that nothing may be sent again.

    `blamed`: the slot of another engine that failed it, and has been told so.
    """

    tries: Tries
    record: EngineRecord
    lease: Lease
    answered: bool = False
    blamed: int | None = None

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        return self.tries.ended(self, error)
