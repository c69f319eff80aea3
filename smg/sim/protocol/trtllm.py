"""TensorRT-LLM's gRPC protocol. No such engine runs without CUDA, so this follows the .proto and the inventory of the original gateway.

Its rules: max_tokens has no default; sampling fields are optional; streamed messages are deltas with total counts, `complete` holds every
id of the choice; a matched stop token is left out unless include_stop_token_in_output is set, and EOS is not named as matched; an Abort
ends the call with `complete`.
"""

from typing import Any

import grpc

from smg.pb import trtllm_service_pb2 as pb
from smg.pb import trtllm_service_pb2_grpc
from smg.sim.output import Scores, score_token
from smg.sim.protocol.base import VERSION, Context, Service, matched_fields
from smg.sim.request import Call, Output, Refused, Submission

__all__ = ["Servicer", "add_to_server"]


class Servicer(Service[pb.GenerateRequest, pb.GenerateResponse], trtllm_service_pb2_grpc.TrtllmServiceServicer):  # type: ignore[misc]
    """The service `trtllm.TrtllmService`."""

    response = pb.GenerateResponse

    def submission(self, request: pb.GenerateRequest) -> Submission:
        """Reads a request; see `Service.submission`."""
        config, wanted = request.sampling_config, request.output_config
        _check(request)
        return Submission(
            request_id=request.request_id,
            prompt_ids=list(request.tokenized.input_token_ids),
            n=config.num_return_sequences or 1,
            max_tokens=request.max_tokens,
            min_tokens=config.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=tuple(request.stop),
            stop_token_ids=tuple(request.stop_token_ids),
            logprobs=wanted.logprobs if wanted.HasField("logprobs") else None,
            prompt_logprobs=wanted.prompt_logprobs if wanted.HasField("prompt_logprobs") else None,
            keep_stop=request.include_stop_token_in_output,
        )

    def is_streamed(self, request: pb.GenerateRequest) -> bool:
        """See `Service.is_streamed`."""
        return request.streaming

    def render(self, call: Call, output: Output, *, streamed: bool) -> list[pb.GenerateResponse]:
        """See `Service.render`."""
        rid = call.submission.request_id
        shown = len(output.ids) - (isinstance(output.matched, int) and not call.submission.keep_stop)
        common: dict[str, Any] = {
            "sequence_index": output.choice,
            "prompt_tokens": len(call.submission.prompt_ids),
            "completion_tokens": output.made - (len(output.ids) - shown),
            "cached_tokens": call.cached_tokens,
        }
        messages = []
        if streamed and shown:
            chunk = pb.GenerateStreamChunk(
                token_ids=output.ids[:shown], logprobs=_logprobs(output.ids[:shown], output.scores[:shown]), **common
            )
            messages.append(pb.GenerateResponse(request_id=rid, chunk=chunk))
        if output.finish is not None:
            sequence = call.sequences[output.choice]
            ids = sequence.ids[len(call.submission.prompt_ids) :][: common["completion_tokens"]]
            complete = pb.GenerateComplete(
                output_token_ids=ids,
                finish_reason=output.finish,
                logprobs=self._scores(call, ids),
                prompt_logprobs=self._prompt_logprobs(call),
                **common,
                **({} if output.matched_eos else matched_fields(output)),
            )
            messages.append(pb.GenerateResponse(request_id=rid, complete=complete))
        return messages

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends a call."""
        known = self.scheduler.abort(request.request_id)
        return pb.AbortResponse(success=known, message="aborted" if known else f"request {request.request_id} not found")

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """Says OK, or why not."""
        return pb.HealthCheckResponse(status="OK" if self.engine.healthy() else "Executor not available")

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        """Tells the model's facts; there is no word of EOS or of sampling defaults."""
        model, options = self.engine.model, self.engine.options
        return pb.GetModelInfoResponse(
            model_id=model.name,
            max_input_len=model.context_length - 1,
            max_seq_len=model.context_length,
            max_batch_size=options.max_running,
            vocab_size=model.vocab_size,
        )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Tells the server's facts."""
        return pb.GetServerInfoResponse(
            version=VERSION,
            backend="tensorrt-llm",
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            context_parallel_size=1,
            world_size=1,
        )

    def _scores(self, call: Call, ids: list[int]) -> list[pb.TokenLogprob]:
        """Scores the whole output as its steps were scored."""
        top, options = call.submission.logprobs, self.engine.options
        if top is None:
            return []
        vocab = self.engine.model.vocab_size
        return _logprobs(
            ids, [score_token(token, position=at + 1, count=top, vocab_size=vocab, seed=options.seed) for at, token in enumerate(ids)]
        )

    def _prompt_logprobs(self, call: Call) -> list[pb.TokenLogprob]:
        top, vocab = call.submission.prompt_logprobs, self.engine.model.vocab_size
        if top is None:
            return []
        ids = call.submission.prompt_ids
        return _logprobs(ids, [score_token(token, position=at, count=top, vocab_size=vocab, seed=1) for at, token in enumerate(ids)])


def add_to_server(servicer: Servicer, server: grpc.aio.Server) -> None:
    """Registers the service."""
    trtllm_service_pb2_grpc.add_TrtllmServiceServicer_to_server(servicer, server)


def _check(request: pb.GenerateRequest) -> None:
    """Raises Refused for what the engine's own checks refuse."""
    config = request.sampling_config
    if request.max_tokens < 1:
        raise Refused("max_tokens must be at least 1")
    if config.HasField("top_p") and not 0 < config.top_p <= 1:
        raise Refused(f"top_p must be in (0, 1], got {config.top_p}")
    if config.HasField("top_k") and config.top_k < 0:
        raise Refused(f"top_k must be at least 0, got {config.top_k}")
    if config.HasField("temperature") and config.temperature < 0:
        raise Refused(f"temperature must be non-negative, got {config.temperature}")
    if config.HasField("repetition_penalty") and config.repetition_penalty <= 0:
        raise Refused(f"repetition_penalty must be greater than 0, got {config.repetition_penalty}")
    if config.beam_width > 1:
        raise Refused("beam search is not enabled in this engine")


def _logprobs(ids: list[int], scores: list[Scores]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token_id=token,
            logprob=value,
            top_logprobs=[pb.TopLogprob(token_id=other, logprob=low) for other, low in zip(others, values, strict=True)],
        )
        for token, (value, others, values) in zip(ids, scores, strict=False)
    ]
