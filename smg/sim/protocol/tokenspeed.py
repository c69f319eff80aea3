"""TokenSpeed's gRPC protocol, as its servicer answers (PyPI smg-grpc-servicer 0.14.1, by reading: it needs CUDA to run).

Its rules: sampling fields are optional, and a zero that is set is taken as it is; a matched stop token is cut off unless no_stop_trim,
while completion_tokens counts it; an empty last delta is not sent, unless it is the choice's first; `complete` repeats the last delta; an
Abort ends the call with status INTERNAL; Abort of an unknown id says success false.
"""

from typing import Any

import grpc

from smg.pb import tokenspeed_scheduler_pb2 as pb
from smg.pb import tokenspeed_scheduler_pb2_grpc
from smg.sim.handover import room_of
from smg.sim.protocol.base import VERSION, Context, Service, matched_fields
from smg.sim.request import Call, Output, Refused, Submission

__all__ = ["Servicer", "add_to_server"]


class Servicer(
    Service[pb.GenerateRequest, pb.GenerateResponse],
    tokenspeed_scheduler_pb2_grpc.TokenSpeedSchedulerServicer,  # type: ignore[misc]
):
    """The service `tokenspeed.grpc.scheduler.TokenSpeedScheduler`."""

    response = pb.GenerateResponse

    def submission(self, request: pb.GenerateRequest) -> Submission:
        """Reads a request; see `Service.submission`."""
        params, role = request.sampling_params, self.engine.options.role
        _check(params)
        place = request.kv_bootstrap_info
        room = place.bootstrap_room if request.HasField("kv_bootstrap_info") else None
        pin, transfer = room_of(role, host=place.bootstrap_host, port=place.bootstrap_port, room=room)
        return Submission(
            request_id=request.request_id,
            prompt_ids=list(request.tokenized.input_ids),
            n=params.n or 1,
            max_tokens=1 if role == "prefill" else params.max_new_tokens if params.HasField("max_new_tokens") else None,
            min_tokens=params.min_new_tokens,
            ignore_eos=params.ignore_eos,
            stop=tuple(params.stop),
            stop_token_ids=tuple(params.stop_token_ids),
            logprobs=request.top_logprobs_num if request.return_logprob else None,
            keep_stop=params.no_stop_trim,
            pin=pin,
            pin_ends_by_abort=True,
            transfer=transfer,
            rank=request.data_parallel_rank if request.HasField("data_parallel_rank") else None,
        )

    def is_streamed(self, request: pb.GenerateRequest) -> bool:
        """See `Service.is_streamed`."""
        return request.stream

    async def after_abort(self, context: Context) -> bool:
        """Ends the call with the status of an abort that has no code of its own."""
        await context.abort(grpc.StatusCode.INTERNAL, "aborted")
        return True

    def render(self, call: Call, output: Output, *, streamed: bool) -> list[pb.GenerateResponse]:
        """See `Service.render`."""
        rid = call.submission.request_id
        shown = len(output.ids) - (isinstance(output.matched, int) and not call.submission.keep_stop)
        common: dict[str, Any] = {
            "prompt_tokens": len(call.submission.prompt_ids),
            "completion_tokens": output.made,
            "cached_tokens": call.cached_tokens,
            "output_logprobs": _output_logprobs(output, shown) if output.scores and shown else None,
            "index": output.choice,
        }
        messages = []
        if streamed and (shown or output.made == len(output.ids)):
            chunk = pb.GenerateStreamChunk(token_ids=output.ids[:shown], **common)
            messages.append(pb.GenerateResponse(request_id=rid, chunk=chunk))
        if output.finish is not None:
            complete = pb.GenerateComplete(output_ids=output.ids[:shown], finish_reason=output.finish, **common, **matched_fields(output))
            messages.append(pb.GenerateResponse(request_id=rid, complete=complete))
        return messages

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends a call; success says whether it was known."""
        known = self.scheduler.abort(request.request_id)
        return pb.AbortResponse(success=known, message="aborted" if known else f"Request {request.request_id} not found")

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
            served_model_name=model.name,
            model_type=model.model_type,
            architectures=model.architectures,
            max_context_length=model.context_length,
            max_req_input_len=model.context_length - 1,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_ids,
            pad_token_id=model.pad_id,
            bos_token_id=model.bos_id,
            weight_version="default",
            default_sampling_params_json=model.default_sampling_json,
        )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Tells the server's facts."""
        options = self.engine.options
        message = pb.GetServerInfoResponse(
            active_requests=len(self.scheduler.calls),
            uptime_seconds=self.engine.uptime_s,
            max_total_num_tokens=options.kv_blocks * options.block_size,
            tokenspeed_version=VERSION,
        )
        mode = "null" if options.role == "regular" else options.role
        message.server_args.update(
            {
                "disaggregation_mode": mode,
                "disaggregation_bootstrap_port": self.engine.status_port,
                "page_size": options.block_size,
                "dp_size": options.dp_size,
            }
        )
        return message

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Tells the load of each rank."""
        told: pb.GetLoadsResponse = self.engine.loads_told(pb)
        return told


def add_to_server(servicer: Servicer, server: grpc.aio.Server) -> None:
    """Registers the service."""
    tokenspeed_scheduler_pb2_grpc.add_TokenSpeedSchedulerServicer_to_server(servicer, server)


def _check(params: pb.SamplingParams) -> None:
    """Raises Refused for values outside their ranges; what is not set has the engine's default."""
    if params.HasField("temperature") and params.temperature < 0:
        raise Refused(f"temperature must be non-negative, got {params.temperature}")
    if params.HasField("top_p") and not 0 < params.top_p <= 1:
        raise Refused(f"top_p must be in (0, 1], got {params.top_p}")
    if params.HasField("top_k") and (params.top_k < -1 or params.top_k == 0):
        raise Refused(f"top_k must be -1 (disable) or at least 1, got {params.top_k}")
    if params.HasField("min_p") and not 0 <= params.min_p <= 1:
        raise Refused(f"min_p must be in [0, 1], got {params.min_p}")
    if params.HasField("repetition_penalty") and not 0 < params.repetition_penalty <= 2:
        raise Refused(f"repetition_penalty must be in (0, 2], got {params.repetition_penalty}")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= getattr(params, name) <= 2:
            raise Refused(f"{name} must be in [-2, 2], got {getattr(params, name)}")
    if params.HasField("max_new_tokens") and params.min_new_tokens > params.max_new_tokens:
        raise Refused(f"min_new_tokens must be in [0, max_new_tokens({params.max_new_tokens})], got {params.min_new_tokens}")


def _output_logprobs(output: Output, shown: int) -> pb.OutputLogProbs:
    tops = [pb.TopLogProbs(token_ids=others, values=values) for _, others, values in output.scores[:shown]]
    values = [value for value, _, _ in output.scores[:shown]]
    return pb.OutputLogProbs(token_ids=output.ids[:shown], token_logprobs=values, top_logprobs=tops)
