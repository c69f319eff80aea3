"""The vLLM protocol. In a stream the closing message repeats the last delta and counts only it; a unary answer holds everything.

vLLM refuses n > 1 at temperature 0; the same is asked for as top_k 1. Its own `--reasoning-parser` decides whether a constraint waits for
the end of thinking. Seeds are folded to 31 bits. The protocol has no priority.
"""

import json

from smg.engine.answer import finish_of
from smg.engine.base import ENGINES, EngineDelta, EngineRequest, Features, Load, ModelInfo, ServerInfo
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import CONSTRAINTS, narrow_seed
from smg.engine.scores import output_scores, prompt_scores
from smg.pb import vllm_engine_pb2 as pb
from smg.types.job import Constraint

__all__ = ["VllmEngine"]


@ENGINES.register("vllm")
class VllmEngine(GrpcEngine):
    """`vllm.grpc.engine.VllmEngine`."""

    runtime = "vllm"
    service = pb.DESCRIPTOR.services_by_name["VllmEngine"]
    features = Features(prompt_logprobs=True, constraints=CONSTRAINTS, data_parallel_rank=True)

    def encode(self, request: EngineRequest) -> pb.GenerateRequest:
        """Gives the GenerateRequest."""
        return pb.GenerateRequest(
            request_id=request.request_id,
            tokenized=pb.TokenizedInput(original_text=request.prompt_text, input_ids=request.prompt_ids),
            sampling_params=_sampling(request),
            stream=request.stream,
            data_parallel_rank=request.data_parallel_rank,
        )

    def decode(self, message: pb.GenerateResponse) -> EngineDelta:
        """Gives the meaning of one GenerateResponse."""
        return _complete(message.complete) if message.HasField("complete") else _chunk(message.chunk)

    async def abort(self, request_id: str) -> None:
        """Tells the engine to drop the request."""
        await self.unary("Abort", pb.AbortRequest(request_ids=[request_id]))

    async def health(self) -> bool:
        """True when the engine says that it serves."""
        return bool((await self.unary("HealthCheck", pb.HealthCheckRequest())).healthy)

    async def model_info(self) -> ModelInfo:
        """Asks for the model's facts."""
        info = await self.unary("GetModelInfo", pb.GetModelInfoRequest())
        return ModelInfo(
            model_path=info.model_path,
            served_name=info.served_model_name,
            tokenizer_path=info.tokenizer_path,
            context_length=info.max_context_length,
            vocab_size=info.vocab_size,
            eos_token_ids=tuple(info.eos_token_ids),
            bos_token_id=info.bos_token_id or None,
            architectures=tuple(info.architectures),
            model_type=info.model_type,
            is_generation=info.is_generation,
            supports_vision=info.supports_vision,
            default_sampling_json=info.default_sampling_params_json,
        )

    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""
        info = await self.unary("GetServerInfo", pb.GetServerInfoRequest())
        return ServerInfo(
            active_requests=info.active_requests,
            data_parallel_size=max(1, info.data_parallel_size),
            kv_connector=info.kv_connector,
            kv_engine_id=info.kv_engine_id,
        )

    async def loads(self) -> list[Load]:
        """Asks for the load of each rank."""
        return [_load(entry) for entry in (await self.unary("GetLoads", pb.GetLoadsRequest())).loads]


def _chunk(body: pb.GenerateStreamChunk) -> EngineDelta:
    return EngineDelta(
        choice=body.index,
        token_ids=list(body.token_ids),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        cached_tokens=body.cached_tokens,
        logprobs=output_scores(body.output_logprobs) if body.HasField("output_logprobs") else None,
        prompt_logprobs=prompt_scores(body.input_logprobs) if body.HasField("input_logprobs") else None,
    )


def _complete(body: pb.GenerateComplete) -> EngineDelta:
    matched = body.WhichOneof("matched_stop")
    return EngineDelta(
        choice=body.index,
        token_ids=list(body.output_ids),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        cached_tokens=body.cached_tokens,
        logprobs=output_scores(body.output_logprobs) if body.HasField("output_logprobs") else None,
        prompt_logprobs=prompt_scores(body.input_logprobs) if body.HasField("input_logprobs") else None,
        finish=finish_of(body.finish_reason),
        matched=getattr(body, matched) if matched else None,
    )


def _sampling(request: EngineRequest) -> pb.SamplingParams:
    sampling = request.sampling
    greedy_many = sampling.n > 1 and sampling.temperature == 0
    params = pb.SamplingParams(
        temperature=1.0 if greedy_many else sampling.temperature,
        top_p=1.0 if greedy_many else sampling.top_p,
        top_k=1 if greedy_many else max(sampling.top_k, 0),
        min_p=0.0 if greedy_many else sampling.min_p,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=True,
        ignore_eos=sampling.ignore_eos,
        n=sampling.n,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        seed=None if sampling.seed is None else narrow_seed(sampling.seed, bits=31),
        include_stop_str_in_output=request.include_stop_in_output,
        logit_bias=dict(sampling.logit_bias),
    )
    _constrain(params, request.constraint)
    return params


def _constrain(params: pb.SamplingParams, constraint: Constraint | None) -> None:
    match constraint:
        case None:
            pass
        case Constraint(kind="json_object"):
            params.json_object = True
        case Constraint(kind="choice", value=value):
            params.choice.choices.extend(json.loads(value))
        case Constraint(kind=kind, value=value):
            setattr(params, kind, value)


def _load(entry: pb.SchedulerLoad) -> Load:
    return Load(
        rank=entry.dp_rank,
        running=entry.num_running_reqs,
        waiting=entry.num_waiting_reqs,
        used_tokens=entry.num_used_tokens,
        max_tokens=entry.max_total_num_tokens,
        waiting_uncached_tokens=entry.num_waiting_uncached_tokens,
        generated_per_s=entry.gen_throughput,
    )
