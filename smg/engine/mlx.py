"""The MLX protocol. In a stream the closing message holds no ids; a unary answer holds everything.

Ids only, one choice, no stop strings, constraints, min_tokens or priority. After Abort a call ends well without a closing message: a broken
answer, unless we left it. Log probabilities come only when at least one alternative is asked for. Seeds are folded to 31 bits.
"""

from smg.engine.base import ENGINES, EngineRequest, Features, Load
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import narrow_seed
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

    async def loads(self) -> list[Load]:
        """Gives the number of running requests: all that the protocol tells."""
        return [Load(running=(await self.server_info()).active_requests)]


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
