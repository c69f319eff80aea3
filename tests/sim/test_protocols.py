"""Every protocol: the same engine behind it, and each engine's own rules."""

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest

from smg.pb import common_pb2
from smg.sim.server import Sim
from tests.sim.client import (
    MODULES,
    PROMPT,
    PROTOCOLS,
    ask,
    chat_ids,
    complete_of,
    idle,
    ids_of,
    is_complete,
    message,
    output_of,
    play,
    stub,
    until,
    unwrap,
)

EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)
TRIMS_STOP = {"trtllm", "tokenspeed"}


def request_message(protocol: str, name: str, **fields: Any) -> Any:
    return getattr(MODULES[protocol], name)(**fields)


async def refusal(sim: Sim, request: Any) -> grpc.StatusCode:
    """The status with which the engine ends a request."""
    async with stub(sim) as engine:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [reply async for reply in engine.Generate(request, timeout=30)]
        return caught.value.code()  # type: ignore[no-any-return]


@EVERY
@pytest.mark.parametrize("stream", [True, False])
def test_echoes_the_user_and_stops(protocol: str, stream: bool) -> None:
    async def scene(sim: Sim) -> None:
        parts = await ask(sim, stream=stream)
        model = sim.engine.model
        complete = complete_of(parts)
        ids = ids_of(parts) if stream else output_of(complete)
        eos = [] if protocol in TRIMS_STOP else [model.eos_ids[0]]
        assert ids == [*model.encode(PROMPT), *eos]
        assert complete.finish_reason == "stop"
        assert complete.prompt_tokens == len(chat_ids(sim, PROMPT))
        assert all(is_complete(part) for part in parts) is not stream

    play(scene, protocol=protocol)


@EVERY
def test_cached_tokens_on_repeat(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        first, second = complete_of(await ask(sim, rid="a")), complete_of(await ask(sim, rid="b"))
        whole = (len(chat_ids(sim, PROMPT)) - 1) // 16 * 16
        assert whole >= 16
        assert [first.cached_tokens, second.cached_tokens] == [0, 0 if protocol == "mlx" else whole]

    play(scene, protocol=protocol)


@EVERY
def test_final_message_of_a_stream(protocol: str) -> None:
    """README of the real engines, table row 1; TensorRT-LLM by the inventory, TokenSpeed by its servicer."""

    async def scene(sim: Sim) -> None:
        parts = await ask(sim, max_tokens=5)
        complete = complete_of(parts)
        expected = {"vllm": (1, 1), "sglang": (1, 5), "mlx": (0, 5), "trtllm": (5, 5), "tokenspeed": (1, 5)}[protocol]
        assert (len(output_of(complete)), complete.completion_tokens) == expected
        assert complete.finish_reason == "length"
        counts = [part.completion_tokens for part in parts if not is_complete(part)]
        assert counts == ([1] * 5 if protocol == "vllm" else [1, 2, 3, 4, 5])

    play(scene, protocol=protocol)


@EVERY
def test_limits(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        parts = await ask(sim, "a b c", max_tokens=40, ignore_eos=True)
        assert len(ids_of(parts)) == 40
        if protocol != "mlx":
            short = await ask(sim, "Hi", min_tokens=20, max_tokens=30)
            assert complete_of(short).finish_reason == "stop"
            assert len(ids_of(short)) >= 20
        scripted = await ask(sim, "Hi [[sim: tokens=7]]")
        assert len(ids_of(scripted)) == 7 + (protocol not in TRIMS_STOP)

    play(scene, protocol=protocol)


@EVERY
def test_stop_token_ids(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        output = sim.engine.model.encode(PROMPT)
        assert output[4] not in output[:4]
        parts = await ask(sim, stop_token_ids=[output[4]])
        complete = complete_of(parts)
        assert ids_of(parts) == output[: 4 if protocol in TRIMS_STOP else 5]
        assert complete.finish_reason == "stop"
        matched = complete.matched_stop_token_id if protocol == "mlx" else complete.matched_token_id
        assert matched == output[4]

    play(scene, protocol=protocol)


@pytest.mark.parametrize("protocol", ["vllm", "trtllm", "tokenspeed"])
def test_stop_strings_are_sent_and_named(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        parts = await ask(sim, stop=["how are"])
        text = sim.engine.model.decode(ids_of(parts))
        assert text.startswith("Hello there, how are")
        assert len(text) < len("Hello there, how are you today")
        assert complete_of(parts).matched_stop_str == "how are"

    play(scene, protocol=protocol)


def test_matched_eos_is_told_as_the_engines_do() -> None:
    async def told(protocol: str) -> int:
        result = []

        async def scene(sim: Sim) -> None:
            complete = complete_of(await ask(sim))
            field = "matched_stop_token_id" if protocol == "mlx" else "matched_token_id"
            result.append(complete.HasField(field) and getattr(complete, field) == sim.engine.model.eos_ids[0])

        await asyncio.to_thread(play, scene, protocol=protocol)
        return result[0]

    async def run() -> dict[str, int]:
        return {protocol: await told(protocol) for protocol in PROTOCOLS}

    assert asyncio.run(run()) == {"vllm": False, "sglang": True, "trtllm": False, "mlx": True, "tokenspeed": True}


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm", "tokenspeed"])
def test_n_choices_differ_and_each_ends(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        parts = await ask(sim, n=3)
        texts = [sim.engine.model.decode(ids_of(parts, choice)) for choice in range(3)]
        assert texts == [PROMPT, f"(1) {PROMPT}", f"(2) {PROMPT}"]
        assert [complete_of(parts, choice).finish_reason for choice in range(3)] == ["stop"] * 3

    play(scene, protocol=protocol)


@EVERY
def test_logprobs(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        parts = [part for part in await ask(sim, max_tokens=3, logprobs=2) if not is_complete(part)]
        again = [part for part in await ask(sim, max_tokens=3, logprobs=2) if not is_complete(part)]
        for part, twin in zip(parts, again, strict=True):
            if protocol == "trtllm":
                (entry,) = part.logprobs
                token, value, top = entry.token_id, entry.logprob, [(other.token_id, other.logprob) for other in entry.top_logprobs]
                assert part.logprobs == twin.logprobs
            else:
                scores = part.output_logprobs
                token, value = scores.token_ids[0], scores.token_logprobs[0]
                top = list(zip(scores.top_logprobs[0].token_ids, scores.top_logprobs[0].values, strict=True))
                assert scores == twin.output_logprobs
            assert token == part.token_ids[0]
            assert value < 0
            assert top[0] == (token, value)
            assert len(top) == 2
            assert top[1][1] < value

    play(scene, protocol=protocol)


def test_logprobs_zero() -> None:
    """vLLM and SGLang give the token alone, MLX nothing."""

    async def scene(sim: Sim) -> None:
        (part,) = [part for part in await ask(sim, max_tokens=1, logprobs=0) if not is_complete(part)]
        assert list(part.output_logprobs.token_ids) == ([] if sim.options.protocol == "mlx" else list(part.token_ids))
        assert not part.output_logprobs.top_logprobs

    for protocol in ("vllm", "sglang", "mlx"):
        play(scene, protocol=protocol)


def test_prompt_logprobs() -> None:
    async def vllm(sim: Sim) -> None:
        parts = await ask(sim, max_tokens=2, prompt_logprobs=1)
        first, second = (part.input_logprobs for part in parts[:2])
        assert list(first.token_ids) == chat_ids(sim, PROMPT)
        assert not first.token_logprobs[0].HasField("value")
        assert all(entry.HasField("value") for entry in first.token_logprobs[1:])
        assert not second.token_ids

    async def sglang(sim: Sim) -> None:
        request = message(sim, chat_ids(sim, "Hi"), logprobs=1, max_tokens=1)
        request.logprob_start_len = 0
        async with stub(sim) as engine:
            part, *_ = [unwrap(reply) async for reply in engine.Generate(request, timeout=30)]
        assert list(part.input_logprobs.token_ids) == chat_ids(sim, "Hi"), "zero is taken literally: the whole prompt"

    play(vllm, protocol="vllm")
    play(sglang, protocol="sglang")


def _clear(*names: str) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        for name in names:
            request.sampling_params.ClearField(name)

    return change


def _set(**values: Any) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        target = request if request.DESCRIPTOR.full_name.startswith("trtllm") else request.sampling_params
        for name, value in values.items():
            if name == "stop":
                target.stop.append(value)
            elif request.DESCRIPTOR.full_name.startswith("trtllm") and name != "max_tokens":
                setattr(request.sampling_config, name, value)
            else:
                setattr(target, name, value)

    return change


@pytest.mark.parametrize(
    ("protocol", "change"),
    [
        ("sglang", _clear("top_k")),
        ("sglang", _clear("top_p")),
        ("sglang", _clear("repetition_penalty")),
        ("sglang", _clear("n")),
        ("sglang", _set(stop="x")),
        ("sglang", _set(temperature=-1.0)),
        ("vllm", _set(temperature=0.0, n=2)),
        ("vllm", _set(top_p=1.5)),
        ("vllm", _set(min_tokens=9, max_tokens=8)),
        ("vllm", _set(max_tokens=0)),
        ("tokenspeed", _set(top_k=0)),
        ("tokenspeed", _set(top_p=0.0)),
        ("trtllm", _set(max_tokens=0)),
        ("trtllm", _set(top_p=0.0)),
        ("trtllm", _set(beam_width=4)),
        ("mlx", _set(temperature=-1.0)),
    ],
)
def test_refusals_of_each_engine(protocol: str, change: Callable[[Any], None]) -> None:
    async def scene(sim: Sim) -> None:
        request = message(sim, chat_ids(sim, "Hi"))
        change(request)
        assert await refusal(sim, request) == grpc.StatusCode.INVALID_ARGUMENT
        assert sim.counters.started == 0

    play(scene, protocol=protocol)


@EVERY
def test_refusals_of_every_engine(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        assert await refusal(sim, message(sim, [])) == invalid
        assert await refusal(sim, message(sim, [10**6])) == invalid
        assert await refusal(sim, message(sim, [5] * 200)) == invalid, "longer than the context"
        assert await refusal(sim, message(sim, [5] * 90)) == grpc.StatusCode.RESOURCE_EXHAUSTED, "longer than the cache"
        assert await refusal(sim, message(sim, chat_ids(sim, "[[sim: nonsense=1]]"))) == invalid

    play(scene, protocol=protocol, context_length=128, kv_blocks=4)


def test_zeroes_that_engines_forgive() -> None:
    async def vllm(sim: Sim) -> None:
        request = message(sim, chat_ids(sim, "Hi"))
        _clear("top_p", "repetition_penalty", "n")(request)
        async with stub(sim) as engine:
            assert [reply async for reply in engine.Generate(request, timeout=30)]

    async def sglang(sim: Sim) -> None:
        output = sim.engine.model.encode(PROMPT)
        parts = await ask(sim, stop_token_ids=[output[4]], ignore_eos=True, max_tokens=9)
        assert complete_of(parts).finish_reason == "length", "ignore_eos switches stop_token_ids off too"

    play(vllm, protocol="vllm")
    play(sglang, protocol="sglang")


@EVERY
@pytest.mark.parametrize("stream", [True, False])
def test_abort(protocol: str, stream: bool) -> None:
    """README of the real engines, rows on Abort."""

    async def scene(sim: Sim) -> None:
        field = "request_ids" if protocol in ("vllm", "mlx") else "request_id"
        abort = request_message(protocol, "AbortRequest", **{field: ["r-1"] if field == "request_ids" else "r-1"})
        async with stub(sim) as engine:
            call = engine.Generate(message(sim, chat_ids(sim, "Hi [[sim: tokens=100000 itl_ms=5]]"), stream=stream), timeout=30)
            task = asyncio.ensure_future(_collect(call))
            await until(lambda: sim.counters.tokens >= 3)
            answer = await engine.Abort(abort, timeout=30)
            await idle(sim)
            assert [sim.counters.abort_calls, sim.counters.aborted] == [1, 1]
            if protocol == "sglang":
                done, _ = await asyncio.wait([task], timeout=0.2)
                assert not done, "SGLang's call never ends by itself"
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: sim.counters.cancelled_calls == 1)
                assert sim.counters.aborted == 1
            elif protocol == "tokenspeed":
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await task
                assert caught.value.code() == grpc.StatusCode.INTERNAL
            elif protocol == "mlx":
                parts = await task
                assert not [part for part in parts if is_complete(part)]
                assert bool(parts) is stream
            else:
                complete = complete_of(await task)
                assert complete.finish_reason == "abort"
                assert stream or len(output_of(complete)) >= 3
            if "success" in answer.DESCRIPTOR.fields_by_name:
                assert answer.success
                unknown = await engine.Abort(request_message(protocol, "AbortRequest", request_id="nobody"), timeout=30)
                assert unknown.success is (protocol == "sglang")

    play(scene, protocol=protocol)


async def _collect(call: Any) -> list[Any]:
    return [unwrap(reply) async for reply in call]


@EVERY
def test_facts(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            info = await engine.GetModelInfo(request_message(protocol, "GetModelInfoRequest"), timeout=30)
            server = await engine.GetServerInfo(request_message(protocol, "GetServerInfoRequest"), timeout=30)
            health = await engine.HealthCheck(request_message(protocol, "HealthCheckRequest"), timeout=30)
        model = sim.engine.model
        assert info.vocab_size == model.vocab_size
        if protocol == "trtllm":
            assert (info.model_id, info.max_seq_len, health.status, server.backend) == ("tiny", 32768, "OK", "tensorrt-llm")
            return
        assert (info.served_model_name, info.max_context_length, health.healthy) == ("tiny", 32768, True)
        assert list(info.eos_token_ids) == list(model.eos_ids)
        assert server.active_requests == 0
        if protocol != "mlx":
            assert json.loads(info.default_sampling_params_json)["temperature"] == 0.7

    play(scene, protocol=protocol, served_name="tiny")


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "tokenspeed"])
def test_loads(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            call = engine.Generate(message(sim, chat_ids(sim, "Hi [[sim: tokens=50 fault=hang@2]]")), timeout=30)
            task = asyncio.ensure_future(_collect(call))
            await until(lambda: sim.counters.tokens >= 2)
            waiting = engine.Generate(message(sim, chat_ids(sim, "Ho"), rid="r-2"), timeout=30)
            await until(lambda: sim.counters.waiting == 1)
            (load,) = (await engine.GetLoads(request_message(protocol, "GetLoadsRequest"), timeout=30)).loads
            assert (load.num_running_reqs, load.num_waiting_reqs, load.max_running_requests) == (1, 1, 1)
            assert load.num_waiting_uncached_tokens == len(chat_ids(sim, "Ho"))
            assert load.num_used_tokens > 0
            call.cancel()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    play(scene, protocol=protocol, max_running=1)


@EVERY
def test_tokenizer_archive(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            chunks = [chunk async for chunk in engine.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=30)]
        data = b"".join(chunk.data for chunk in chunks)
        assert [bool(chunk.sha256) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert hashlib.sha256(data).hexdigest() == chunks[-1].sha256
        names = set(zipfile.ZipFile(io.BytesIO(data)).namelist())
        assert names == {"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"}

    play(scene, protocol=protocol)


def test_kv_events_are_not_in_mlx() -> None:
    assert "SubscribeKvEvents" not in MODULES["mlx"].DESCRIPTOR.services_by_name["MlxEngine"].methods_by_name


def test_three_clients_see_the_same_engine() -> None:
    """The same prompt over vLLM, SGLang and OpenAI HTTP: same ids, and the same cached tokens when it comes again."""
    seen: dict[str, list[tuple[list[int], int, int]]] = {}

    def scene_of(protocol: str) -> Callable[[Sim], Any]:
        async def scene(sim: Sim) -> None:
            seen[protocol] = []
            for _ in range(2):
                if protocol == "openai":
                    body = {"messages": [{"role": "user", "content": PROMPT}], "return_token_ids": True}
                    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                        answer = (await client.post(f"{sim.url}/v1/chat/completions", json=body)).raise_for_status().json()
                    usage = answer["usage"]
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
                    seen[protocol].append((answer["choices"][0]["token_ids"], usage["prompt_tokens"], cached))
                else:
                    parts = await ask(sim)
                    seen[protocol].append((ids_of(parts), parts[0].prompt_tokens, parts[0].cached_tokens))

        return scene

    for protocol in ("vllm", "sglang", "openai"):
        play(scene_of(protocol), protocol=protocol, seed=3)
    assert seen["vllm"] == seen["sglang"] == seen["openai"]
    (first, _, none), (again, _, cached) = seen["vllm"]
    assert first == again
    assert none == 0
    assert cached >= 16
