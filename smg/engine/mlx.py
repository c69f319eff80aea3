"""The MLX protocol. In a stream the closing message holds no ids; a unary answer holds everything.

Ids only, one choice, no stop strings, constraints, min_tokens or priority. After Abort a call ends well without a closing message: a broken
answer, unless we left it. Log probabilities come only when at least one alternative is asked for. Seeds are folded to 31 bits.
"""

from smg.engine.answer import finish_of
from smg.engine.base import ENGINES, EngineDelta, EngineRequest, Features, Load, ModelInfo, ServerInfo
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import narrow_seed
from smg.engine.scores import output_scores
from smg.pb import mlx_engine_pb2 as pb

__all__ = ["MlxEngine"]


@ENGINES.register("mlx")
class MlxEngine(GrpcEngine):
    """`mlx.grpc.engine.MlxEngine`."""

    runtime = "mlx"
    service = pb.DESCRIPTOR.services_by_name["MlxEngine"]
    features = Features(n=False, stop_strings=False, min_tokens=False, kv_events=False)

    def encode(self, request: EngineRequest) -> pb.GenerateRequest:
        """Gives the GenerateRequest."""
        return pb.GenerateRequest(
            request_id=request.request_id,
            tokenized=pb.TokenizedInput(original_text=request.prompt_text, input_ids=request.prompt_ids),
            sampling_params=_sampling(request),
            stream=request.stream,
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
            context_length=info.max_context_length,
            vocab_size=info.vocab_size,
            eos_token_ids=tuple(info.eos_token_ids),
            bos_token_id=info.bos_token_id or None,
            architectures=tuple(info.architectures),
            model_type=info.model_type,
            is_generation=info.is_generation,
        )

    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""
        info = await self.unary("GetServerInfo", pb.GetServerInfoRequest())
        return ServerInfo(active_requests=info.active_requests)

    async def loads(self) -> list[Load]:
        """Gives the number of running requests: all that the protocol tells."""
        return [Load(running=(await self.server_info()).active_requests)]


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
    return EngineDelta(
        choice=body.index,
        token_ids=list(body.output_ids),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        cached_tokens=body.cached_tokens,
        logprobs=output_scores(body.output_logprobs) if body.HasField("output_logprobs") else None,
        finish=finish_of(body.finish_reason),
        matched=body.matched_stop_token_id if body.HasField("matched_stop_token_id") else None,
    )


def _sampling(request: EngineRequest) -> pb.SamplingParams:
    sampling = request.sampling
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=dict(sampling.logit_bias),
        max_tokens=sampling.max_tokens,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logprobs=None if request.logprobs is None else max(request.logprobs, 1),
        seed=None if sampling.seed is None else narrow_seed(sampling.seed, bits=31),
    )
