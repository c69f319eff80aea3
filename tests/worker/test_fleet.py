"""Engines that come and go while the gateway runs: registered, watched, drained, let go, and nothing left behind."""

import asyncio
import pathlib
import uuid
from array import array
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from smg.config.tree import Engines, Health, Server
from smg.engine import Load, ServerInfo
from smg.errors import InvalidValue
from smg.obs.shm import FIRST_WORKER_ROW, LOAD_FIELDS, Shm
from smg.worker import Edit, EnginePool, EngineSpec, EngineState, Fleet, HealthEdit, Registry, WorkerView, read_snapshot
from tests.shm.memory import shared_memory
from tests.worker.fake import FakeEngine, Rig, until

A, B = "grpc://a:1", "grpc://b:1"
Scene = Callable[[Fleet], Awaitable[None]]


def play(rig: Rig, scene: Scene, *, within_s: float = 60.0) -> None:
    async def main() -> None:
        async with asyncio.timeout(within_s):
            before = len(asyncio.all_tasks())
            fleet = rig.fleet()
            try:
                await scene(fleet)
            finally:
                await fleet.close()
            await until(lambda: len(asyncio.all_tasks()) == before)
        assert len(rig.closed) == len(rig.started)

    asyncio.run(main())


def api(url: str, **fields: object) -> EngineSpec:
    return EngineSpec(url=url, source="api", **fields)


def urls(rig: Rig) -> list[str]:
    return [record.url for record in read_snapshot(rig.folder).engines]


def state(rig: Rig, url: str) -> EngineState | None:
    record = rig.registry.get(url)
    return None if record is None else rig.registry.state(record)


def ready(rig: Rig, *wanted: str) -> Callable[[], bool]:
    return lambda: all(state(rig, url) is EngineState.READY for url in wanted)


def drained_rig(folder: pathlib.Path, *, settle_s: float = 60.0, **fields: object) -> Rig:
    rig = Rig(folder, **fields)
    rig.config = msgspec.structs.replace(rig.config, engines=Engines(worker_urls=rig.config.engines.worker_urls, drain_settle_s=settle_s))
    return rig


def test_an_engine_that_is_added_serves_and_goes_when_it_is_removed(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        fleet.add(api(B))
        assert urls(rig) == [A, B]
        await until(ready(rig, A, B))
        assert sorted(WorkerView(rig.shm, row=2, folder=tmp_path).models()) == ["m"]
        fleet.remove(B)
        assert state(rig, B) is EngineState.DRAINING
        assert fleet.watcher(B) is None
        await until(lambda: urls(rig) == [A])
        assert state(rig, B) is None
        assert ready(rig, A)()

    play(rig, scene)


def test_requests_of_a_removed_engine_run_to_their_end(tmp_path: pathlib.Path) -> None:
    rig = drained_rig(tmp_path, urls=(A, B))

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A, B))
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        record = rig.registry.get(B)
        assert record is not None
        view.candidates("m")
        lease = view.acquire(record.slot, 5)
        fleet.remove(B)
        assert [candidate.url for candidate in view.candidates("m")] == [A]
        await asyncio.sleep(0.4)
        assert state(rig, B) is EngineState.DRAINING
        lease.release()
        await until(lambda: urls(rig) == [A])

    play(rig, scene)


@pytest.mark.parametrize("good", [True, False])
def test_a_check_that_ends_late_does_not_bring_back_an_engine_that_drains(
    good: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's answer has come when its check is cancelled: what is made of it comes after the drain has begun."""
    rig = drained_rig(tmp_path)
    rig.config = msgspec.structs.replace(rig.config, health=Health(success_threshold=1, failure_threshold=1, startup_timeout_s=0.0001))
    asked, told = asyncio.Event(), asyncio.Event()

    async def late(engine: FakeEngine) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if told.is_set():
                raise
            told.set()
        return good

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A))
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        view.candidates("m")
        lease = view.acquire(0, 5)
        monkeypatch.setattr(FakeEngine, "health", late)
        watcher = fleet.watcher(A)
        assert watcher is not None
        watcher.hurry()
        await asked.wait()
        fleet.remove(A)
        await told.wait()
        ends = rig.shm.generation()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (state(rig, A), rig.shm.generation()) == (EngineState.DRAINING, ends)
        assert not view.candidates("m")
        lease.release()
        await until(lambda: urls(rig) == [])
        assert state(rig, A) is None

    play(rig, scene)


def test_draining_has_an_end(tmp_path: pathlib.Path) -> None:
    rig = drained_rig(tmp_path, settle_s=0.2)

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A))
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        view.candidates("m")
        lease = view.acquire(0, 5)
        fleet.remove(A)
        await until(lambda: urls(rig) == [])
        lease.release()

    play(rig, scene)


def test_an_engine_that_drains_is_taken_back(tmp_path: pathlib.Path) -> None:
    rig = drained_rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        fleet.add(api(B))
        await until(ready(rig, A, B))
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        view.candidates("m")
        lease = view.acquire(1, 5)
        fleet.remove(B)
        fleet.add(api(B))
        await until(ready(rig, B))
        lease.release()
        await asyncio.sleep(0.3)
        assert ready(rig, B)()

    play(rig, scene)


def test_what_the_configuration_names_stays_away_when_it_was_removed(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A))
        fleet.remove(A)
        assert read_snapshot(tmp_path).edits[A].removed, "a control process that comes next must know"
        await until(lambda: urls(rig) == [])
        fleet.replace("config", [EngineSpec(url=A)])
        assert urls(rig) == []
        fleet.add(api(A))
        await until(ready(rig, A))

    play(rig, scene)


def test_changes_are_published_and_health_begins_anew(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A))
        watcher = fleet.watcher(A)
        fleet.edit(A, Edit(labels=(("zone", "a"),), priority=3))
        record = rig.registry.get(A)
        assert record is not None
        assert (record.labels, record.priority, record.model) == ((("zone", "a"),), 3, "m")
        assert fleet.watcher(A) is watcher
        fleet.edit(A, Edit(health=HealthEdit(check_interval_s=0.05)))
        assert fleet.watcher(A) is not watcher
        assert ready(rig, A)()
        checks = rig.checks
        await until(lambda: rig.checks > checks + 5)
        assert read_snapshot(tmp_path).engines[0].priority == 3

    play(rig, scene)


def test_an_engine_is_named_as_it_is_to_be_served(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, urls=())

    async def scene(fleet: Fleet) -> None:
        fleet.add(api(A, served_as="other", served_aliases=("short",)))
        await until(ready(rig, A))
        [record] = read_snapshot(tmp_path).engines
        assert (record.model, record.aliases) == ("other", ("short", "m"))

    play(rig, scene)


def test_there_is_room_for_so_many(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, urls=(), shm=Shm(shared_memory(rows=4, engines=2)))

    async def scene(fleet: Fleet) -> None:
        fleet.replace("file", [EngineSpec(url=f"grpc://f:{port}", source="file") for port in range(3)])
        await until(lambda: len(urls(rig)) == 2)
        with pytest.raises(InvalidValue, match="room for 2"):
            fleet.add(api(A))
        fleet.replace("file", [])
        await until(lambda: urls(rig) == [])
        fleet.add(api(A))
        await until(ready(rig, A))

    play(rig, scene)


def test_a_new_control_process_has_what_the_old_one_was_told(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, urls=(A, B))

    async def before(fleet: Fleet) -> None:
        fleet.add(api("grpc://c:1"))
        fleet.replace("file", [EngineSpec(url="grpc://d:1", source="file")])
        await until(ready(rig, A, B, "grpc://c:1", "grpc://d:1"))
        fleet.edit(A, Edit(priority=9))
        fleet.remove(B)
        await until(lambda: B not in urls(rig))
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        view.candidates("m")
        slot = rig.registry.get("grpc://c:1").slot  # type: ignore[union-attr]
        view.acquire(slot, 1)

    play(rig, before)
    again = Rig(tmp_path, urls=(A, B), shm=rig.shm)
    again.registry = Registry(rig.shm, folder=tmp_path, earlier=read_snapshot(tmp_path))

    async def after(fleet: Fleet) -> None:
        assert ready(again, A, "grpc://c:1", "grpc://d:1")()
        fleet.replace("config", [EngineSpec(url=A), EngineSpec(url=B)])
        assert state(again, B) is None
        assert again.registry.get(A).priority == 9  # type: ignore[union-attr]
        fleet.replace("file", [])
        await until(lambda: urls(again) == [A, "grpc://c:1"])

    play(again, after)


def test_an_engine_that_drains_goes_on_draining_in_the_next_control_process(tmp_path: pathlib.Path) -> None:
    rig = drained_rig(tmp_path)

    async def before(fleet: Fleet) -> None:
        fleet.add(api(B))
        await until(ready(rig, B))
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        view.candidates("m")
        rig.lease = view.acquire(1, 1)  # type: ignore[attr-defined]
        fleet.remove(B)

    play(rig, before)
    again = Rig(tmp_path, shm=rig.shm)
    again.registry = Registry(rig.shm, folder=tmp_path, earlier=read_snapshot(tmp_path))

    async def after(fleet: Fleet) -> None:
        assert state(again, B) is EngineState.DRAINING
        rig.lease.release()  # type: ignore[attr-defined]
        await until(lambda: urls(again) == [A])

    play(again, after)


def test_hundreds_come_and_go_and_leave_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg.worker.fleet.LOOK_S", 0.005)
    rig = Rig(tmp_path, health=Health(success_threshold=1))

    async def scene(fleet: Fleet) -> None:
        tasks = len(asyncio.all_tasks())
        for first in range(1, 500, 7):
            some = [f"grpc://b:{port}" for port in range(first, first + 7)]
            for url in some:
                fleet.add(api(url))
            if first % 2:  # the others are taken away before they were asked anything
                await until(ready(rig, *some))
            for url in some:
                fleet.remove(url)
            await until(lambda: urls(rig) == [A])
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        await until(lambda: len(rig.started) - len(rig.closed) == 1)
        assert rig.registry.room() == rig.shm.engines - 1
        assert ready(rig, A)()

    play(rig, scene, within_s=60)


def test_a_model_whose_engines_left_is_remembered_until_it_is_back(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A))
        fleet.remove(A)
        await until(lambda: urls(rig) == [])
        assert list(read_snapshot(tmp_path).departed) == ["m"]
        fleet.add(api(B))
        await until(ready(rig, B))
        assert not read_snapshot(tmp_path).departed

    play(rig, scene)


@pytest.mark.parametrize("served", ["m", "other"])
def test_engines_over_http_are_looked_at_when_one_over_grpc_serves_their_model(served: str, tmp_path: pathlib.Path) -> None:
    """The next check of itself would be in a minute."""
    url = "http://h:1"
    rig = Rig(tmp_path, urls=(url,))
    rig.server = ServerInfo()

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, url))
        checks = rig.checks
        fleet.add(api(A, served_as=served))
        await until(ready(rig, A))
        if served == "m":
            await until(lambda: state(rig, url) is EngineState.NOT_READY)
            assert "must be of one kind" in fleet.watcher(url).reason  # type: ignore[union-attr]
        else:
            assert (rig.checks - checks, state(rig, url)) == (Health().success_threshold, EngineState.READY)

    play(rig, scene)


@pytest.mark.parametrize(("url", "served"), [(A, "other"), ("http://h:2", "m")])
def test_engines_over_http_are_left_alone_when_nothing_changes_for_them(url: str, served: str, tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, urls=("http://h:1",))
    rig.server = ServerInfo()

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, "http://h:1"))
        hurried: list[str] = []
        watcher = fleet.watcher("http://h:1")
        assert watcher is not None
        watcher.hurry = lambda: hurried.append("")  # type: ignore[method-assign]
        fleet.add(api(url, served_as=served))
        await until(ready(rig, url))
        assert not hurried

    play(rig, scene)


def ranked(folder: pathlib.Path) -> Rig:
    rig = Rig(folder)
    rig.config = msgspec.structs.replace(rig.config, engines=Engines(worker_urls=(A,), dp_aware=True))
    rig.loads = [Load(rank=0, running=1), Load(rank=1, running=7)]
    return rig


def test_each_rank_of_an_engine_is_routed_to_by_itself(tmp_path: pathlib.Path) -> None:
    rig = ranked(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: len(urls(rig)) == 2)
        await until(lambda: all(rig.registry.state(record) is EngineState.READY for record in rig.registry.records()))
        first, second = read_snapshot(tmp_path).engines
        assert (first.url, first.rank, first.address, second.url, second.rank) == (f"{A}@0", 0, A, f"{A}@1", 1)
        before = str(uuid.uuid5(uuid.NAMESPACE_URL, A))  # what POST answered, when nobody knew of ranks
        assert len({first.id, second.id, before}) == 3
        assert [rig.registry.find(number) for number in (before, second.id, "x")] == [rig.registry.get(A), rig.registry.ranks(A)[1], None]
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        assert [candidate.url for candidate in view.candidates("m")] == [f"{A}@0", f"{A}@1"]
        fields = array("q", [0] * len(LOAD_FIELDS))
        await until(lambda: (rig.shm.load(second.slot, fields), fields[0] == 7)[1])
        assert len(rig.started) == 1
        fleet.edit(A, Edit(labels=(("zone", "a"),)))
        assert [record.labels for record in read_snapshot(tmp_path).engines] == [(("zone", "a"),)] * 2
        rig.healthy = False
        view.suspect(second.slot)
        fleet.hurry()
        await until(lambda: not view.candidates("m"))
        fleet.remove(A)
        await until(lambda: urls(rig) == [])

    play(rig, scene)


def test_an_engine_that_comes_back_with_fewer_ranks(tmp_path: pathlib.Path) -> None:
    rig = ranked(tmp_path)

    async def scene(fleet: Fleet) -> None:
        await until(lambda: len(urls(rig)) == 2)
        await until(lambda: all(rig.registry.state(record) is EngineState.READY for record in rig.registry.records()))
        rig.up = False
        WorkerView(rig.shm, row=2, folder=tmp_path).suspect(0)
        fleet.hurry()
        await until(lambda: rig.shm.engine_state(0) == EngineState.NOT_READY)
        rig.server = ServerInfo(version="1.3", data_parallel_size=1)
        rig.up = True
        await until(lambda: urls(rig) == [A])
        await until(ready(rig, A))
        assert rig.shm.engine_state(1) == EngineState.DRAINING

    play(rig, scene)


def test_an_engine_that_fails_is_taken_away_for_good(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, health=Health(startup_timeout_s=0.05, remove_unhealthy=True))
    rig.up = False

    async def scene(fleet: Fleet) -> None:
        await until(lambda: urls(rig) == [])
        rig.up = True
        fleet.replace("config", [EngineSpec(url=A)])
        assert urls(rig) == []

    play(rig, scene)


def test_engines_that_come_and_go_leave_no_metrics_behind(tmp_path: pathlib.Path) -> None:
    """500 of them were more than the table of series holds."""
    rig = drained_rig(tmp_path, settle_s=0.0, urls=(), shm=Shm(shared_memory(rows=4, engines=8, series=16)))
    view = WorkerView(rig.shm, row=FIRST_WORKER_ROW, folder=rig.folder)

    async def scene(fleet: Fleet) -> None:
        for number in range(20):
            url = f"grpc://engine-{number}:1"
            fleet.add(api(url))
            await until(ready(rig, url))
            view.refresh()
            record = rig.registry.get(url)
            assert record is not None
            for outcome in ("success", "failure"):
                lease = view.acquire(record.slot, 1)
                lease.count(outcome)
                lease.fail()
                lease.release()
            assert rig.shm.counts(record.slot)[:2] == (1, 1)
            fleet.remove(url)
            await until(lambda url=url: state(rig, url) is None)
        assert rig.shm.dropped() == 0
        assert not [key for key, _ in rig.shm.totals() if b"engine-" in key]

    play(rig, scene)


def test_engines_of_the_configuration_get_the_gateways_key_until_they_have_their_own(tmp_path: pathlib.Path) -> None:
    rig = Rig(tmp_path, urls=(A, B))
    rig.config = msgspec.structs.replace(rig.config, server=Server(api_key=("gateways", "another")))

    def keys(url: str) -> list[str | None]:
        return [engine.options.api_key for engine in rig.started if engine.url == url]

    async def scene(fleet: Fleet) -> None:
        await until(ready(rig, A, B))
        assert keys(A) == keys(B) == ["gateways"]
        fleet.edit(A, Edit(api_key="its own"))
        await until(lambda: keys(A) == ["gateways", "its own"])
        assert keys(B) == ["gateways"]
        view = WorkerView(rig.shm, row=2, folder=tmp_path)
        pool = EnginePool(rig.config, open_driver=rig.open_driver)
        for record in view.engines("m"):
            await pool.get(record)
        assert (keys(A)[2:], keys(B)[1:]) == (["its own"], ["gateways"]), "data workers send the same"
        fleet.edit(A, Edit(api_key=""))
        await until(lambda: keys(A)[3:] == ["gateways"])
        await pool.close()

    play(rig, scene)
