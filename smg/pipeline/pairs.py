"""Prefill and decode apart: finds the prefill engine for a request whose decode engine was chosen. Called by run.py, once an attempt."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from smg.engine import Engine, PairedEngine, Prefill
from smg.errors import EngineError, EngineUnavailable, SmgError
from smg.obs.metrics import Meter
from smg.pipeline.attempts import Attempt
from smg.pipeline.generation import Aborts
from smg.pipeline.route import Router
from smg.pipeline.tending import Tended
from smg.types.job import Job
from smg.worker import EnginePool, WorkerView

__all__ = ["Pair", "Pairs"]


class Pair(PairedEngine):
    """The engines of one attempt. `slot` is the prefill engine's."""

    def __init__(self, prefill: Prefill, decode: Engine, *, slot: int) -> None:
        super().__init__(prefill, decode)
        self.slot = slot


class Part(Tended):
    """A prefill engine's part that has not ended, see `Tended`."""

    def __init__(self, prefill: Prefill, *, address: str) -> None:
        self._prefill = prefill
        self._address = address

    def waits_for(self) -> str:
        """See `Tended`."""
        return self._address

    def progress(self) -> int:
        """See `Tended`."""
        return 0

    def fail(self, error: SmgError) -> None:
        """See `Tended`."""
        assert isinstance(error, EngineError), "the only fault of who makes no progress is the engine's"
        self._prefill.fail(error)


class Pairs:
    """Makes pairs for one data worker. `parts`: of prefill engines, to be looked after, see `Tender`."""

    def __init__(self, *, router: Router, pool: EnginePool, view: WorkerView, aborts: Aborts, meter: Meter) -> None:
        self._router = router
        self._pool = pool
        self._view = view
        self._aborts = aborts
        self._meter = meter
        self.parts: set[Part] = set()

    async def make(self, decode: Engine, attempt: Attempt, *, job: Job, prompt_ids: Sequence[int], before: Pair | None) -> Pair:
        """Gives the pair. A prompt that an attempt before has computed is not computed again.

        Raises NoEngine when there is no prefill engine of the decode engine's runtime, and what opening its driver raises.
        """
        record = attempt.record
        if before is not None:
            if before.prefill.unclaimed is not None:
                return Pair(before.prefill, decode, slot=before.slot)
            before.prefill.close()
            attempt.blamed = before.slot  # for what ends the wait until that engine is asked again
        routing, runtime = job.routing, record.runtime
        route = partial(self._router.route, record.model, prompt_ids=prompt_ids, routing=routing, role="prefill", runtime=runtime)
        chosen, lease = await attempt.tries.choose(route)
        attempt.blamed = None
        rank = lease.rank if chosen.rank is None else chosen.rank
        try:
            engine = await self._pool.get(chosen)
        except BaseException:
            lease.release()
            raise
        tries, again = attempt.tries, chosen.slot in attempt.tries.failed
        labels = ("grpc", record.model, record.runtime)
        began_s = time.monotonic()

        if decode.features.disaggregation == "sequential":
            attempt.blamed = chosen.slot  # also for a deadline that passes before the decode engine was asked

        def done(computed: bool) -> None:
            self.parts.discard(part)
            if computed or prefill.error is not None or not tries.overdue:
                attempt.blamed = None
            tries.judge(chosen, lease, None if computed else prefill.error or asyncio.CancelledError(), again=again)
            lease.release()
            if computed:
                self._meter.histogram("smg_pd_prefill_duration_seconds", labels).observe(time.monotonic() - began_s)
            elif prefill.error is not None:
                self._meter.add("smg_pd_kv_transfer_failures_total", ())

        prefill = Prefill(
            engine,
            server=chosen.server,
            bootstrap_port=chosen.handover_port,
            rank=rank if rank >= 0 else None,
            send_abort=self._aborts.send,
            done=done,
        )
        part = Part(prefill, address=chosen.address)
        self.parts.add(part)
        return Pair(prefill, decode, slot=chosen.slot)

    async def judge(self, error: EngineError, *, pair: Pair | None, attempt: Attempt) -> None:
        """Looks for the cause of an attempt's failure: where it is the prefill engine, that is blamed, and its error raised."""
        if pair is None or attempt.answered:
            return
        cause = await pair.cause(error)
        if pair.prefill.error is not None:
            attempt.blamed = pair.slot
            cause.engine = pair.prefill.engine.url
            if isinstance(cause, EngineUnavailable):  # also when that is known only once the part was left
                self._view.suspect(pair.slot)
            if cause is not error:
                raise cause from error

    def give_up(self, pair: Pair, *, request_id: str) -> None:
        """The request has ended without an answer: what the prefill engine holds for it, or is about to say that it holds, is given up."""
        prefill = pair.prefill
        prefill.close()
        if prefill.unclaimed is not None or (prefill.ending and pair.features.disaggregation == "sequential"):
            prefill.given_up = True
            self._aborts.send(pair, request_id)
