"""SGLang's gRPC protocol, as its servicer answers (PyPI smg-grpc-servicer 0.14.1, sglang 0.5.23).

Its rules: the server has no tokenizer, so it takes ids only and no stop strings; zeroes are taken as they are written, as its older
servicers do, so that top_k, top_p, repetition_penalty and n must be filled in; ignore_eos switches stop_token_ids off too;
completion_tokens is the total, `complete` repeats the last delta; logprob_start_len 0 means the whole prompt; after an Abort the call
never ends.
"""

import asyncio
import time
from typing import Any

import grpc

from smg.pb import sglang_scheduler_pb2 as pb
from smg.pb import sglang_scheduler_pb2_grpc
from smg.sim.handover import room_of
from smg.sim.output import score_token
from smg.sim.protocol.base import VERSION, Context, Service, matched_fields
from smg.sim.request import Call, Output, Refused, Submission

__all__ = ["Servicer", "add_to_server"]


class Servicer(
    Service[pb.GenerateRequest, pb.GenerateResponse],
    sglang_scheduler_pb2_grpc.SglangSchedulerServicer,  # type: ignore[misc]
):
    """The service `sglang.grpc.scheduler.SglangScheduler`."""

    response = pb.GenerateResponse

    def submission(self, request: pb.GenerateRequest) -> Submission:
        """Reads a request; see `Service.submission`."""
        params = request.sampling_params
        _check(params)
        role = self.engine.options.role
        place = request.disaggregated_params
        room = place.bootstrap_room if request.HasField("disaggregated_params") else None
        pin, transfer = room_of(role, host=place.bootstrap_host, port=place.bootstrap_port, room=room)
        wants_prompt = request.return_logprob and 0 <= request.logprob_start_len < len(request.tokenized.input_ids)
        return Submission(
            request_id=request.request_id,
            prompt_ids=list(request.tokenized.input_ids),
            n=params.n,
            max_tokens=1 if role == "prefill" else params.max_new_tokens if params.HasField("max_new_tokens") else None,
            min_tokens=params.min_new_tokens,
            ignore_eos=params.ignore_eos,
            stop_token_ids=() if params.ignore_eos else tuple(params.stop_token_ids),
            logprobs=request.top_logprobs_num if request.return_logprob else None,
            prompt_logprobs=request.top_logprobs_num if wants_prompt else None,
            pin=pin,
            pin_ends_by_abort=True,
            transfer=transfer,
            rank=request.data_parallel_rank if request.HasField("data_parallel_rank") else None,
        )

    def is_streamed(self, request: pb.GenerateRequest) -> bool:
        """See `Service.is_streamed`."""
        return request.stream

    async def after_abort(self, context: Context) -> bool:
        """Leaves the call open, as the engine does: only the client's cancelling ends it."""
        await asyncio.Event().wait()
        return True

    def render(self, call: Call, output: Output, *, streamed: bool) -> list[pb.GenerateResponse]:
        """See `Service.render`."""
        rid = call.submission.request_id
        common: dict[str, Any] = {
            "prompt_tokens": len(call.submission.prompt_ids),
            "completion_tokens": output.made,
            "cached_tokens": call.cached_tokens,
            "output_logprobs": _output_logprobs(output, call.submission.logprobs) if output.scores else None,
            "index": output.choice,
        }
        prompt_logprobs = None
        if call.submission.prompt_logprobs is not None and output.made == len(output.ids):
            prompt_logprobs = self._prompt_logprobs(call)
        messages = []
        if streamed:
            chunk = pb.GenerateStreamChunk(token_ids=output.ids, input_logprobs=prompt_logprobs, **common)
            messages.append(pb.GenerateResponse(request_id=rid, chunk=chunk))
        if output.finish is not None:
            complete = pb.GenerateComplete(
                output_ids=output.ids, finish_reason=output.finish, input_logprobs=prompt_logprobs, **common, **matched_fields(output)
            )
            messages.append(pb.GenerateResponse(request_id=rid, complete=complete))
        return messages

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends a call; says success for unknown ids too."""
        self.scheduler.abort(request.request_id)
        return pb.AbortResponse(success=True, message=f"Request {request.request_id} aborted")

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """Says whether the engine serves."""
        healthy = self.engine.healthy()
        return pb.HealthCheckResponse(healthy=healthy, message="" if healthy else "scripted to be unhealthy")

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        """Tells the model's facts."""
        model = self.engine.model
        return pb.GetModelInfoResponse(
            model_path=str(model.folder),
            tokenizer_path=str(model.folder),
            is_generation=True,
            served_model_name=model.name,
            weight_version="default",
            max_context_length=model.context_length,
            vocab_size=model.vocab_size,
            model_type=model.model_type,
            eos_token_ids=model.eos_ids,
            pad_token_id=model.pad_id,
            bos_token_id=model.bos_id,
            max_req_input_len=model.context_length - 1,
            architectures=model.architectures,
            default_sampling_params_json=model.default_sampling_json,
        )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Tells the server's facts."""
        options = self.engine.options
        message = pb.GetServerInfoResponse(
            active_requests=len(self.scheduler.calls),
            last_receive_timestamp=time.time(),
            uptime_seconds=self.engine.uptime_s,
            sglang_version=VERSION,
            server_type="grpc",
            max_total_num_tokens=options.kv_blocks * options.block_size,
        )
        mode = "null" if options.role == "regular" else options.role
        port = self.engine.status_port
        message.server_args.update(
            {
                "disaggregation_mode": mode,
                "disaggregation_bootstrap_port": port,
                "page_size": options.block_size,
                "dp_size": options.dp_size,
                "served_model_name": self.engine.model.name,
                "model_path": str(self.engine.model.folder),
            }
        )
        return message

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Tells the load of each rank."""
        told: pb.GetLoadsResponse = self.engine.loads_told(pb)
        return told

    def _prompt_logprobs(self, call: Call) -> pb.InputLogProbs:
        """Scores the prompt; its first token has no value."""
        top = call.submission.prompt_logprobs or 0
        message = pb.InputLogProbs(token_ids=call.submission.prompt_ids)
        for position, token in enumerate(call.submission.prompt_ids):
            value, ids, values = score_token(token, position=position, count=top, vocab_size=self.engine.model.vocab_size, seed=1)
            message.token_logprobs.append(pb.InputTokenLogProb(value=value if position else None))
            message.top_logprobs.append(pb.TopLogProbs(token_ids=ids, values=values) if position else pb.TopLogProbs())
        return message


def add_to_server(servicer: Servicer, server: grpc.aio.Server) -> None:
    """Registers the service."""
    sglang_scheduler_pb2_grpc.add_SglangSchedulerServicer_to_server(servicer, server)


def _check(params: pb.SamplingParams) -> None:
    """Raises Refused for what SGLang's SamplingParams.verify refuses, unset fields being zero."""
    if params.temperature < 0:
        raise Refused(f"temperature must be non-negative, got {params.temperature}")
    if not 0 < params.top_p <= 1:
        raise Refused(f"top_p must be in (0, 1], got {params.top_p}")
    if params.top_k < -1 or params.top_k == 0:
        raise Refused(f"top_k must be -1 (disable) or at least 1, got {params.top_k}")
    if not 0 <= params.min_p <= 1:
        raise Refused(f"min_p must be in [0, 1], got {params.min_p}")
    if not 0 < params.repetition_penalty <= 2:
        raise Refused(f"repetition_penalty must be in (0, 2], got {params.repetition_penalty}")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= getattr(params, name) <= 2:
            raise Refused(f"{name} must be in [-2, 2], got {getattr(params, name)}")
    if params.n < 1:
        raise Refused(f"n must be at least 1, got {params.n}")
    if params.stop:
        raise Refused("stop strings need a tokenizer, and this server runs with skip_tokenizer_init")
    if params.HasField("max_new_tokens") and params.min_new_tokens > params.max_new_tokens:
        raise Refused(f"min_new_tokens must be in [0, max_new_tokens({params.max_new_tokens})], got {params.min_new_tokens}")


def _output_logprobs(output: Output, top: int | None) -> pb.OutputLogProbs:
    message = pb.OutputLogProbs(token_ids=output.ids, token_logprobs=[value for value, _, _ in output.scores])
    if top:
        message.top_logprobs.extend(pb.TopLogProbs(token_ids=others, values=values) for _, others, values in output.scores)
    return message
