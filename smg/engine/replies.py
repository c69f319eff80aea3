"""What engines answer, in our words: protobuf messages of any protocol in, the structs of `smg.engine.base` out. Used by `smg.engine.grpc`.

The protocols name the same things alike, or nearly: a field's meaning is told by its name (`smg.engine.fields`), and one that a protocol
does not have keeps its neutral value.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor
from msgspec import Struct, structs

from smg.engine.answer import finish_of
from smg.engine.base import EngineDelta, Load, ModelInfo, ServerInfo, TokenScores
from smg.engine.fields import MEANINGS
from smg.engine.scores import output_scores, prompt_scores, token_scores

__all__ = ["delta_of", "load_of", "model_info_of", "server_info_of"]

Reply: TypeAlias = Any  # a protobuf message of any protocol

# Meaning of a field → where it goes in an EngineDelta.
COUNTS = {name: name for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")} | {"choice": "choice"}
# Field → where it goes in an EngineDelta, and how.
SCORES: dict[str, tuple[str, Callable[[Reply], TokenScores]]] = {
    "output_logprobs": ("logprobs", output_scores),
    "input_logprobs": ("prompt_logprobs", prompt_scores),
    "logprobs": ("logprobs", token_scores),
    "prompt_logprobs": ("prompt_logprobs", token_scores),
}
# Ours → theirs: of several names the first with a value counts.
MODEL = {
    "model_path": ("model_path", "model_id"),
    "served_name": ("served_model_name", "model_id"),
    "tokenizer_path": ("tokenizer_path",),
    "model_type": ("model_type",),
    "supports_vision": ("supports_vision",),
    "default_sampling_json": ("default_sampling_params_json", "preferred_sampling_params"),
}
LARGEST = 1e12
LAST_PORT = 65535
CONTEXT_LENGTHS = ("max_context_length", "max_seq_len", "max_input_len")
SERVER = {
    "version": ("version", "sglang_version", "tokenspeed_version"),
    "active_requests": ("active_requests",),
    "kv_connector": ("kv_connector",),
    "kv_engine_id": ("kv_engine_id",),
}
LOAD: dict[str, tuple[str, ...]] = {
    "rank": ("dp_rank",),
    "running": ("num_running_reqs",),
    "waiting": ("num_waiting_reqs",),
    "used_tokens": ("num_used_tokens",),
    "max_tokens": ("max_total_num_tokens",),
    "waiting_uncached_tokens": ("num_waiting_uncached_tokens",),
    "generated_per_s": ("gen_throughput",),
}


class Body(Struct, frozen=True, kw_only=True):
    """The fields of a chunk or a closing message, by what they mean."""

    counts: tuple[tuple[str, str], ...]
    ids: str
    scores: tuple[tuple[str, str, bool, Callable[[Reply], TokenScores]], ...]  # the bool: the field is repeated
    matched: tuple[str, ...]
    transfer: bool  # it can tell how the KV cache is handed over


def delta_of(message: Reply) -> EngineDelta:
    """Gives one GenerateResponse as it stands. Raises EngineError when it says that the engine failed."""
    closing = message.HasField("complete")
    reply = message.complete if closing else message.chunk
    body = _body(reply.DESCRIPTOR)
    values: dict[str, Any] = {ours: getattr(reply, theirs) for ours, theirs in body.counts}
    for ours, theirs, repeated, scores in body.scores:
        if getattr(reply, theirs) if repeated else reply.HasField(theirs):
            values[ours] = scores(getattr(reply, theirs))
    if closing:
        values["finish"] = finish_of(reply.finish_reason)
        if body.transfer:
            values["transfer"] = reply.kv_transfer_params_json
        values["matched"] = next((getattr(reply, name) for name in body.matched if reply.HasField(name)), None)
    return EngineDelta(token_ids=list(getattr(reply, body.ids)), **values)


def model_info_of(reply: Reply) -> ModelInfo:
    """Gives the meaning of a GetModelInfoResponse; sizes below zero count as not said."""
    known = reply.DESCRIPTOR.fields_by_name
    return ModelInfo(
        context_length=max(0, _first(reply, CONTEXT_LENGTHS) or 0),
        vocab_size=max(0, reply.vocab_size),
        eos_token_ids=tuple(reply.eos_token_ids) if "eos_token_ids" in known else (),
        bos_token_id=_first(reply, ("bos_token_id",)) or None,
        architectures=tuple(reply.architectures) if "architectures" in known else (),
        is_generation=reply.is_generation if "is_generation" in known else True,
        **_said(reply, MODEL),
    )


def server_info_of(reply: Reply) -> ServerInfo:
    """Gives the meaning of a GetServerInfoResponse."""
    ranks, port = _first(reply, ("data_parallel_size",)), 0
    if "server_args" in reply.DESCRIPTOR.fields_by_name:
        ranks = int(_within(reply.server_args.fields["dp_size"].number_value))
        port = int(_within(reply.server_args.fields["disaggregation_bootstrap_port"].number_value))
    return ServerInfo(data_parallel_size=max(1, ranks or 0), bootstrap_port=port if port <= LAST_PORT else 0, **_said(reply, SERVER))


def load_of(reply: Reply) -> Load:
    """Gives the meaning of one SchedulerLoad."""
    load = Load(**_said(reply, LOAD))
    return structs.replace(load, generated_per_s=_within(load.generated_per_s))


@cache
def _body(reply: Descriptor) -> Body:
    names = [field.name for field in reply.fields]
    meanings = [(name, MEANINGS[name]) for name in names if name in MEANINGS]
    return Body(
        counts=tuple((COUNTS[meaning], name) for name, meaning in meanings if meaning in COUNTS),
        ids=next(name for name, meaning in meanings if meaning == "ids"),
        scores=tuple((SCORES[name][0], name, reply.fields_by_name[name].is_repeated, SCORES[name][1]) for name in names if name in SCORES),
        matched=tuple(name for name, meaning in meanings if meaning in ("matched_id", "matched_text")),
        transfer="kv_transfer_params_json" in names,
    )


def _first(reply: Reply, names: tuple[str, ...]) -> Any:
    """The first value that is not empty, else the last one; None when there is no such field."""
    value = None
    for name in names:
        if name in reply.DESCRIPTOR.fields_by_name:
            value = getattr(reply, name)
            if value:
                break
    return value


def _within(value: float) -> float:
    """A number that is none, or beyond reason, counts as not said: who divides by no time at all tells of NaN and infinity."""
    return value if 0 <= value < LARGEST else 0.0


def _said(reply: Reply, names: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    values = {ours: _first(reply, theirs) for ours, theirs in names.items()}
    return {ours: value for ours, value in values.items() if value is not None}
