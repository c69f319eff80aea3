"""The TensorRT-LLM protocol. Chunks are deltas; closing messages hold everything and come together, when the last choice is done.

Its own names: `sequence_index`, `output_token_ids`, one TokenLogprob a token. max_tokens is not optional (0 is taken literally). logit_bias
would have to be a dense vector over a vocabulary size that only the engine knows: not offered. No priority, no load figures.
"""

from smg.engine.base import ENGINES, EngineRequest, Features
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

    async def health(self) -> bool:
        """True when the engine says that it serves; it says so in a word."""
        return str((await self.unary("HealthCheck", pb.HealthCheckRequest())).status).strip().lower() in HEALTHY


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
