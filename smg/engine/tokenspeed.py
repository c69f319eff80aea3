"""The TokenSpeed protocol. In a stream the closing message repeats the last delta; a unary answer holds everything.

Sampling scalars are optional and all sent. Without no_stop_trim the id that stopped is cut off the output while it is still counted.
Stop strings have a field, but no build was there to see what the ids hold then: they are not sent. No priority, no prompt logprobs.
"""

from smg.engine.answer import finish_of
from smg.engine.base import ENGINES, EngineDelta, EngineRequest, Features, Load, ModelInfo, ServerInfo
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import CONSTRAINTS, narrow_seed, text_constraint
from smg.engine.scores import output_scores
from smg.pb import tokenspeed_scheduler_pb2 as pb

__all__ = ["TokenspeedEngine"]


@ENGINES.register("tokenspeed")
class TokenspeedEngine(GrpcEngine):
    """`tokenspeed.grpc.scheduler.TokenSpeedScheduler`."""

    runtime = "tokenspeed"
    service = pb.DESCRIPTOR.services_by_name["TokenSpeedScheduler"]
    features = Features(stop_strings=False, constraints=CONSTRAINTS, data_parallel_rank=True)

    def encode(self, request: EngineRequest) -> pb.GenerateRequest:
        """Gives the GenerateRequest."""
        return pb.GenerateRequest(
            request_id=request.request_id,
            tokenized=pb.TokenizedInput(original_text=request.prompt_text, input_ids=request.prompt_ids),
            sampling_params=_sampling(request),
            return_logprob=request.logprobs is not None,
            top_logprobs_num=request.logprobs or 0,
            stream=request.stream,
            data_parallel_rank=request.data_parallel_rank,
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
            supports_vision=info.supports_vision,
            default_sampling_json=info.default_sampling_params_json,
        )

    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""
        info = await self.unary("GetServerInfo", pb.GetServerInfoRequest())
        return ServerInfo(
            version=info.tokenspeed_version,
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
        logprobs=output_scores(body.output_logprobs) if body.HasField("output_logprobs") else None,
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
        min_new_tokens=sampling.min_tokens,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=True,
        n=sampling.n,
        logit_bias={str(token_id): bias for token_id, bias in sampling.logit_bias.items()},
        no_stop_trim=True,
        sampling_seed=None if sampling.seed is None else narrow_seed(sampling.seed, bits=64),
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
