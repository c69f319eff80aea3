"""The MLX driver against the real engine, without a gateway between: what the protocol says must be what the engine does."""

import asyncio
import io
import time
import uuid
import zipfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest
import tokenizers

from smg.engine import Engine, EngineDelta, EngineRequest, ResolvedSampling, detect, open_engine
from smg.errors import EngineProtocol

pytestmark = [pytest.mark.engines, pytest.mark.timeout(60, func_only=True)]

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
T = TypeVar("T")


def with_engine(url: str, use: Callable[[Engine], Awaitable[T]]) -> T:
    async def run() -> T:
        engine = open_engine(url, runtime="mlx")
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


async def tokenizer_of(engine: Engine) -> tokenizers.Tokenizer:
    with zipfile.ZipFile(io.BytesIO(await engine.tokenizer_archive())) as archive:
        return tokenizers.Tokenizer.from_str(archive.read("tokenizer.json").decode())


def request(
    ids: list[int], *, stream: bool = True, max_tokens: int = 16, ignore_eos: bool = False, logprobs: int | None = None
) -> EngineRequest:
    sampling = ResolvedSampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    return EngineRequest(request_id=uuid.uuid4().hex, prompt_ids=ids, sampling=sampling, stream=stream, logprobs=logprobs)


async def deltas(engine: Engine, asked: EngineRequest) -> list[EngineDelta]:
    async with aclosing(engine.generate(asked, timeout_s=40)) as stream:
        return [delta async for delta in stream]


async def until_active(engine: Engine, count: int) -> None:
    end = time.monotonic() + 3
    while (active := (await engine.server_info()).active_requests) != count:
        assert time.monotonic() < end, f"the engine works on {active} requests, not {count}"
        await asyncio.sleep(0.01)


def test_runtime_is_detected(mlx_address: str) -> None:
    assert asyncio.run(detect(mlx_address)) == "mlx"


def test_model_facts(mlx_address: str) -> None:
    info = with_engine(mlx_address, lambda engine: engine.model_info())
    assert (info.model_type, info.context_length, info.vocab_size, info.eos_token_ids) == ("llama", 8192, 49152, (2,))


@pytest.mark.parametrize("stream", [True, False])
def test_answer(mlx_address: str, stream: bool) -> None:
    async def use(engine: Engine) -> None:
        tokenizer = await tokenizer_of(engine)
        ids = tokenizer.encode(PROMPT, add_special_tokens=False).ids
        got = await deltas(engine, request(ids, stream=stream, logprobs=2))
        made = [token for delta in got for token in delta.token_ids]
        assert tokenizer.decode(made) == "The capital of France is Paris."
        assert [delta.finish for delta in got if delta.finish] == ["stop"]
        assert (got[-1].prompt_tokens, got[-1].completion_tokens, len(made)) == (len(ids), 8, 8)
        scores = [score for delta in got if delta.logprobs for score in delta.logprobs.values]
        assert len(scores) == 8
        assert all(score is not None and score <= 0 for score in scores)
        assert (len(got) > 4) is stream

    with_engine(mlx_address, use)


def test_leaving_a_stream_ends_the_work(mlx_address: str) -> None:
    async def use(engine: Engine) -> None:
        ids = (await tokenizer_of(engine)).encode(PROMPT, add_special_tokens=False).ids
        async with aclosing(engine.generate(request(ids, max_tokens=1000, ignore_eos=True), timeout_s=40)) as stream:
            await anext(stream)
            assert (await engine.server_info()).active_requests == 1
        await until_active(engine, 0)

    with_engine(mlx_address, use)


@pytest.mark.parametrize("stream", [True, False])
def test_aborted_answer_is_broken(mlx_address: str, stream: bool) -> None:
    async def use(engine: Engine) -> None:
        ids = (await tokenizer_of(engine)).encode(PROMPT, add_special_tokens=False).ids
        asked = request(ids, stream=stream, max_tokens=1000, ignore_eos=True)
        running = asyncio.create_task(deltas(engine, asked))
        await until_active(engine, 1)
        await engine.abort(asked.request_id)
        with pytest.raises(EngineProtocol):
            await asyncio.wait_for(running, 10)
        await until_active(engine, 0)

    with_engine(mlx_address, use)


def test_abort_of_an_unknown_request(mlx_address: str) -> None:
    with_engine(mlx_address, lambda engine: engine.abort("no-such-request"))
