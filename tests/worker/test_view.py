"""The registry as data workers see it, and what they count."""

import os
import pathlib
from array import array

import pytest

from smg.engine import ModelInfo
from smg.errors import ConfigError
from smg.obs.shm import LOAD_FIELDS, PlainShm, Shm, now_ms
from smg.worker import EngineRecord, EngineSpec, EngineState, Registry, WorkerView, read_snapshot
from smg.worker.registry import MOST_DEPARTED
from tests.shm.memory import shared_memory

URLS = ("grpc://a:1", "grpc://b:1")


@pytest.fixture(params=[Shm, PlainShm], ids=["native", "plain"])
def shm(request: pytest.FixtureRequest) -> Shm:
    made: Shm = request.param(shared_memory(rows=5, engines=4, series=8, cells=64))
    return made


@pytest.fixture
def registry(shm: Shm, tmp_path: pathlib.Path) -> Registry:
    made = Registry(shm, folder=tmp_path)
    for record in made.add(specs(*URLS)):
        describe(made, record, "m")
        made.set_state(record.url, EngineState.READY)
    return made


def specs(*urls: str) -> list[EngineSpec]:
    return [EngineSpec(url=url) for url in urls]


def describe(registry: Registry, record: EngineRecord, model: str) -> EngineRecord:
    fields = {name: getattr(record, name) for name in ("slot", "epoch", "id", "url")}
    described = EngineRecord(**fields, runtime="vllm", model=model, info=ModelInfo(served_name=model))
    registry.describe(described)
    return described


def view(shm: Shm, folder: pathlib.Path, *, row: int = 2, wake_fd: int | None = None) -> WorkerView:
    return WorkerView(shm, row=row, folder=folder, wake_fd=wake_fd)


def test_candidates_are_the_ready_engines_of_the_model(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    mine = view(shm, tmp_path)
    assert [candidate.url for candidate in mine.candidates("m")] == list(URLS)
    registry.set_state(URLS[0], EngineState.NOT_READY)
    assert [candidate.url for candidate in mine.candidates("m")] == [URLS[1]]
    assert not mine.candidates("other")
    assert mine.state(0) is EngineState.NOT_READY


def test_loads_are_summed_over_processes(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    one, other = view(shm, tmp_path), view(shm, tmp_path, row=3)
    one.candidates("m")
    other.candidates("m")
    first, second = one.acquire(0, 10), other.acquire(0, 5)
    assert [(candidate.requests, candidate.tokens) for candidate in one.candidates("m")] == [(2, 15), (0, 0)]
    assert registry.inflight(registry.records()[0]) == (2, 15)
    first.release()
    first.release()
    assert [(candidate.requests, candidate.tokens) for candidate in other.candidates("m")] == [(1, 5), (0, 0)]
    second.release()
    assert [(candidate.requests, candidate.tokens) for candidate in other.candidates("m")] == [(0, 0), (0, 0)]


def test_what_an_engine_said_long_ago_says_nothing(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    mine = WorkerView(shm, row=2, folder=tmp_path, stale_ms=30_000)
    for age_ms, requests in ((1_000, 5), (31_000, 0)):
        said = {"running": 2, "waiting": 3, "used_tokens": 50, "max_tokens": 100, "polled_ms": now_ms() - age_ms}
        shm.set_load(0, array("q", [said.get(name, 0) for name in LOAD_FIELDS]))
        first = mine.candidates("m")[0]
        assert (first.foreign_requests, first.usage) == (requests, 0.5 if requests else 0.0)


def test_the_registry_is_read_again_only_when_it_changed(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    mine, heard = view(shm, tmp_path), []
    mine.on_change(heard.append)
    assert mine.refresh()
    assert not mine.refresh()
    registry.describe(registry.records()[0])
    assert not mine.refresh()
    describe(registry, registry.records()[0], "n")
    assert sorted(mine.models()) == ["m", "n"]
    assert len(heard) == 2
    assert read_snapshot(tmp_path).generation == shm.generation()


def test_engines_that_were_not_asked_yet_belong_to_no_model(shm: Shm, tmp_path: pathlib.Path) -> None:
    Registry(shm, folder=tmp_path).add(specs(*URLS))
    assert view(shm, tmp_path).models() == {}
    assert len(read_snapshot(tmp_path).engines) == 2


def test_a_removed_engine_takes_no_more_requests_and_its_slot_is_reused_last(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    mine = view(shm, tmp_path)
    mine.candidates("m")
    lease = mine.acquire(0, 7)
    records = registry.add(specs(URLS[1], "grpc://c:1"))
    assert [record.slot for record in records] == [1, 2]
    assert len(mine.candidates("m")) == 2
    registry.retain((URLS[1], "grpc://c:1"))
    assert [candidate.url for candidate in mine.candidates("m")] == [URLS[1]]
    registry.retain(())
    records = registry.add(specs(*(f"grpc://d:{port}" for port in range(4))))
    assert sorted(record.slot for record in records) == [0, 1, 2, 3]
    assert records[0].slot == 3, "one that nobody had before"
    (reused,) = [record for record in records if record.slot == 0]
    assert registry.inflight(reused) == (0, 0)
    lease.release()
    assert registry.inflight(reused) == (0, 0)


def test_of_models_that_left_only_so_many_are_remembered(shm: Shm, tmp_path: pathlib.Path) -> None:
    registry = Registry(shm, folder=tmp_path)
    for number in range(MOST_DEPARTED + 5):
        (record,) = registry.add(specs(f"grpc://e:{number + 1}"))
        describe(registry, record, f"m{number}")
        registry.drop((record.url,))
    departed = list(read_snapshot(tmp_path).departed)
    assert (len(departed), departed[-1]) == (MOST_DEPARTED, f"m{MOST_DEPARTED + 4}")


def test_a_late_first_token_does_not_touch_what_the_next_engine_of_a_slot_counts(
    shm: Shm, registry: Registry, tmp_path: pathlib.Path
) -> None:
    mine = view(shm, tmp_path)
    mine.candidates("m")
    late = mine.acquire(0, 7)
    registry.retain(())
    for record in registry.add(specs(*(f"grpc://d:{port}" for port in range(4)))):
        describe(registry, record, "m")
        registry.set_state(record.url, EngineState.READY)
    (reused,) = [record for record in registry.records() if record.slot == 0]
    mine.candidates("m")
    first = mine.acquire(0, 5)
    late.answered()
    assert registry.inflight(reused) == (1, 5)
    second = mine.acquire(0, 3)
    for lease in (first, second, late):
        lease.release()
    assert registry.inflight(reused) == (0, 0)


def test_a_stale_view_does_not_offer_a_slot_that_was_reused(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    mine = view(shm, tmp_path)
    assert len(mine.candidates("m")) == 2
    shm.open_engine(0, EngineState.READY)  # the next life of the slot, of which the snapshot does not know yet
    assert [candidate.slot for candidate in mine.candidates("m")] == [1]


def test_more_engines_than_slots_are_a_mistake(shm: Shm, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="more than 4"):
        Registry(shm, folder=tmp_path).add(specs(*(f"grpc://d:{port}" for port in range(5))))


def test_a_new_control_process_keeps_slots_states_and_counts(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    mine = view(shm, tmp_path)
    mine.candidates("m")
    mine.acquire(1, 3)
    after = Registry(shm, folder=tmp_path, earlier=read_snapshot(tmp_path))
    assert after.add(specs(*URLS)) == registry.records()
    assert [after.state(record) for record in after.records()] == [EngineState.READY] * 2
    assert after.inflight(after.records()[1]) == (1, 3)
    assert len(mine.candidates("m")) == 2


def test_a_suspected_engine_wakes_the_control_process_once(shm: Shm, registry: Registry, tmp_path: pathlib.Path) -> None:
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
    mine = view(shm, tmp_path, wake_fd=wake_fd)
    mine.suspect(1)
    mine.suspect(1)
    assert os.eventfd_read(wake_fd) == 1
    assert not shm.take_suspect(0)
    assert shm.take_suspect(1)
    mine.suspect(1)
    assert os.eventfd_read(wake_fd) == 1
    os.close(wake_fd)
