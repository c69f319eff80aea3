"""The SGLang protocol. In a stream the closing message repeats the last delta; a unary answer holds everything, all choices at index 0.

Ids only: the worker has no tokenizer and rejects stop strings. Zeroes are taken literally: logprob_start_len 0 asks for the whole prompt.
The protocol has no seed (ignored: best effort) and no priority. Abort does not end the call: the pipeline cancels it as well.
"""

from smg.engine.base import ENGINES, EngineRequest, Features, KvTransfer
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import CONSTRAINTS, text_constraint
from smg.pb import sglang_scheduler_pb2 as pb

__all__ = ["SglangEngine"]


@ENGINES.register("sglang")
class SglangEngine(GrpcEngine):
    """`sglang.grpc.scheduler.SglangScheduler`."""

    runtime = "sglang"
    service = pb.DESCRIPTOR.services_by_name["SglangScheduler"]
    features = Features(
        stop_strings=False,
        seed=False,
        prompt_logprobs=True,
        constraints=CONSTRAINTS,
        reasoning_first=True,
        data_parallel_rank=True,
        disaggregation="parallel",
    )

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
            disaggregated_params=_rendezvous(request.transfer) if request.transfer else None,
        )


def _rendezvous(transfer: KvTransfer) -> pb.DisaggregatedParams:
    return pb.DisaggregatedParams(bootstrap_host=transfer.host, bootstrap_port=transfer.port, bootstrap_room=transfer.room)


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
