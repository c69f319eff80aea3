"""The engine in C speaks both protocols as our own drivers read them."""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from bench.rig.model import BenchModel
from bench.rig.processes import CONTEXT, SERVED, BenchEngine
from smg.engine import Engine, EngineDelta, EngineOptions, EngineRequest, ResolvedSampling, open_engine
from tests.server.harness import wait_until

PROMPT = [5, 300, 70_000]


async def driven(url: str, protocol: str, work: Callable[[Engine], Awaitable[None]]) -> None:
    engine = open_engine(url, runtime=protocol, options=EngineOptions())
    await engine.start()
    try:
        await work(engine)
    finally:
        await engine.close()


async def answer(engine: Engine, *, tokens: int, stream: bool = True, choices: int = 1) -> list[EngineDelta]:
    sampling = ResolvedSampling(max_tokens=tokens, n=choices)
    request = EngineRequest(request_id=f"r{tokens}", prompt_ids=PROMPT, sampling=sampling, stream=stream)
    async with aclosing(engine.generate(request, timeout_s=10)) as deltas:  # type: ignore[type-var]
        return [delta async for delta in deltas]


@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
def test_generates_what_it_was_told(model: BenchModel, protocol: str) -> None:
    expected = [model.answer_ids[i % len(model.answer_ids)] for i in range(700)]

    async def work(engine: Engine) -> None:
        for tokens, stream in ((1, True), (700, True), (700, False)):
            deltas = await answer(engine, tokens=tokens, stream=stream)
            assert [token for delta in deltas for token in delta.token_ids] == expected[:tokens]
            assert (deltas[-1].finish, deltas[-1].prompt_tokens) == ("length", len(PROMPT))
            assert deltas[-1].completion_tokens == tokens
            assert stream or len(deltas) == 1
        both = await answer(engine, tokens=3, choices=2)
        assert {delta.choice for delta in both if delta.finish} == {0, 1}

    with BenchEngine(model, protocol=protocol) as engine:
        asyncio.run(driven(engine.urls[0], protocol, work))
        counted = engine.control()
        assert (counted.started, counted.finished, counted.running) == (4, 4, 0)
        assert counted.prompt_tokens == 4 * len(PROMPT)


@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
def test_says_what_a_gateway_asks(model: BenchModel, protocol: str) -> None:
    async def work(engine: Engine) -> None:
        assert await engine.health()
        info = await engine.model_info()
        assert (info.served_name, info.tokenizer_path, info.context_length) == (SERVED, str(model.folder), CONTEXT)
        assert (info.vocab_size, info.eos_token_ids, info.is_generation) == (model.vocabulary, (model.stop_token,), True)
        assert (await engine.server_info()).data_parallel_size == 1
        [load] = await engine.loads()
        assert (load.running, load.max_tokens) == (0, 1_000_000)

    with BenchEngine(model, protocol=protocol) as engine:
        asyncio.run(driven(engine.urls[0], protocol, work))


@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
def test_ends_at_an_abort_and_when_the_client_leaves(model: BenchModel, protocol: str) -> None:
    async def work(driver: Engine) -> None:
        running = [asyncio.create_task(answer(driver, tokens=number)) for number in (100_001, 100_002)]
        await asyncio.to_thread(wait_until, lambda: engine.control().running == 2, what="both calls run")
        await driver.abort("r100001")
        await asyncio.to_thread(wait_until, lambda: engine.control().running == 1, what="one call runs")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.to_thread(wait_until, lambda: engine.control().running == 0, what="no call runs")

    with BenchEngine(model, protocol=protocol, step_us=1000) as engine:
        asyncio.run(driven(engine.urls[0], protocol, work))
        counted = engine.control()
        assert (counted.aborted, counted.left, counted.finished) == (1, 1, 0)


def test_keeps_its_pace_and_the_size_of_messages(model: BenchModel) -> None:
    async def work(driver: Engine) -> None:
        began = asyncio.get_running_loop().time()
        deltas = await answer(driver, tokens=10)
        assert asyncio.get_running_loop().time() - began >= 0.02  # five steps with four pauses at least; one may begin at once
        assert [len(delta.token_ids) for delta in deltas if delta.token_ids] == [2] * 5

    with BenchEngine(model) as engine:
        engine.control(step_us=10_000, chunk=2)
        asyncio.run(driven(engine.urls[0], "sglang", work))


def test_many_engines_and_a_socket(model: BenchModel, tmp_path: pathlib.Path) -> None:
    async def work(driver: Engine) -> None:
        assert len(await answer(driver, tokens=2)) >= 1

    with BenchEngine(model, engines=3) as engine:
        assert len(set(engine.urls)) == 3
        for url in engine.urls:
            asyncio.run(driven(url, "sglang", work))
        assert engine.control().finished == 3
    with BenchEngine(model, unix_path=tmp_path / "s") as engine:
        asyncio.run(driven(engine.urls[0], "sglang", work))
