"""The TensorRT-LLM protocol. Chunks are deltas; closing messages hold everything and come together, when the last choice is done.

Its own names: `sequence_index`, `output_token_ids`, one TokenLogprob a token. max_tokens is not optional (0 is taken literally). logit_bias
would have to be a dense vector over a vocabulary size that only the engine knows: not offered. No priority, no load figures.
"""

from collections.abc import Iterable

from smg.engine.answer import finish_of
from smg.engine.base import ENGINES, EngineDelta, EngineRequest, Features, Load, ModelInfo, ServerInfo, TokenScores
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import ANY_OBJECT, CONSTRAINTS, choice_pattern, narrow_seed
from smg.pb import trtllm_service_pb2 as pb
from smg.types.job import Constraint

__all__ = ["TrtllmEngine"]

NO_LIMIT = 2**31 - 1  # the engine cuts it to what its context leaves
HEALTHY = {"ok", "healthy", "serving"}


@ENGINES.register("trtllm", aliases=("tensorrt-llm",))
class TrtllmEngine(GrpcEngine):
    """`trtllm.TrtllmService`."""

    runtime = "trtllm"
    service = pb.DESCRIPTOR.services_by_name["TrtllmService"]
    features = Features(logit_bias=False, prompt_logprobs=True, constraints=CONSTRAINTS, loads=False)

    def encode(self, request: EngineRequest) -> pb.GenerateRequest:
        """Gives the GenerateRequest."""
        sampling = request.sampling
        return pb.GenerateRequest(
            request_id=request.request_id,
            tokenized=pb.TokenizedInput(original_text=request.prompt_text, input_token_ids=request.prompt_ids),
            sampling_config=_sampling(request),
            output_config=pb.OutputConfig(
                logprobs=request.logprobs, prompt_logprobs=request.prompt_logprobs, exclude_input_from_output=True
            ),
            max_tokens=NO_LIMIT if sampling.max_tokens is None else sampling.max_tokens,
            streaming=request.stream,
            guided_decoding=_guide(request.constraint),
            stop=request.stop,
            stop_token_ids=request.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
            include_stop_token_in_output=True,  # ids are wanted as generated
        )

    def decode(self, message: pb.GenerateResponse) -> EngineDelta:
        """Gives the meaning of one GenerateResponse."""
        return _complete(message.complete) if message.HasField("complete") else _chunk(message.chunk)

    async def abort(self, request_id: str) -> None:
        """Tells the engine to drop the request."""
        await self.unary("Abort", pb.AbortRequest(request_id=request_id))

    async def health(self) -> bool:
        """True when the engine says that it serves; it says so in a word."""
        return (await self.unary("HealthCheck", pb.HealthCheckRequest())).status.strip().lower() in HEALTHY

    async def model_info(self) -> ModelInfo:
        """Asks for the model's facts."""
        info = await self.unary("GetModelInfo", pb.GetModelInfoRequest())
        return ModelInfo(
            model_path=info.model_id,
            served_name=info.model_id,
            context_length=max(0, info.max_seq_len or info.max_input_len),
            vocab_size=max(0, info.vocab_size),
        )

    async def server_info(self) -> ServerInfo:
        """Asks for the server's facts."""
        return ServerInfo(version=(await self.unary("GetServerInfo", pb.GetServerInfoRequest())).version)

    async def loads(self) -> list[Load]:
        """Gives nothing: the protocol has no load."""
        return []


def _chunk(body: pb.GenerateStreamChunk) -> EngineDelta:
    return EngineDelta(
        choice=body.sequence_index,
        token_ids=list(body.token_ids),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        cached_tokens=body.cached_tokens,
        logprobs=_scores(body.logprobs) if body.logprobs else None,
    )


def _complete(body: pb.GenerateComplete) -> EngineDelta:
    matched = body.WhichOneof("matched_stop")
    return EngineDelta(
        choice=body.sequence_index,
        token_ids=list(body.output_token_ids),
        prompt_tokens=body.prompt_tokens,
        completion_tokens=body.completion_tokens,
        cached_tokens=body.cached_tokens,
        logprobs=_scores(body.logprobs) if body.logprobs else None,
        prompt_logprobs=_scores(body.prompt_logprobs) if body.prompt_logprobs else None,
        finish=finish_of(body.finish_reason),
        matched=getattr(body, matched) if matched else None,
    )


def _sampling(request: EngineRequest) -> pb.SamplingConfig:
    sampling = request.sampling
    return pb.SamplingConfig(
        beam_width=1,
        num_return_sequences=sampling.n,
        top_k=max(sampling.top_k, 0),
        top_p=sampling.top_p,
        seed=None if sampling.seed is None else narrow_seed(sampling.seed, bits=64),
        temperature=sampling.temperature,
        min_tokens=sampling.min_tokens or None,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_p=sampling.min_p or None,
    )


def _guide(constraint: Constraint | None) -> pb.GuidedDecodingParams | None:
    kinds = pb.GuidedDecodingParams
    match constraint:
        case None:
            return None
        case Constraint(kind="json_object"):  # an empty guide counts as no guide
            return kinds(guide_type=kinds.GUIDE_TYPE_JSON, guide=ANY_OBJECT)
        case Constraint(kind="json_schema", value=value):
            return kinds(guide_type=kinds.GUIDE_TYPE_JSON_SCHEMA, guide=value)
        case Constraint(kind="regex", value=value):
            return kinds(guide_type=kinds.GUIDE_TYPE_REGEX, guide=value)
        case Constraint(kind="grammar", value=value):
            return kinds(guide_type=kinds.GUIDE_TYPE_EBNF_GRAMMAR, guide=value)
        case Constraint(kind="structural_tag", value=value):
            return kinds(guide_type=kinds.GUIDE_TYPE_STRUCTURAL_TAG, guide=value)
        case Constraint(value=value):
            return kinds(guide_type=kinds.GUIDE_TYPE_REGEX, guide=choice_pattern(value))


def _scores(entries: Iterable[pb.TokenLogprob]) -> TokenScores:
    rows = list(entries)
    return TokenScores(
        ids=[row.token_id for row in rows],
        values=[row.logprob for row in rows],
        top=[([item.token_id for item in row.top_logprobs], [item.logprob for item in row.top_logprobs]) for row in rows],
    )
