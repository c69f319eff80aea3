"""Circuit breakers: the shared word against a plain model over random ends of requests, and over processes."""

import os
import random

import pytest
from msgspec import Struct

from smg.config.tree import Resilience
from smg.obs.shm import PlainShm, Shm
from smg.worker.breaker import CLOSED, HALF_OPEN, OPEN, Breaker, Condition, breaker_samples
from tests.shm.memory import shared_memory

URL = "grpc://a:1"
SETTINGS = Resilience(cb_failure_threshold=3, cb_success_threshold=2, cb_timeout_s=1.0, cb_window_s=5.0)


class Rig:
    """One engine's breaker, and a clock that is set by hand."""

    def __init__(self, body: type[Shm], settings: Resilience = SETTINGS) -> None:
        self.shm = body(shared_memory(rows=2, engines=2, series=16, cells=64))
        self.epoch = self.shm.open_engine(0, 1)
        self.now_ms = 1_000_000
        self.breaker = Breaker(self.shm, config=settings, clock=lambda: self.now_ms)

    @property
    def state(self) -> int:
        return self.breaker.condition(0).state

    def take(self) -> bool:
        return self.breaker.take_probe(0, epoch=self.epoch)

    def fail(self, *, probe: bool = False, epoch: int | None = None) -> None:
        self.breaker.fail(0, epoch=self.epoch if epoch is None else epoch, probe=probe)

    def succeed(self, *, probe: bool = False) -> None:
        self.breaker.succeed(0, epoch=self.epoch, probe=probe)


@pytest.fixture(params=[Shm, PlainShm], ids=["native", "plain"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


class Model(Struct):
    """The same in the plainest words: what has happened, kept as lists."""

    state: str = "closed"
    failures: list[int] = []
    successes: int = 0
    probes: int = 0
    since: int = 0

    def permits(self, now: int) -> bool:
        waited = now - self.since >= 1000
        return {"closed": True, "open": waited, "half": self.probes < 2 or waited}[self.state]

    def begin(self, now: int) -> str:
        """Gives what the request is: refused, plain or probe."""
        if self.state == "closed":
            return "plain"
        if not self.permits(now):
            return "refused"
        if self.state == "open":
            self.state, self.successes, self.probes, self.since = "half", 0, 1, now
        elif now - self.since >= 1000:
            self.probes, self.since = 1, now
        else:
            self.probes += 1
        return "probe"

    def end(self, kind: str, how: str, now: int) -> None:
        if self.state == "closed":
            self._end_closed(how, now)
        elif self.state == "half" and kind == "probe":
            self.probes = max(0, self.probes - 1)
            if how == "good":
                self.successes += 1
                if self.successes == 2:
                    self.state, self.failures, self.probes = "closed", [], 0
            elif how == "bad":
                self.state, self.since, self.probes = "open", now, 0

    def _end_closed(self, how: str, now: int) -> None:
        if how == "good":
            self.failures = []
        elif how == "bad":
            if self.failures and now - self.failures[0] > 5000:
                self.failures = []
            self.failures.append(now)
            if len(self.failures) == 3:
                self.state, self.failures, self.since = "open", [], now


@pytest.mark.parametrize("seed", range(40))
def test_random_ends_of_requests_are_as_the_plain_model_says(rig: Rig, seed: int) -> None:
    rng, model, open_requests = random.Random(seed), Model(), []
    bad = rng.choice([0.1, 0.5, 0.9])
    for _ in range(400):
        rig.now_ms += rng.choice([0, 1, 30, 400, 1000, 6000])
        if rng.random() < 0.5 or not open_requests:
            assert (rig.breaker.wait_ms(0) == 0) is model.permits(rig.now_ms)
            kind = model.begin(rig.now_ms)
            assert (rig.state != CLOSED and rig.take(), rig.state) == (kind == "probe", ["closed", "open", "half"].index(model.state))
            if kind != "refused":
                open_requests.append(kind)
            continue
        kind = open_requests.pop(rng.randrange(len(open_requests)))
        how = rng.choices(["bad", "good", "none"], [bad, 0.9 - bad + 0.01, 0.1])[0]
        model.end(kind, how, rig.now_ms)
        if how == "none":
            if kind == "probe":
                rig.breaker.give_back(0, epoch=rig.epoch)
        else:
            (rig.succeed if how == "good" else rig.fail)(probe=kind == "probe")
        assert ["closed", "open", "half"][rig.state] == model.state
        condition = rig.breaker.condition(0)
        assert condition.probes == (model.probes if model.state == "half" else 0)
        assert condition.count == {"closed": len(model.failures), "half": model.successes, "open": 0}[model.state]


def test_an_end_without_trouble_reads_one_word_and_writes_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.breaker, "_change", None)
    rig.succeed()


def test_of_many_that_probe_only_as_many_get_through_as_must_succeed(rig: Rig) -> None:
    for _ in range(3):
        rig.fail()
    assert rig.state == OPEN
    assert not rig.take()
    assert rig.breaker.wait_ms(0) == 1000
    rig.now_ms += 1000
    assert [rig.take() for _ in range(5)] == [True, True, False, False, False]
    rig.breaker.give_back(0, epoch=rig.epoch)
    assert rig.take()
    assert not rig.take()
    rig.now_ms += 1000  # those who probe have died
    assert rig.take()
    rig.succeed(probe=True)
    rig.succeed()
    assert rig.state == HALF_OPEN, "what was sent before it opened says nothing of it now"
    rig.succeed(probe=True)
    assert rig.state == CLOSED
    changes = {
        sample.labels: sample.value for sample in breaker_samples(rig.shm, 0, URL) if sample.name == "smg_worker_cb_transitions_total"
    }
    assert changes == {
        (URL, "closed", "open"): 1,
        (URL, "open", "half_open"): 1,
        (URL, "half_open", "closed"): 1,
        (URL, "half_open", "open"): 0,
    }
    assert rig.shm.totals() == [], "an engine leaves no series behind"


def test_an_engine_that_is_ready_anew_is_probed_at_once(rig: Rig) -> None:
    for _ in range(3):
        rig.fail()
    rig.breaker.came_back(0, epoch=rig.epoch)
    assert (rig.state, rig.breaker.wait_ms(0)) == (HALF_OPEN, 0)
    rig.succeed(probe=rig.take())
    rig.succeed(probe=rig.take())
    rig.breaker.came_back(0, epoch=rig.epoch)
    assert rig.state == CLOSED


def test_a_slot_that_is_used_anew_knows_nothing_of_the_engine_before(rig: Rig) -> None:
    earlier = rig.epoch
    rig.fail()
    rig.epoch = rig.shm.open_engine(0, 1)
    assert rig.breaker.condition(0).count == 0
    for _ in range(5):
        rig.fail(epoch=earlier)
    assert rig.breaker.condition(0) == Condition(epoch=rig.epoch)


def test_its_metrics_are_those_of_the_original(rig: Rig) -> None:
    def seen() -> list[float]:
        samples = [sample for sample in breaker_samples(rig.shm, 0, URL) if not sample.name.endswith("_total")]
        names = ["smg_worker_cb_state", "smg_worker_cb_consecutive_failures", "smg_worker_cb_consecutive_successes"]
        assert [(sample.name, sample.labels) for sample in samples] == [(name, (URL,)) for name in names]
        return [sample.value for sample in samples]

    rig.fail()
    rig.fail()
    assert seen() == [CLOSED, 2, 0]
    rig.fail()
    assert seen() == [OPEN, 0, 0]
    rig.now_ms += 1000
    rig.succeed(probe=rig.take())
    assert seen() == [HALF_OPEN, 0, 1]


def test_it_can_be_turned_off() -> None:
    rig = Rig(Shm, Resilience(disable_circuit_breaker=True, cb_failure_threshold=1))
    rig.fail()
    assert rig.state == CLOSED


@pytest.mark.parametrize("condition", [Condition(), Condition(OPEN, 1023, 63, 63, (1 << 39) - 1), Condition(HALF_OPEN, 5, 2, 9, 77)])
def test_a_word_holds_the_whole_condition(condition: Condition) -> None:
    assert 0 <= condition.word() < 1 << 63
    assert Condition.of(condition.word()) == condition


def test_processes_lose_no_failure_and_no_probe() -> None:
    rig = Rig(Shm, Resilience(cb_failure_threshold=1000, cb_success_threshold=60, cb_timeout_s=1.0))
    assert fork(rig.fail, times=150) == 600
    assert rig.breaker.condition(0).count == 600
    for _ in range(400):
        rig.fail()
    rig.now_ms += 1000
    assert fork(rig.take, times=40) == 60


def fork(work: object, *, times: int) -> int:
    """Calls `work` in four processes at once; gives how often it did not give False."""
    children = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            os._exit(sum(work() is not False for _ in range(times)))  # type: ignore[operator]
        children.append(pid)
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)
