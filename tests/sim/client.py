"""Raw clients of the simulator's protocols: no code of the gateway's own drivers, so that a mistake in one cannot hide in the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from smg.pb import (
    mlx_engine_pb2,
    mlx_engine_pb2_grpc,
    sglang_scheduler_pb2,
    sglang_scheduler_pb2_grpc,
    tokenspeed_scheduler_pb2,
    tokenspeed_scheduler_pb2_grpc,
    trtllm_service_pb2,
    trtllm_service_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)
from smg.sim.server import Sim, start_sim

MODULES: dict[str, Any] = {
    "vllm": vllm_engine_pb2,
    "sglang": sglang_scheduler_pb2,
    "trtllm": trtllm_service_pb2,
    "mlx": mlx_engine_pb2,
    "tokenspeed": tokenspeed_scheduler_pb2,
}
STUBS: dict[str, Any] = {
    "vllm": vllm_engine_pb2_grpc.VllmEngineStub,
    "sglang": sglang_scheduler_pb2_grpc.SglangSchedulerStub,
    "trtllm": trtllm_service_pb2_grpc.TrtllmServiceStub,
    "mlx": mlx_engine_pb2_grpc.MlxEngineStub,
    "tokenspeed": tokenspeed_scheduler_pb2_grpc.TokenSpeedSchedulerStub,
}
PROTOCOLS = list(MODULES)
DEADLINE_S = 20.0
PROMPT = "Hello there, how are you today? This prompt is long enough to fill more than one block of the cache."


def play(scene: Callable[[Sim], Awaitable[None]], **options: Any) -> None:
    """Runs a scene with one engine; after it no block may be in use, unless the scene killed the engine."""

    async def run() -> None:
        sim = await start_sim(**options)
        try:
            await scene(sim)
            if not sim.died.is_set():
                await idle(sim)
        finally:
            await sim.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition; fails after DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.002)


async def idle(sim: Sim) -> None:
    """Waits until nothing runs or waits, and no block is held."""
    counters = sim.counters
    await until(lambda: not (counters.running or counters.waiting or counters.blocks_used or counters.blocks_pinned))
    assert not sim.scheduler.calls


def chat_ids(sim: Sim, text: str) -> list[int]:
    """A chat prompt's ids."""
    return sim.engine.model.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


@asynccontextmanager
async def stub(sim: Sim) -> AsyncIterator[Any]:
    """A stub for the engine's protocol."""
    async with grpc.aio.insecure_channel(sim.url.removeprefix("grpc://")) as channel:
        yield STUBS[sim.options.protocol](channel)


def message(sim: Sim, ids: list[int], *, rid: str = "r-1", stream: bool = True, n: int = 1, **fields: Any) -> Any:
    """A Generate request with every default filled in. `fields`: max_tokens, min_tokens, ignore_eos, stop, stop_token_ids, logprobs."""
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "mlx": _mlx, "tokenspeed": _tokenspeed}[sim.options.protocol](
        ids, rid, stream, n, fields
    )


async def ask(sim: Sim, text: str = PROMPT, **fields: Any) -> list[Any]:
    """Sends one request; gives every message, unwrapped."""
    async with stub(sim) as engine:
        return [unwrap(reply) async for reply in engine.Generate(message(sim, chat_ids(sim, text), **fields), timeout=DEADLINE_S)]


def unwrap(reply: Any) -> Any:
    return getattr(reply, reply.WhichOneof("response"))


def is_complete(part: Any) -> bool:
    return "finish_reason" in part.DESCRIPTOR.fields_by_name


def choice_of(part: Any) -> int:
    return int(part.sequence_index if "sequence_index" in part.DESCRIPTOR.fields_by_name else part.index)


def ids_of(parts: list[Any], choice: int = 0) -> list[int]:
    """The ids of a choice's deltas."""
    return [number for part in parts if not is_complete(part) and choice_of(part) == choice for number in part.token_ids]


def complete_of(parts: list[Any], choice: int = 0) -> Any:
    """The one closing message of a choice."""
    (last,) = [part for part in parts if is_complete(part) and choice_of(part) == choice]
    return last


def output_of(complete: Any) -> list[int]:
    """The ids in a closing message."""
    names = complete.DESCRIPTOR.fields_by_name
    return list(complete.output_token_ids if "output_token_ids" in names else complete.output_ids)


def _vllm(ids: list[int], rid: str, stream: bool, n: int, fields: dict[str, Any]) -> Any:
    extra = {name: fields.pop(name) for name in ("kv_transfer_params_json", "data_parallel_rank") if name in fields}
    params = vllm_engine_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0, n=n, **fields)
    tokenized = vllm_engine_pb2.TokenizedInput(input_ids=ids)
    return vllm_engine_pb2.GenerateRequest(request_id=rid, tokenized=tokenized, sampling_params=params, stream=stream, **extra)


def _sglang(ids: list[int], rid: str, stream: bool, n: int, fields: dict[str, Any]) -> Any:
    pb = sglang_scheduler_pb2
    extra = {name: fields.pop(name) for name in ("disaggregated_params", "data_parallel_rank") if name in fields}
    logprobs = fields.pop("logprobs", None)
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "n": n}
    values.update({names.get(name, name): value for name, value in fields.items()})
    return pb.GenerateRequest(
        request_id=rid,
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(**values),
        stream=stream,
        return_logprob=logprobs is not None,
        top_logprobs_num=logprobs or 0,
        logprob_start_len=-1,
        **extra,
    )


def _tokenspeed(ids: list[int], rid: str, stream: bool, n: int, fields: dict[str, Any]) -> Any:
    pb = tokenspeed_scheduler_pb2
    extra = {name: fields.pop(name) for name in ("kv_bootstrap_info", "data_parallel_rank") if name in fields}
    logprobs = fields.pop("logprobs", None)
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
    values = {names.get(name, name): value for name, value in fields.items()}
    return pb.GenerateRequest(
        request_id=rid,
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(n=n, **values),
        stream=stream,
        return_logprob=logprobs is not None,
        top_logprobs_num=logprobs or 0,
        **extra,
    )


def _mlx(ids: list[int], rid: str, stream: bool, n: int, fields: dict[str, Any]) -> Any:
    assert n == 1, "the protocol has no n"
    params = mlx_engine_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0, **fields)
    tokenized = mlx_engine_pb2.TokenizedInput(input_ids=ids)
    return mlx_engine_pb2.GenerateRequest(request_id=rid, tokenized=tokenized, sampling_params=params, stream=stream)


def _trtllm(ids: list[int], rid: str, stream: bool, n: int, fields: dict[str, Any]) -> Any:
    pb = trtllm_service_pb2
    config = pb.SamplingConfig(beam_width=1, num_return_sequences=n, min_tokens=fields.pop("min_tokens", None))
    return pb.GenerateRequest(
        request_id=rid,
        tokenized=pb.TokenizedInput(input_token_ids=ids),
        sampling_config=config,
        output_config=pb.OutputConfig(logprobs=fields.pop("logprobs", None), exclude_input_from_output=True),
        max_tokens=fields.pop("max_tokens", 4096),
        streaming=stream,
        **fields,
    )
