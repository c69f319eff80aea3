"""The SGLang protocol. In a stream the closing message repeats the last delta; a unary answer holds everything, all choices at index 0.

Ids only: the worker has no tokenizer and rejects stop strings. Zeroes are taken literally: logprob_start_len 0 asks for the whole prompt.
The protocol has no seed (ignored: best effort) and no priority. Abort does not end the call: the pipeline cancels it as well.
"""

from smg.engine.answer import finish_of
from smg.engine.base import ENGINES, EngineDelta, EngineRequest, Features, Load, ModelInfo, ServerInfo
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import CONSTRAINTS, text_constraint
from smg.engine.scores import output_scores, prompt_scores
from smg.pb import sglang_scheduler_pb2 as pb

__all__ = ["SglangEngine"]


@ENGINES.register("sglang")
class SglangEngine(GrpcEngine):
    """`sglang.grpc.scheduler.SglangScheduler`."""

    runtime = "sglang"
    service = pb.DESCRIPTOR.services_by_name["SglangScheduler"]
    features = Features(stop_strings=False, seed=False, prompt_logprobs=True, constraints=CONSTRAINTS, data_parallel_rank=True)

    def encode(self, request: EngineRequest) -> pb.GenerateRequest:
        """Gives the GenerateRequest."""
        return pb.GenerateRequest(
            request_id=request.request_id,
            tokenized=pb.TokenizedInput(original_text=request.prompt_text, input_ids=request.prompt_ids),
            sampling_params=_sampling(request),
            return_logprob=request.logprobs is not None or request.prompt_logprobs is not None,
            logprob_start_len=-1 if request.prompt_logprobs is None else 0,
            top_logprobs_num=max(request.logprobs or 0, request.prompt_logprobs or 0),
            data_parallel_rank=request.data_parallel_rank,
            stream=request.stream,
            require_reasoning=request.constraint is not None and request.reasoning_first,
        )

    def decode(self, message: pb.GenerateResponse) -> EngineDelta:
        """Gives the meaning of one GenerateResponse."""
        return _complete(message.complete) if message.HasField("complete") else _chunk(message.chunk)

    async def abort(self, request_id: str) -> None:
        """Tells the engine to drop the request."""
        await self.unary("Abort", pb.AbortRequest(request_id=request_id, reason="client gone"))

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
            context_length=max(0, info.max_context_length),
            vocab_size=max(0, info.vocab_size),
            eos_token_ids=tuple(info.eos_token_ids),
            bos_token_id=info.bos_token_id or None,
            architectures=tuple(info.architectures),
            model_type=info.model_type,
            is_generation=info.is_generation,
            supports_vision=info.supports_vision,
            default_sampling_json=info.default_sampling_params_json or info.preferred_sampling_params,
        )

    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""
        info = await self.unary("GetServerInfo", pb.GetServerInfoRequest())
        return ServerInfo(
            version=info.sglang_version,
            active_requests=info.active_requests,
            data_parallel_size=max(1, int(info.server_args.fields["dp_size"].number_value)),
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
        reasoning_tokens=body.reasoning_tokens,
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
        reasoning_tokens=body.reasoning_tokens,
        logprobs=output_scores(body.output_logprobs) if body.HasField("output_logprobs") else None,
        prompt_logprobs=prompt_scores(body.input_logprobs) if body.HasField("input_logprobs") else None,
        finish=finish_of(body.finish_reason),
        matched=getattr(body, matched) if matched else None,
    )


def _sampling(request: EngineRequest) -> pb.SamplingParams:
    sampling = request.sampling
    params = pb.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k if sampling.top_k > 0 else -1,
        min_p=sampling.min_p,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        max_new_tokens=sampling.max_tokens,
        stop_token_ids=request.stop_token_ids,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=True,
        n=sampling.n,
        min_new_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        no_stop_trim=True,  # ids are wanted as generated, the one that stopped included
        logit_bias={str(token_id): bias for token_id, bias in sampling.logit_bias.items()},
    )
    for field, value in text_constraint(request.constraint).items():
        setattr(params, field, value)
    return params


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
