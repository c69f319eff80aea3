"""A request for one data-parallel rank of an engine: the engine is told the rank, on both data planes, and ranks share its connection."""

import asyncio

import msgspec
import pytest

from smg.config import Config
from smg.config.tree import Engines
from smg.engine import EngineRequest
from smg.engine.vllm import VllmEngine
from smg.obs.shm import Shm
from smg.types.job import Sampling
from smg.worker import EngineState, Snapshot
from smg.worker.snapshot import publish
from tests.pipeline.fleet import chat, collect, fleet

# A bias is in no other request, so that each of these is encoded anew.
OWN = Sampling(max_tokens=64, logit_bias={300: 0.5})


@pytest.mark.parametrize("plane", ["native", "aio"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_is_told_the_rank(plane: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []
    encode = VllmEngine.encode
    monkeypatch.setattr(VllmEngine, "encode", lambda self, request: noted(self, request))

    def noted(engine: VllmEngine, request: EngineRequest) -> object:
        message = encode(engine, request)
        told.append(message.data_parallel_rank if message.HasField("data_parallel_rank") else None)
        return message

    async def main() -> None:
        async with fleet("vllm", config=Config(engines=Engines(data_plane=plane)), dp_size=2) as made:  # type: ignore[arg-type]
            await collect(made, chat(stream=stream, sampling=OWN))
            shm: Shm = made.view.shm
            [known] = made.view.engines("sim-model")
            ranks = [
                msgspec.structs.replace(known, slot=10 + rank, epoch=shm.open_engine(10 + rank, EngineState.READY), rank=rank)
                for rank in (0, 1)
            ]
            named = [msgspec.structs.replace(record, url=f"{known.url}@{record.rank}", base_url=known.url) for record in ranks]
            publish(Snapshot(engines=tuple(named)), folder=made.view._folder, shm=shm)
            for _ in range(20):
                await collect(made, chat(stream=stream, sampling=OWN))
                if {0, 1} <= set(told):
                    break
            assert len(made.pipeline._pool._drivers) == 1

    asyncio.run(main())
    assert told[0] is None
    assert set(told[1:]) == {0, 1}
