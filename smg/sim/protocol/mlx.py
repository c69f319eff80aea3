"""MLX's gRPC protocol, as its servicer answers (PyPI smg-grpc-servicer 0.14.1, mlx-lm 0.31.3).

Its rules: ids only; one choice; no stop strings, constraints, loads or KV events; cached_tokens is always 0; a streamed `complete` holds no
ids and the total count; logprobs 0 gives none; after an Abort the call ends OK without `complete`.
"""

import grpc

from smg.pb import mlx_engine_pb2 as pb
from smg.pb import mlx_engine_pb2_grpc
from smg.sim.protocol.base import Context, Service
from smg.sim.request import Call, Output, Refused, Submission

__all__ = ["Servicer", "add_to_server"]


class Servicer(Service[pb.GenerateRequest, pb.GenerateResponse], mlx_engine_pb2_grpc.MlxEngineServicer):  # type: ignore[misc]
    """The service `mlx.grpc.engine.MlxEngine`."""

    response = pb.GenerateResponse

    def submission(self, request: pb.GenerateRequest) -> Submission:
        """Reads a request; see `Service.submission`. Zeroes of sampling fields switch them off, as in mlx-lm."""
        if request.WhichOneof("input") != "tokenized":
            raise Refused("MLX servicer requires tokenized input")
        params = request.sampling_params
        if params.HasField("temperature") and params.temperature < 0:
            raise Refused(f"temperature must be non-negative, got {params.temperature}")
        return Submission(
            request_id=request.request_id,
            prompt_ids=list(request.tokenized.input_ids),
            max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
            ignore_eos=params.ignore_eos,
            stop_token_ids=tuple(params.stop_token_ids),
            logprobs=params.logprobs if params.HasField("logprobs") and params.logprobs > 0 else None,
        )

    def is_streamed(self, request: pb.GenerateRequest) -> bool:
        """See `Service.is_streamed`."""
        return request.stream

    async def after_abort(self, context: Context) -> bool:
        """Ends the call OK, with nothing said."""
        return True

    def render(self, call: Call, output: Output, *, streamed: bool) -> list[pb.GenerateResponse]:
        """See `Service.render`."""
        messages = []
        prompt_tokens = len(call.submission.prompt_ids)
        logprobs = _output_logprobs(output) if output.scores else None
        if streamed:
            chunk = pb.GenerateStreamChunk(
                token_ids=output.ids, prompt_tokens=prompt_tokens, completion_tokens=output.made, output_logprobs=logprobs
            )
            messages.append(pb.GenerateResponse(chunk=chunk))
        if output.finish is not None:
            complete = pb.GenerateComplete(
                output_ids=[] if streamed else output.ids,
                finish_reason=output.finish,
                prompt_tokens=prompt_tokens,
                completion_tokens=output.made,
                output_logprobs=None if streamed else logprobs,
                matched_stop_token_id=output.matched if isinstance(output.matched, int) else None,
            )
            messages.append(pb.GenerateResponse(complete=complete))
        return messages

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends calls; unknown ids are no error."""
        for request_id in request.request_ids:
            self.scheduler.abort(request_id)
        return pb.AbortResponse()

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """Says whether the engine serves."""
        healthy = self.engine.healthy()
        return pb.HealthCheckResponse(healthy=healthy, message="" if healthy else "scripted to be unhealthy")

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        """Tells the model's facts. The served name is the path, as there is no other."""
        model, options = self.engine.model, self.engine.options
        return pb.GetModelInfoResponse(
            model_path=str(model.folder),
            is_generation=True,
            max_context_length=model.context_length,
            vocab_size=model.vocab_size,
            served_model_name=model.name if options.served_name else str(model.folder),
            model_type=model.model_type,
            architectures=model.architectures,
            eos_token_ids=model.eos_ids,
            pad_token_id=model.pad_id,
            bos_token_id=model.bos_id,
            max_req_input_len=model.context_length,
        )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Tells the server's facts."""
        return pb.GetServerInfoResponse(
            server_type="mlx-grpc", active_requests=len(self.scheduler.calls), uptime_seconds=self.engine.uptime_s
        )


def add_to_server(servicer: Servicer, server: grpc.aio.Server) -> None:
    """Registers the service."""
    mlx_engine_pb2_grpc.add_MlxEngineServicer_to_server(servicer, server)


def _output_logprobs(output: Output) -> pb.OutputLogProbs:
    tops = [pb.TopLogProbs(token_ids=others, values=values) for _, others, values in output.scores]
    return pb.OutputLogProbs(token_ids=output.ids, token_logprobs=[value for value, _, _ in output.scores], top_logprobs=tops)
