"""Two gateways that know nothing of each other before the same engines: each sees the other's load in what the engines report."""

import asyncio
from array import array
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from smg.config import Config
from smg.config.tree import Engines
from smg.config.tree import Routing as RoutingConfig
from smg.engine import EngineRequest, ResolvedSampling
from smg.obs.metrics import Meter
from smg.obs.shm import CONTROL_ROW, FIRST_WORKER_ROW, LOAD_FIELDS, Shm
from smg.pipeline.route import Router
from smg.sim.server import start_sim
from smg.types.job import Routing
from smg.worker import Detector, EnginePool, EngineRecord, EngineState, Fleet, Lease, Registry, WorkerView
from tests.engine.drive import until
from tests.shm.memory import shared_memory

MODEL = "sim-model"


class Gateway:
    """A control process's watch and a data worker's route stage, without processes."""

    def __init__(self, folder: Path, *, urls: tuple[str, ...], policy: str = "least_load") -> None:
        folder.mkdir()
        routing = RoutingConfig(policy=policy, load_monitor_interval_s=0.05)
        self.config = Config(engines=Engines(worker_urls=urls), routing=routing)
        self.shm = Shm(shared_memory(rows=4))
        self.registry = Registry(self.shm, folder=folder)
        detector = Detector(self.config, state_dir=folder)
        self.fleet = Fleet(self.config, shm=self.shm, registry=self.registry, detector=detector, meter=Meter(self.shm, row=CONTROL_ROW))
        self.view = WorkerView(self.shm, row=FIRST_WORKER_ROW, folder=folder)
        self.router = Router(self.view, config=routing)
        self.pool = EnginePool(self.config)
        self.calls: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        await self.pool.close()
        await self.fleet.close()

    async def ready(self) -> None:
        await until(lambda: all(self.registry.state(record) is EngineState.READY for record in self.registry.records()), within_s=20)

    async def send(self, *, ids: list[int]) -> str:
        """Begins a long request; gives the engine's address."""
        record, lease = self.router.route(MODEL, prompt_ids=ids, routing=Routing(), avoid=frozenset())
        self.calls.append(asyncio.create_task(self._generate(record, lease, ids)))
        return record.url

    async def _generate(self, record: EngineRecord, lease: Lease, ids: list[int]) -> None:
        try:
            engine = await self.pool.get(record)
            sampling = ResolvedSampling(max_tokens=1000, ignore_eos=True)
            request = EngineRequest(request_id=f"{id(self)}-{ids[0]}", prompt_ids=ids, sampling=sampling)
            async for _ in engine.generate(request, timeout_s=60):
                lease.answered()
        finally:
            lease.release()

    def foreign(self) -> list[int]:
        return [candidate.foreign_requests for candidate in self.view.candidates(MODEL)]


@pytest.mark.parametrize("policy", ["least_load", "cache_aware", "power_of_two"])
def test_the_other_gateways_load_is_seen(policy: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            sims = []
            for _ in range(2):
                sims.append(await start_sim(protocol="vllm", itl_ms=50))
                stack.push_async_callback(sims[-1].close)
            urls = tuple(sim.url for sim in sims)
            mine, other = Gateway(tmp_path / "a", urls=urls, policy=policy), Gateway(tmp_path / "b", urls=urls[:1])
            for gateway in (mine, other):
                stack.push_async_callback(gateway.close)
                await gateway.ready()
            for number in range(12):
                assert await other.send(ids=[number + 300] * 40) == urls[0]
            await until(lambda: mine.foreign() == [12, 0], within_s=20)
            gone = [await mine.send(ids=[number + 500] * 40) for number in range(8)]
            assert gone == [urls[1]] * 8
            await until(lambda: sims[1].counters.running + sims[1].counters.waiting == 8, within_s=20)
            for _ in range(5):  # what it has itself is not counted twice
                polled = load_of(mine, 1)["polled_ms"]
                await until(lambda polled=polled: load_of(mine, 1)["polled_ms"] != polled, within_s=20)
                assert mine.foreign() == [12, 0]
            assert [candidate.requests for candidate in mine.view.candidates(MODEL)] == [0, 8]

    asyncio.run(run())


def load_of(gateway: Gateway, slot: int) -> dict[str, int]:
    fields = array("q", [0] * len(LOAD_FIELDS))
    gateway.shm.load(slot, fields)
    return dict(zip(LOAD_FIELDS, fields, strict=True))
