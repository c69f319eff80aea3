"""The TokenSpeed protocol. In a stream the closing message repeats the last delta; a unary answer holds everything.

Sampling scalars are optional and all sent. Without no_stop_trim the id that stopped is cut off the output while it is still counted.
Stop strings have a field, but no build was there to see what the ids hold then: they are not sent. No priority, no prompt logprobs.
"""

from smg.engine.base import ENGINES, EngineRequest, Features, KvTransfer
from smg.engine.grpc import GrpcEngine
from smg.engine.sampling import CONSTRAINTS, narrow_seed, text_constraint
from smg.pb import tokenspeed_scheduler_pb2 as pb

__all__ = ["TokenspeedEngine"]


@ENGINES.register("tokenspeed")
class TokenspeedEngine(GrpcEngine):
    """`tokenspeed.grpc.scheduler.TokenSpeedScheduler`."""

    runtime = "tokenspeed"
    service = pb.DESCRIPTOR.services_by_name["TokenSpeedScheduler"]
    features = Features(stop_strings=False, constraints=CONSTRAINTS, data_parallel_rank=True, disaggregation="parallel")

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
            kv_bootstrap_info=_rendezvous(request.transfer) if request.transfer else None,
        )


def _rendezvous(transfer: KvTransfer) -> pb.KvBootstrapInfo:
    return pb.KvBootstrapInfo(bootstrap_host=transfer.host, bootstrap_port=transfer.port, bootstrap_room=transfer.room)


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
