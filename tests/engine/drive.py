"""What the engine tests share: a driver before a simulated engine, running a request to its end, waiting with a deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from smg.engine import Engine, EngineDelta, EngineOptions, EngineRequest, ResolvedSampling, open_engine
from smg.sim.server import Sim, start_sim

DEADLINE_S = 20.0
DATA_PLANE = "aio"  # conftest.py sets both in turn
TEXT = "The quick brown fox jumps over the lazy dog. Zażółć gęślą jaźń."


def request(**changes: Any) -> EngineRequest:
    """A small request; names of sampling fields go into its sampling."""
    sampling = {name: changes.pop(name) for name in ResolvedSampling.__struct_fields__ if name in changes}
    values = {"request_id": "r-1", "prompt_ids": [5, 6, 7], "sampling": ResolvedSampling(**{"max_tokens": 64, **sampling}), **changes}
    return EngineRequest(**values)


@asynccontextmanager
async def driver(runtime: str, url: str, **options: Any) -> AsyncIterator[Engine]:
    """A started driver, closed at the end."""
    engine = open_engine(url, runtime=runtime, options=EngineOptions(**{"data_plane": DATA_PLANE, **options}))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def collect(engine: Engine, job: EngineRequest, *, timeout_s: float = DEADLINE_S) -> list[EngineDelta]:
    """Every delta of a request."""
    async with aclosing(engine.generate(job, timeout_s=timeout_s)) as deltas:  # type: ignore[type-var]
        return [delta async for delta in deltas]


def ids_of(deltas: list[EngineDelta], choice: int = 0) -> list[int]:
    """The joined ids of a choice."""
    return [token_id for delta in deltas if delta.choice == choice for token_id in delta.token_ids]


async def until(condition: Callable[[], bool], *, within_s: float = DEADLINE_S) -> float:
    """Waits for a condition; gives the seconds that it took. AssertionError when it does not come true in time."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "the condition did not come true in time"
        await asyncio.sleep(0.001)
    return time.monotonic() - start


def play(runtime: str, scene: Callable[[Engine, Sim], Awaitable[None]], *, options: dict[str, Any] | None = None, **sim: Any) -> None:
    """Runs a scene with a driver and a simulated engine that says TEXT unless told otherwise."""

    async def run() -> None:
        engine_sim = await start_sim(protocol=runtime, **{"output": "text", "text": TEXT, **sim})
        try:
            async with driver(runtime, engine_sim.url, **(options or {})) as engine:
                await scene(engine, engine_sim)
        finally:
            await engine_sim.close()

    asyncio.run(run())
