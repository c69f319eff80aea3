"""The watch over engines: detection, states, tokenizers, loads."""

import asyncio
import pathlib
from array import array
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from smg.config.tree import Health, Routing
from smg.engine import Load, ModelInfo, ServerInfo
from smg.errors import Unimplemented
from smg.obs.metrics import render
from smg.obs.shm import LOAD_FIELDS
from smg.worker import EngineState, Fleet, Registry, WorkerView, read_snapshot, watch
from tests.worker.fake import FakeEngine, Rig, archive, until

FAST = Health(check_interval_s=0.2, failure_threshold=2)


def watched(rig: Rig, scene: Callable[[Fleet], Awaitable[None]]) -> None:
    async def main() -> None:
        fleet = rig.fleet()
        try:
            await scene(fleet)
        finally:
            await fleet.close()
        assert len(rig.closed) == len(rig.started)

    asyncio.run(main())


def state(rig: Rig) -> EngineState:
    return EngineState(rig.shm.engine_state(0))


def test_an_engine_is_ready_at_once_and_described(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await fleet.seen(within_s=20)
        assert state(rig) is EngineState.READY
        assert rig.checks == 2
        (record,) = read_snapshot(tmp_path).engines
        assert (record.runtime, record.model, record.aliases, record.context_length) == ("fake", "m", (), 100)
        assert record.server == ServerInfo(version="1.2", data_parallel_size=2)
        assert record.tokenizer_dir is not None
        assert (pathlib.Path(record.tokenizer_dir) / "tokenizer.json").exists()

    watched(rig, scene)


def test_an_engine_that_comes_late_is_found(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)
    rig.up = False

    async def scene(fleet: Fleet) -> None:
        await fleet.seen(within_s=20)
        assert state(rig) is EngineState.PENDING
        rig.up = True
        await until(lambda: state(rig) is EngineState.READY)

    watched(rig, scene)


def test_a_check_that_says_no_is_no_success(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)
    rig.healthy = False

    async def scene(fleet: Fleet) -> None:
        await until(lambda: rig.checks >= 4)
        assert state(rig) is EngineState.PENDING

    watched(rig, scene)


def test_a_suspected_engine_is_checked_at_once_and_again_until_it_is_sure(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)
        checks = rig.checks
        rig.up = False
        await asyncio.sleep(0.1)
        assert rig.checks == checks
        WorkerView(rig.shm, row=2, folder=tmp_path).suspect(0)
        fleet.hurry()
        await until(lambda: state(rig) is EngineState.NOT_READY)
        rig.up = True
        rig.info = ModelInfo(served_name="other")
        await until(lambda: state(rig) is EngineState.READY)
        assert read_snapshot(tmp_path).engines[0].model == "other"

    watched(rig, scene)


def test_checks_go_on_at_the_interval(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, health=FAST)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: rig.checks >= 5)
        rig.up = False
        await until(lambda: state(rig) is EngineState.NOT_READY)

    watched(rig, scene)


def test_without_checks_a_described_engine_is_ready(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, health=Health(disable_check=True))
    rig.healthy = False

    async def scene(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)
        assert rig.checks == 0

    watched(rig, scene)


def test_loads_are_summed_over_ranks(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: rig.polls == 1)
        fields = array("q", [0] * len(LOAD_FIELDS))
        await until(lambda: (rig.shm.load(0, fields), fields[6] > 0)[1])
        assert list(fields[:6]) == [4, 2, 5, 10, 0, 1500]

    watched(rig, scene)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_requests_of_our_own_are_not_taken_for_others(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Those that begin or end while the engine is asked may be in its answer."""
    rig = Rig(tmp_path)
    asked = FakeEngine.loads

    async def loads(self: FakeEngine) -> list[Load]:
        (rig.shm.release if when == "before" else rig.shm.acquire)(2, 0, rig.shm.engine_epoch(0), 100)
        return await asked(self)

    monkeypatch.setattr(FakeEngine, "loads", loads)

    async def scene(fleet: Fleet) -> None:
        fields = array("q", [0] * len(LOAD_FIELDS))
        await until(lambda: (rig.shm.load(0, fields), fields[6] > 0)[1])
        assert list(fields[7:]) == [1, 100]

    async def begun() -> None:
        fleet = rig.fleet()
        if when == "before":
            rig.shm.acquire(2, 0, rig.shm.engine_epoch(0), 100)
        try:
            await scene(fleet)
        finally:
            await fleet.close()

    asyncio.run(begun())


def test_loads_of_an_engine_that_left_are_not_its_successors(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot begins another life while it is asked."""
    rig = Rig(tmp_path)
    asked = FakeEngine.loads

    async def loads(self: FakeEngine) -> list[Load]:
        if rig.polls == 0:
            rig.shm.open_engine(0, EngineState.READY)
        return await asked(self)

    monkeypatch.setattr(FakeEngine, "loads", loads)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: rig.polls == 1)
        fields = array("q", [0] * len(LOAD_FIELDS))
        rig.shm.load(0, fields)
        assert list(fields) == [0] * len(LOAD_FIELDS)

    watched(rig, scene)


def test_an_engine_without_a_model_stays_away(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)
    rig.info = ModelInfo()

    async def scene(fleet: Fleet) -> None:
        await fleet.seen(within_s=20)
        assert state(rig) is EngineState.PENDING
        rig.info = ModelInfo(model_path="/nowhere/n")
        await until(lambda: state(rig) is EngineState.READY)
        assert read_snapshot(tmp_path).engines[0].model == "n"

    watched(rig, scene)


@pytest.mark.parametrize("answer", [Unimplemented("none"), b"no zip", archive({"../x": b""})])
def test_a_tokenizer_that_cannot_be_had_is_no_reason_to_stay_away(tmp_path: pathlib.Path, answer: Unimplemented | bytes) -> None:
    rig = Rig(tmp_path)
    rig.archive = answer

    async def scene(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)
        assert read_snapshot(tmp_path).engines[0].tokenizer_dir is None

    watched(rig, scene)


@pytest.mark.parametrize("path", ["/a\0b", "\0", "x" * 100_000])
def test_a_path_that_is_none_is_not_looked_at(tmp_path: pathlib.Path, path: str) -> None:
    """An engine that says one ended the control process."""
    rig = Rig(tmp_path)
    rig.info = ModelInfo(served_name="m", model_path=path, tokenizer_path=path)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)
        assert rig.fetched == 1

    watched(rig, scene)


def test_a_tokenizer_that_can_be_read_here_is_not_fetched(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)
    rig.info = ModelInfo(served_name="m", tokenizer_path=str(tmp_path))

    async def scene(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)
        assert rig.fetched == 0

    watched(rig, scene)


def test_after_a_crash_of_the_watch_ready_engines_stay_ready(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def ready(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)

    watched(rig, ready)
    again = Rig(tmp_path, shm=rig.shm)
    again.registry = Registry(rig.shm, folder=tmp_path, earlier=read_snapshot(tmp_path))

    async def scene(fleet: Fleet) -> None:
        assert state(rig) is EngineState.READY
        await fleet.seen(within_s=20)
        assert state(rig) is EngineState.READY
        assert again.fetched == 0

    watched(again, scene)


def test_engines_are_watched_side_by_side(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, urls=tuple(f"grpc://a:{port}" for port in range(1, 9)))

    async def scene(fleet: Fleet) -> None:
        await fleet.seen(within_s=20)
        assert {rig.registry.state(record) for record in rig.registry.records()} == {EngineState.READY}
        assert rig.fetched == 8

    watched(rig, scene)


@pytest.mark.parametrize("where", ["health", "loads"])
def test_a_fault_in_one_watch_is_told_once_and_leaves_the_others_be(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """It ended the control process, and with it the watch over all engines."""
    monkeypatch.setattr(watch, "FAULT_PAUSE_S", 0.001)
    monkeypatch.setattr(watch, "LONGEST_FAULT_PAUSE_S", 0.01)
    rig = Rig(tmp_path, urls=("grpc://a:1", "grpc://b:1"), health=Health(check_interval_s=0.01))
    rig.config = msgspec.structs.replace(rig.config, routing=Routing(load_monitor_interval_s=0.01))
    sound = getattr(FakeEngine, where)
    faults = []

    async def stumble(self: FakeEngine) -> object:
        if self.url != "grpc://a:1" or len(faults) >= 5:
            return await sound(self)
        faults.append(rig.checks)
        raise ValueError(f"nobody foresaw this, nor {len(faults)}")

    monkeypatch.setattr(FakeEngine, where, stumble)

    async def scene(fleet: Fleet) -> None:
        over = asyncio.create_task(fleet.run_until(asyncio.Event()))
        await until(lambda: len(faults) == 5)
        fleet.watcher("grpc://b:1").seen.clear()
        await until(fleet.watcher("grpc://b:1").seen.is_set)
        await until(lambda: {rig.registry.state(record) for record in rig.registry.records()} == {EngineState.READY})
        await until(lambda: fleet.watcher("grpc://a:1").reason == "")
        assert not over.done()
        over.cancel()

    watched(rig, scene)
    told = [record for record in caplog.records if "stumbled" in record.message]
    assert [(record.engine, record.exc_info[0]) for record in told] == [("grpc://a:1", ValueError)]
    assert 'smg_worker_health_checks_total{worker_type="regular",result="fault"} 5' in render(rig.shm, gauges=()).decode()


def test_a_fault_says_nothing_of_an_engine_but_why_it_is_not_checked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, health=FAST)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: state(rig) is EngineState.READY)
        monkeypatch.setattr(watch, "FAULT_PAUSE_S", 0.001)
        monkeypatch.setattr(rig, "fail", lambda: 1 // 0)
        fleet.watcher("grpc://a:1").hurry()
        await until(lambda: len(rig.closed) == 1)
        assert fleet.watcher("grpc://a:1").reason.startswith("a fault of the gateway: ZeroDivisionError: ")
        assert state(rig) is EngineState.READY

    watched(rig, scene)


def test_a_driver_that_cannot_be_closed_ends_nothing_else(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)

    async def close(self: FakeEngine) -> None:
        rig.closed.append(self)
        raise RuntimeError("cannot be closed")

    monkeypatch.setattr(FakeEngine, "close", close)

    async def scene(fleet: Fleet) -> None:
        over = asyncio.create_task(fleet.run_until(asyncio.Event()))
        await until(lambda: state(rig) is EngineState.READY)
        fleet.replace("config", ())
        await until(lambda: rig.registry.records() == [])
        assert not over.done()
        over.cancel()

    watched(rig, scene)
