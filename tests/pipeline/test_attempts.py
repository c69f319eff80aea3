"""Attempts: which ends are tried again and where, what they cost, and what breakers and counts learn of them."""

import asyncio
import time
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smg.config.tree import Resilience
from smg.config.tree import Routing as RoutingConfig
from smg.errors import ClientGone, EngineBusy, EngineError, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable, NoEngine
from smg.obs.metrics import Meter
from smg.obs.shm import FIRST_WORKER_ROW, Shm
from smg.pipeline.attempts import Attempts, RetryBudget
from smg.pipeline.route import Router
from smg.types.job import Routing
from smg.worker import Breaker, EngineRecord, EngineSpec, EngineState, Lease, Registry, WorkerView
from smg.worker.breaker import CLOSED, HALF_OPEN, OPEN
from tests.shm.memory import shared_memory
from tests.worker.fake import until

GONE = EngineUnavailable("gone")


class Rig:
    """Ready engines, and requests whose ends are told beforehand, one a time that it is sent."""

    def __init__(self, folder: Path, *, engines: int = 2, retries: int = 500, **settings: Any) -> None:
        self.shm = Shm(shared_memory(rows=4, retries=retries))
        self.registry = Registry(self.shm, folder=folder)
        for record in self.registry.add(EngineSpec(url=f"grpc://engine-{number}:1") for number in range(engines)):
            self.registry.describe(msgspec.structs.replace(record, model="m"))
            self.registry.set_state(record.url, EngineState.READY)
        config = Resilience(**{"retry_initial_backoff_ms": 1, "cb_failure_threshold": 3, "cb_success_threshold": 1, **settings})
        meter = Meter(self.shm, row=FIRST_WORKER_ROW)
        self.now_ms = 1_000_000
        self.breaker = Breaker(self.shm, config=config, clock=lambda: self.now_ms)
        self.view = WorkerView(self.shm, row=FIRST_WORKER_ROW, folder=folder, breaker=self.breaker)
        self.attempts = Attempts(self.view, config=config, meter=meter)
        self.router = Router(self.view, config=RoutingConfig(policy="round_robin"))
        self.slots: list[int] = []

    def send(self, *ends: BaseException | None, answered: bool = False, deadline_s: float | None = None) -> list[int]:
        """Gives the slots to which the request went; raises what it ended with."""
        return asyncio.run(self._send(list(ends), answered=answered, deadline_s=deadline_s or time.monotonic() + 30))

    async def _send(self, ends: list[BaseException | None], *, answered: bool, deadline_s: float) -> list[int]:
        self.slots = []
        tries = self.attempts.of(
            lambda avoid: self.router.route("m", prompt_ids=[1], routing=Routing(), avoid=avoid), endpoint="chat", deadline_s=deadline_s
        )
        async for attempt in tries:
            with attempt:
                self.slots.append(attempt.record.slot)
                assert self.counted() == 1
                attempt.answered = answered
                if (end := ends.pop(0)) is not None:
                    raise end
                return self.slots
        raise AssertionError("no end")

    def counted(self) -> int:
        sums = array("q", [0] * 16)
        self.shm.sums(array("q", range(8)), sums)
        return sum(sums[::2])

    def total(self, name: str) -> int:
        return sum(values[-1] if "seconds" in name else values[0] for key, values in self.shm.totals() if key.decode().startswith(name))


def test_another_engine_gets_the_request_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=3, retry_initial_backoff_ms=60_000, retry_max_backoff_ms=60_000)
    assert sorted(rig.send(GONE, GONE, None)) == [0, 1, 2]
    assert rig.counted() == 0
    assert rig.total("smg_worker_retries_total") == 2
    assert rig.total("smg_worker_retry_backoff") == 0


def test_the_same_engine_gets_it_again_after_a_pause(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=1)
    assert rig.send(GONE, GONE, None) == [0, 0, 0]
    assert rig.total("smg_worker_retry_backoff_seconds") > 0


@pytest.mark.parametrize(
    "error", [EngineError("x"), EngineProtocol("x"), EngineTimeout("x"), EngineRejected("x"), ClientGone("x"), ValueError()]
)
def test_what_no_other_attempt_can_mend_is_raised(error: Exception, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(type(error)):
        rig.send(error)
    assert len(rig.slots) == 1
    assert rig.counted() == 0


@pytest.mark.parametrize("error", [GONE, EngineBusy("x")])
def test_nothing_is_sent_again_once_it_was_answered(error: Exception, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(type(error)):
        rig.send(error, answered=True)
    assert (len(rig.slots), rig.counted()) == (1, 0)


def test_there_is_an_end_to_attempts(tmp_path: Path) -> None:
    for settings, count in (({}, 5), ({"retry_max_retries": 2}, 2), ({"disable_retries": True}, 1)):
        rig = Rig(tmp_path, disable_circuit_breaker=True, **settings)
        with pytest.raises(EngineUnavailable):
            rig.send(*[GONE] * 9)
        assert len(rig.slots) == count
        assert rig.total("smg_worker_retries_exhausted_total") == 1


def test_the_deadline_holds_over_all_attempts(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=1, retry_initial_backoff_ms=60_000, retry_max_backoff_ms=60_000)
    start = time.monotonic()
    with pytest.raises(EngineUnavailable):
        rig.send(GONE, None)
    with pytest.raises(EngineTimeout):
        rig.send(None, deadline_s=time.monotonic() - 1)
    assert time.monotonic() - start < 30
    assert rig.slots == []


def test_retries_are_a_fifth_of_the_requests_and_what_was_saved(tmp_path: Path) -> None:
    rig = Rig(tmp_path, retries=3 * RetryBudget.PRICE, disable_circuit_breaker=True)
    for _ in range(100):
        try:
            rig.send(GONE, None)
        except EngineUnavailable:
            continue
    assert rig.total("smg_worker_retries_total") == 100 // 5 + 3
    assert rig.total("smg_worker_retries_exhausted_total") == 100 - 23


def test_the_store_for_retries_has_an_end(tmp_path: Path) -> None:
    budget = RetryBudget(Rig(tmp_path, retries=0).shm)
    for _ in range(2 * RetryBudget.MOST):
        budget.earn()
    assert sum(budget.spend() for _ in range(2000)) == 1000


def test_the_breaker_learns_of_each_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=1, disable_retries=True)
    for error in (EngineRejected("x"), EngineBusy("x"), ClientGone("x"), ValueError(), asyncio.CancelledError()):
        for _ in range(3):
            with pytest.raises(type(error)):
                rig.send(error)
    assert rig.breaker.condition(0).state == CLOSED
    for error in (GONE, EngineTimeout("x"), EngineError("x")):
        with pytest.raises(type(error)):
            rig.send(error)
    assert rig.breaker.condition(0).state == OPEN
    with pytest.raises(NoEngine) as caught:
        rig.send(None)
    assert caught.value.retry_after_s == 60
    assert rig.shm.take_suspect(0), "the control process is told"


def test_one_request_is_one_failure_of_an_engine(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=2)
    with pytest.raises(EngineUnavailable):
        rig.send(*[GONE] * 9)
    assert (len(rig.slots), set(rig.slots)) == (5, {0, 1})
    assert [rig.breaker.condition(slot).count for slot in (0, 1)] == [1, 1]


def test_an_engine_that_hangs_fails_the_requests_that_are_cancelled_at_their_deadline(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=1)

    async def hang(*, answered: bool) -> None:
        tries = rig.attempts.of(
            lambda avoid: rig.router.route("m", prompt_ids=[1], routing=Routing(), avoid=avoid),
            endpoint="chat",
            deadline_s=time.monotonic() + 0.2,
        )
        async for attempt in tries:
            with attempt:
                attempt.answered = answered
                await asyncio.sleep(60)

    for answered, state in ((True, CLOSED), (False, OPEN)):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                asyncio.run(asyncio.wait_for(hang(answered=answered), 0.3))
        assert rig.breaker.condition(0).state == state
    assert rig.counted() == 0


def test_open_breakers_are_passed_over_and_probed_by_as_many_as_needed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=2)

    def routed() -> tuple[EngineRecord, Lease]:
        return rig.router.route("m", prompt_ids=[1], routing=Routing(), avoid=frozenset({0}))

    for _ in range(3):
        rig.breaker.fail(1, epoch=rig.shm.engine_epoch(1))
    assert routed()[0].slot == 0
    rig.now_ms += 60_000
    probed, lease = routed()
    assert (probed.slot, rig.breaker.condition(1).state) == (1, HALF_OPEN)
    assert {routed()[0].slot for _ in range(5)} == {0}
    lease.answered()
    assert rig.breaker.condition(1).state == CLOSED, "the first token is enough of an answer"
    assert routed()[0].slot == 1


def test_a_client_that_leaves_gives_its_probe_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, engines=1, cb_failure_threshold=1)
    with pytest.raises(EngineUnavailable):
        rig.send(GONE, answered=True)
    rig.now_ms += 60_000
    for _ in range(3):
        with pytest.raises(ClientGone):
            rig.send(ClientGone("x"))
        assert rig.breaker.condition(0).probes == 0
    assert rig.send(None) == [0]
    assert rig.breaker.condition(0).state == CLOSED


def test_a_client_that_leaves_in_a_pause_is_counted_nowhere(tmp_path: Path) -> None:
    """Nor is one that stays, for as long as the pause lasts: nothing of it is at the engine."""
    rig = Rig(tmp_path, engines=1, retry_initial_backoff_ms=60_000, retry_max_backoff_ms=60_000)

    async def main() -> None:
        task = asyncio.create_task(rig._send([GONE, None], answered=False, deadline_s=time.monotonic() + 600))
        await until(lambda: rig.total("smg_worker_retry_backoff_seconds") > 0)
        assert rig.counted() == 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert rig.counted() == 0


def test_two_routers_share_one_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others do between the look and the choice: the engine is chosen no more, and there is no other."""
    rig = Rig(tmp_path, engines=1, cb_failure_threshold=1)
    with pytest.raises(EngineUnavailable):
        rig.send(GONE, answered=True)
    rig.now_ms += 60_000
    take = rig.breaker.take_probe
    monkeypatch.setattr(rig.breaker, "take_probe", lambda *args, **named: take(*args, **named) and take(*args, **named))
    with pytest.raises(NoEngine):
        rig.send(None)


def test_pauses_grow_to_a_bound_and_differ_so_that_clients_do_not_come_back_together(tmp_path: Path) -> None:
    growing = {"retry_initial_backoff_ms": 100, "retry_backoff_multiplier": 2.0, "retry_max_backoff_ms": 300}
    attempts = Rig(tmp_path, **growing, retry_jitter_factor=0.0).attempts
    assert [attempts.pause_s(number) for number in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])
    attempts = Rig(tmp_path, **growing, retry_jitter_factor=0.5).attempts
    pauses = [attempts.pause_s(2) for _ in range(200)]
    assert 0.1 <= min(pauses) < 0.15 < 0.25 < max(pauses) <= 0.3
