"""Who may have a request: what a view keeps between requests against what shared memory says, after any changes."""

import pathlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg.config.tree import Resilience
from smg.obs.loads import loads_of
from smg.obs.shm import PlainShm, Shm, now_ms
from smg.types.candidate import Candidates, Cost
from smg.worker import EngineRecord, EngineState, Registry, WorkerView
from smg.worker.breaker import HALF_OPEN, OPEN, Breaker
from smg.worker.candidates import Group
from tests.shm.memory import shared_memory
from tests.worker.test_view import describe, specs

ENGINES, READY = 4, EngineState.READY.value
COST = Cost(64, 1024, 300.0, 0.95)
SETTINGS = Resilience(cb_failure_threshold=2, cb_success_threshold=2, cb_timeout_s=1.0)


class Rig:
    """Engines of one model in a block, a group that keeps what it has found, and a clock that is set by hand."""

    def __init__(self, body: type[Shm] = Shm) -> None:
        self.shm = body(shared_memory(rows=5, engines=ENGINES, series=8, cells=64))
        self.now_ms = 10_000
        self.breaker = Breaker(self.shm, config=SETTINGS, clock=lambda: self.now_ms)
        epochs = [self.shm.open_engine(slot, READY) for slot in range(ENGINES)]
        records = [EngineRecord(slot=slot, epoch=epoch, id=str(slot), url=f"grpc://engine-{slot}") for slot, epoch in enumerate(epochs)]
        self.group = Group(records, loads=loads_of(self.shm), breaker=self.breaker, stale_ms=30_000)

    def kept(self) -> Candidates:
        return self.group.candidates(self.shm.changes())

    def anew(self) -> list[int]:
        """The slots that may have a request, by the definition."""
        ready = [record.slot for record in self.group.records if self.shm.engine_state(record.slot) == READY]
        same = [slot for slot in ready if self.shm.engine_epoch(slot) == self.group.records[slot].epoch]
        return [slot for slot in same if not self.breaker.wait_ms(slot)]

    def probes(self) -> list[int]:
        return [slot for slot in self.anew() if self.breaker.condition(slot).state]


@pytest.fixture(params=[Shm, PlainShm], ids=["native", "plain"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


slots = st.integers(0, ENGINES - 1)
CHANGES = st.one_of(
    st.tuples(st.just("state"), slots, st.sampled_from([READY, READY, EngineState.NOT_READY.value])),
    st.tuples(st.just("fail"), slots, st.booleans()),
    st.tuples(st.just("succeed"), slots, st.booleans()),
    st.tuples(st.just("probe"), slots, st.just(0)),
    st.tuples(st.just("back"), slots, st.just(0)),
    st.tuples(st.just("reopen"), slots, st.just(0)),
    st.tuples(st.just("wait"), slots, st.sampled_from([1, 400, 1100])),
)


def change(rig: Rig, what: str, slot: int, how: int) -> None:
    epoch = rig.shm.engine_epoch(slot)
    if what == "state":
        rig.shm.set_engine_state(slot, how)
    elif what == "fail":
        rig.breaker.fail(slot, epoch=epoch, probe=bool(how))
    elif what == "succeed":
        rig.breaker.succeed(slot, epoch=epoch, probe=bool(how))
    elif what == "probe":
        rig.breaker.take_probe(slot, epoch=epoch)
    elif what == "back":
        rig.breaker.came_back(slot, epoch=epoch)
    elif what == "reopen":
        rig.shm.open_engine(slot, READY)
    else:
        rig.now_ms += how


@settings(max_examples=300, deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_what_is_kept_is_what_would_be_found(changes: list[tuple[str, int, int]]) -> None:
    rig = Rig()
    for one in changes:
        change(rig, *one)
        kept = rig.kept()
        assert list(kept.slots) == rig.anew(), one
        assert [kept.slots[index] for index in range(len(kept)) if kept.is_probe(index)] == rig.probes()


def test_the_same_object_is_given_while_only_loads_change(rig: Rig) -> None:
    first = rig.kept()
    rig.shm.acquire(2, 1, rig.shm.engine_epoch(1), 500)
    rig.shm.set_engine_state(1, READY)
    rig.breaker.fail(1, epoch=rig.shm.engine_epoch(1))  # the first of two
    assert rig.kept() is first
    assert (first[1].requests, first[1].tokens) == (1, 500)
    rig.breaker.fail(1, epoch=rig.shm.engine_epoch(1))
    assert rig.breaker.condition(1).state == OPEN
    without = rig.kept()
    assert list(without.slots) == [0, 2, 3]
    assert rig.kept() is without
    rig.now_ms += 1000
    probing = rig.kept()
    assert list(probing.slots) == [0, 1, 2, 3]
    assert [probing[index].probe for index in range(4)] == [False, True, False, False]
    assert rig.kept() is probing
    assert rig.breaker.take_probe(1, epoch=rig.shm.engine_epoch(1))
    for _ in range(2):
        rig.breaker.succeed(1, epoch=rig.shm.engine_epoch(1), probe=True)
    closed = rig.kept()
    assert list(closed.slots) == [0, 1, 2, 3]
    assert not any(one.probe for one in closed)


def test_the_same_object_is_given_while_only_other_engines_change(rig: Rig) -> None:
    other = Group(rig.group.records[:2], loads=loads_of(rig.shm), breaker=rig.breaker, stale_ms=30_000)
    kept = other.candidates(rig.shm.changes())
    rig.shm.set_engine_state(3, EngineState.NOT_READY.value)
    assert other.candidates(rig.shm.changes()) is kept
    for _ in range(2):
        rig.breaker.fail(3, epoch=rig.shm.engine_epoch(3))
    kept = rig.kept()
    assert list(kept.slots) == [0, 1, 2]
    rig.now_ms += 1000  # the breaker of an engine that is not ready is nothing to look at
    assert rig.kept() is kept
    rig.shm.set_engine_state(3, READY)
    assert list(rig.kept().slots) == [0, 1, 2, 3]


def test_a_dead_process_may_have_changed_what_it_did_not_tell(rig: Rig) -> None:
    """It is killed between the change of a breaker and the count of it; its row is cleared then."""
    before = rig.shm.changes()
    rig.shm.clear_row(3)
    assert rig.shm.changes() == before + 1


def test_probes_are_known_of_some_of_the_candidates_too(rig: Rig) -> None:
    for _ in range(2):
        rig.breaker.fail(1, epoch=rig.shm.engine_epoch(1))
    rig.breaker.came_back(1, epoch=rig.shm.engine_epoch(1))
    assert rig.breaker.condition(1).state == HALF_OPEN
    some = rig.kept().without({0, 3})
    assert list(some.slots) == [1, 2]
    assert [some.is_probe(0), some.is_probe(1)] == [True, False]


@pytest.mark.parametrize(("age_ms", "untold"), [(1_000, 3), (31_000, 0)])
def test_live_loads_are_those_of_each_candidate(rig: Rig, age_ms: int, untold: int) -> None:
    for slot in range(ENGINES):
        rig.shm.acquire(2, slot, rig.shm.engine_epoch(slot), 100 * slot)
        rig.shm.set_load(slot, array("q", (5 + slot, 3, 97, 100, 0, 0, now_ms() - age_ms, 2, 50)))
    live = rig.kept()
    reference = Candidates(list(live))
    assert [one.foreign_untold for one in live] == [untold] * 4
    assert list(live.works(COST)) == list(reference.works(COST)) == [live.work(index, COST) for index in range(ENGINES)]
    some, expected = live.only([3, 1]), reference.only([3, 1])
    assert list(some) == list(expected)
    assert list(some.works(COST)) == list(expected.works(COST)) == [some.work(index, COST) for index in range(2)]
    assert (live.in_order, live.index_of, live.index_of_url) == (reference.in_order, reference.index_of, reference.index_of_url)


def test_engines_of_one_runtime(tmp_path: pathlib.Path, rig: Rig) -> None:
    registry = Registry(rig.shm, folder=tmp_path)
    for record in registry.add(specs("grpc://a:1", "grpc://b:1")):
        describe(registry, record, "m")
        registry.set_state(record.url, EngineState.READY)
    view = WorkerView(rig.shm, row=2, folder=tmp_path)
    assert view.candidates("m", runtime="vllm").urls == view.candidates("m").urls == ["grpc://a:1", "grpc://b:1"]
    assert not view.candidates("m", runtime="sglang")
