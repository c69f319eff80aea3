"""The vLLM protocol. In a stream the closing message repeats the last delta and counts only it; a unary answer holds everything.

vLLM refuses n > 1 at temperature 0; the same is asked for as top_k 1. Its own `--reasoning-parser` decides whether a constraint waits for
the end of thinking. Seeds are folded to 31 bits. The protocol has no priority.
"""

import json

from smg.engine.base import ENGINES, EngineRequest, Features
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import CONSTRAINTS, narrow_seed
from smg.pb import vllm_engine_pb2 as pb
from smg.types.job import Constraint

__all__ = ["VllmEngine"]


@ENGINES.register("vllm")
class VllmEngine(GrpcEngine):
    """`vllm.grpc.engine.VllmEngine`."""

    runtime = "vllm"
    service = pb.DESCRIPTOR.services_by_name["VllmEngine"]
    features = Features(
        prompt_logprobs=True, constraints=CONSTRAINTS, reasoning_first=True, data_parallel_rank=True, disaggregation="sequential"
    )

    def encode(self, request: EngineRequest) -> pb.GenerateRequest:
        """Gives the GenerateRequest."""
        return pb.GenerateRequest(
            request_id=request.request_id,
            tokenized=pb.TokenizedInput(original_text=request.prompt_text, input_ids=request.prompt_ids),
            sampling_params=_sampling(request),
            stream=request.stream,
            data_parallel_rank=request.data_parallel_rank,
            kv_transfer_params_json=request.transfer.params if request.transfer else None,
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
