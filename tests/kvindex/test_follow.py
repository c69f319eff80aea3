"""KV events of simulated engines, through the real subscription, into the index: sharing, gaps, restarts, engines without."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from smg.config import Config
from smg.engine import GrpcEngine, KvBatch, KvBlock, KvStored
from smg.errors import EngineRejected, EngineUnavailable
from smg.kvindex import PrefixIndex
from smg.kvindex.follow import Follower, Followers
from smg.obs.metrics import render
from smg.obs.shm import Shm
from smg.sim.request import Submission
from smg.sim.server import Sim, start_sim
from smg.worker import EngineRecord, EngineSpec, EngineState, Registry
from tests.shm.memory import shared_memory

IDS = [300 + number % 500 for number in range(170)]
BLOCK = 16


class Stage:
    """A registry with one engine and its followers, as the control process has them."""

    def __init__(self, folder: Path) -> None:
        self.shm = Shm(shared_memory(rows=3, prefix_blocks=4096))
        self.index = PrefixIndex(self.shm)
        self.registry = Registry(self.shm, folder=folder)
        self.lost: list[int] = []
        self.followers = Followers(Config(), shm=self.shm, registry=self.registry, lost=self.lost.append)

    def add(self, url: str, runtime: str) -> EngineRecord:
        self.registry.add([EngineSpec(url=url)])
        record = self.registry.get(url)
        assert record is not None
        self.registry.describe(msgspec.structs.replace(record, runtime=runtime, model="m"))
        self.registry.set_state(url, EngineState.READY)
        return record

    def held(self, slot: int, ids: list[int] = IDS) -> int:
        out = array("q", [0])
        self.index.match(self.index.prompt(ids), array("q", [slot]), out)
        return out[0]

    def follower(self) -> Follower:
        return next(follower for follower, _ in self.followers._tasks.values())


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    made = Stage(folder)
    task = asyncio.create_task(made.followers.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.followers.close()


async def until(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  what is waited for is in shared memory
            await asyncio.sleep(0.005)


async def generate(sim: Sim, ids: list[int], *, name: str, rank: int | None = None) -> None:
    call = sim.scheduler.submit(Submission(request_id=name, prompt_ids=ids, max_tokens=1, rank=rank))
    while (await call.read()).finish is None:
        pass


def play(scene: Callable[[Stage, Sim], Awaitable[None]], folder: Path, **options: object) -> None:
    async def run() -> None:
        sim = await start_sim(**options)
        try:
            async with stage(folder) as made:
                await scene(made, sim)
        finally:
            await sim.close()

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm", "tokenspeed"])
def test_what_an_engine_holds_is_known(protocol: str, tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        await generate(sim, IDS, name="before")
        record = made.add(sim.url, protocol)
        await until(lambda: made.held(record.slot) == 160)
        await generate(sim, IDS[:64] + [7] * 32, name="after")
        await until(lambda: made.held(record.slot, IDS[:64] + [7] * 32) == 96)
        assert made.index.step(record.slot) == BLOCK
        assert made.follower().live
        await sim.scheduler.flush_cache(1)
        await until(lambda: made.held(record.slot) == 0)
        shown = render(made.shm, gauges=made.followers.gauges()).decode()
        assert f'smg_kv_events_live{{worker="{sim.url}"}} 1' in shown
        assert f'smg_kv_blocks{{worker="{sim.url}"}} 0' in shown
        assert made.lost == []

    play(scene, tmp_path, protocol=protocol)


def test_missed_events_are_asked_for_again(tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await generate(sim, IDS[:32], name="one")
        await until(lambda: made.held(record.slot) == 32)
        sim.events.hide_next(1)
        await generate(sim, IDS[:64], name="hidden")
        await generate(sim, IDS[:96], name="seen")
        await until(lambda: made.held(record.slot) == 96)
        assert (made.follower().feed.gaps, made.follower().feed.unplaced) == (1, 0)

    play(scene, tmp_path, protocol="vllm")


def test_an_engine_that_was_started_anew_is_forgotten(tmp_path: Path) -> None:
    """Known bug B117, against an engine that says that it has no such batches."""

    async def run() -> None:
        sim = await start_sim(protocol="vllm")
        port = int(sim.url.rpartition(":")[2])
        async with stage(tmp_path) as made:
            record = made.add(sim.url, "vllm")
            for number in range(3):
                await generate(sim, IDS[: 32 * (number + 1)], name=f"r{number}")
            await until(lambda: made.held(record.slot) == 96)
            made.index.insert(made.index.prompt(IDS), record.slot)
            await sim.close()
            await until(lambda: not made.follower()._told)
            assert made.follower().stale_s > 0
            sim = await start_sim(protocol="vllm", port=port)
            await until(lambda: made.held(record.slot) == 0)
            await generate(sim, IDS[:48], name="again")
            await until(lambda: made.held(record.slot) == 48)
            assert made.follower().feed.restarts == 1
        await sim.close()

    asyncio.run(run())


def test_an_engine_that_goes_away_before_it_has_told_of_anything_is_missed_once(tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await until(lambda: bool(made.followers._tasks) and made.follower()._asked_at_s > 0)
        await sim.close()
        await until(lambda: made.lost == [record.slot])
        await until(lambda: made.follower()._pause_s > 0.5)
        assert made.lost == [record.slot]

    play(scene, tmp_path)


def test_an_engine_that_is_back_is_followed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pauses have become while it was away."""
    monkeypatch.setattr("smg.kvindex.follow.FIRST_PAUSE_S", 1000.0)

    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await generate(sim, IDS, name="before")
        await until(lambda: made.held(record.slot) == 160)
        await sim.close()
        await until(lambda: made.lost == [record.slot])
        made.registry.set_state(sim.url, EngineState.NOT_READY)
        await until(lambda: not made.followers._ready)  # they have looked
        again = await start_sim(protocol="vllm", port=int(sim.url.rpartition(":")[2]))
        try:
            made.registry.set_state(sim.url, EngineState.READY)
            await until(lambda: made.held(record.slot) == 0)
            await generate(again, IDS[:64], name="after")
            await until(lambda: made.held(record.slot) == 64)
        finally:
            await again.close()

    play(scene, tmp_path, protocol="vllm")


@pytest.mark.parametrize("torn", [False, True])
def test_an_engine_that_cannot_replay_is_followed_again(torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's servicer refuses every number to go on from. What was known stays, unless the engine may be another process by now."""
    asked: list[int] = []

    def batch(number: int) -> KvBatch:
        block = KvBlock(number, tuple(IDS[BLOCK * number : BLOCK * (number + 1)]))
        return KvBatch(sequence=number, events=(KvStored((block,), number - 1 if number else None, BLOCK),), at_s=1000.0 + number)

    async def kv_events(engine: GrpcEngine, after: int) -> AsyncIterator[KvBatch]:
        asked.append(after)
        if after:
            raise EngineRejected("no", detail="OUT_OF_RANGE: resubscribe with zero")
        if asked == [0]:
            yield batch(0)
            yield batch(1)
            if torn:
                raise EngineUnavailable("gone", detail="UNAVAILABLE: connection reset")
            return
        yield batch(2)
        await asyncio.Event().wait()

    monkeypatch.setattr(GrpcEngine, "kv_events", kv_events)

    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await until(lambda: len(asked) == 3)
        assert asked == [0, 1, 0]
        await until(lambda: made.follower().feed.last == 2)
        assert (made.held(record.slot), made.follower().feed.unplaced) == ((0, 1) if torn else (48, 0))

    play(scene, tmp_path, protocol="vllm")


@pytest.mark.parametrize(("protocol", "options"), [("mlx", {}), ("vllm", {"kv_events": False})])
def test_an_engine_without_events_is_predicted(protocol: str, options: dict[str, bool], tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, protocol)
        await until(lambda: bool(made.followers._tasks) and not made.follower().supported)
        made.index.insert(made.index.prompt(IDS), record.slot)
        assert made.held(record.slot) == 160
        assert [sample.value for sample in made.follower().gauges()] == [0]

    play(scene, tmp_path, protocol=protocol, **options)


def test_a_removed_engine_is_left(tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await generate(sim, IDS, name="one")
        await until(lambda: made.held(record.slot) == 160)
        assert sim.events.subscribers == 1
        made.registry.retain([])
        await until(lambda: sim.events.subscribers == 0)
        assert not made.followers._tasks
        await until(lambda: made.held(record.slot) == 0)

    play(scene, tmp_path, protocol="vllm")


def test_the_next_engine_of_a_slot_is_known_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is predicted for it until what the slot's engine before it held is gone, and then it is."""
    monkeypatch.setattr(Registry, "_free_slot", lambda self, taken: 5)

    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await generate(sim, IDS, name="one")
        await until(lambda: made.held(record.slot) == 160)
        made.registry.retain([])
        other = await start_sim(protocol="mlx")
        try:
            after = made.add(other.url, "mlx")
            assert (after.slot, after.epoch) == (record.slot, record.epoch + 1)
            assert not made.index.insert(made.index.prompt(IDS), after.slot)
            await until(lambda: made.index.insert(made.index.prompt(IDS[:64]), after.slot))
            assert made.held(after.slot) == 64
        finally:
            await other.close()

    play(scene, tmp_path, protocol="vllm")


def test_what_a_control_process_before_was_told_does_not_stay(tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        made.index.open(record.slot)
        made.index.confirm(made.index.names(0, IDS[:64], BLOCK), record.slot)
        other = [7] * 32
        made.index.insert(made.index.prompt(other), record.slot)
        assert made.held(record.slot) == 64
        await until(lambda: made.held(record.slot) == 0)
        assert made.held(record.slot, other) == 32, "what was predicted may still be true"

    play(scene, tmp_path, protocol="vllm")


def test_each_rank_that_is_routed_to_has_what_it_holds(tmp_path: Path) -> None:
    async def scene(made: Stage, sim: Sim) -> None:
        made.add(sim.url, "vllm")
        made.registry.describe(made.registry.records()[0], ranks=2)
        first, second = made.registry.ranks(sim.url)
        await generate(sim, IDS, name="of rank 0")
        await until(lambda: made.held(first.slot) == 160)
        assert len(made.followers._tasks) == 1
        for rank, ids in ((1, IDS[:16]), (2, IDS[16:32])):
            made.follower().feed.take(KvBatch(sequence=1, events=(KvStored((KvBlock(1, tuple(ids)),), None, 16),), at_s=1.0, rank=rank))
        assert (made.held(first.slot), made.held(second.slot)) == (160, 16)
        assert made.index.rank(made.index.prompt(IDS), second.slot) == -1
        made.registry.retain([])
        await until(lambda: made.held(first.slot) == made.held(second.slot) == 0)

    play(scene, tmp_path, protocol="vllm")


def test_the_restart_of_one_engine_forgets_only_its_ranks(tmp_path: Path) -> None:
    """Two engines of four ranks, each of which has a prompt of its own; both send heartbeats, and neither keeps what it sent."""
    options: dict[str, object] = {"protocol": "vllm", "dp_size": 4, "kv_replay": 0, "kv_heartbeat_ms": 20}

    def prompt(number: int) -> list[int]:
        return [1000 + number] * 16 + IDS[:48]

    async def run() -> None:
        sims.extend([await start_sim(**options) for _ in range(2)])
        port = int(sims[0].url.rpartition(":")[2])
        async with stage(tmp_path) as made:
            for sim in sims:
                made.add(sim.url, "vllm")
                made.registry.describe(made.registry.ranks(sim.url)[0], ranks=4)
            records = [made.registry.ranks(sim.url) for sim in sims]
            slots = [record.slot for ranks in records for record in ranks]
            await until(lambda: all(rank.log.subscribers for sim in sims for rank in sim.scheduler.ranks))
            for number in range(8):
                await generate(sims[number // 4], prompt(number), name=f"{number}", rank=number % 4)
            held = lambda: [[made.held(slot, prompt(number)) for slot in slots] for number in range(8)]  # noqa: E731
            own = [[64 * (number == at) for at in range(8)] for number in range(8)]
            await until(lambda: held() == own)
            await sims[0].close()
            sims[0] = await start_sim(port=port, **options)
            await until(lambda: held() == [[0] * 8] * 4 + own[4:])
            await until(lambda: all(rank.log.subscribers for rank in sims[0].scheduler.ranks))
            await generate(sims[0], prompt(1), name="again", rank=3)
            await until(lambda: held()[1] == [0, 0, 0, 64, 0, 0, 0, 0])
            assert held()[4:] == own[4:]
            followers = [follower.feed for follower, _ in made.followers._tasks.values()]
            assert sorted((feed.restarts, feed.gaps) for feed in followers) == [(0, 0), (1, 0)]

    async def closed() -> None:
        try:
            await run()
        finally:
            await asyncio.gather(*(sim.close() for sim in sims))

    sims: list[Sim] = []
    asyncio.run(closed())


def test_a_gap_that_cannot_be_replayed(tmp_path: Path) -> None:
    """As vLLM's servicer has it: no number to go on from is taken. What was known of before stays, what was missed is not known."""

    async def scene(made: Stage, sim: Sim) -> None:
        record = made.add(sim.url, "vllm")
        await until(lambda: sim.events.subscribers == 1)
        await generate(sim, IDS[:32], name="one")
        await until(lambda: made.held(record.slot) == 32)
        sim.events.hide_next(1)
        await generate(sim, IDS[:64], name="hidden")
        await generate(sim, [7] * 32, name="seen")
        await until(lambda: not made.follower()._replays and made.follower().live)
        await until(lambda: sim.events.subscribers == 1)
        await generate(sim, IDS[:32] + [9] * 32, name="after")
        await until(lambda: made.held(record.slot, IDS[:32] + [9] * 32) == 64)
        assert made.held(record.slot) == 32
        assert (made.follower().feed.gaps, made.follower().feed.restarts) == (1, 0)

    play(scene, tmp_path, protocol="vllm", kv_replay=0, kv_heartbeat_ms=20)
