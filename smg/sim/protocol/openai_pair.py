"""What an engine over HTTP is told of ranks, and of prefill and decode apart: fields of the body in the engines' words. Used by `openai`.

Which of them an engine heeds is said by the option `owned_by`.
"""

from typing import Any, TypeVar

from msgspec import Struct

from smg.sim.handover import parameters_transfer, room_of
from smg.sim.options import SimOptions
from smg.sim.request import Transfer

__all__ = ["PairFields", "legs_of", "rank_of"]


T = TypeVar("T")


class PairFields(Struct, frozen=True):
    """Of a completion request. SGLang takes lists where a request has several prompts or choices."""

    kv_transfer_params: dict[str, Any] | None = None
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None
    data_parallel_rank: int | None = None


def legs_of(options: SimOptions, fields: PairFields, *, request_id: str) -> tuple[str | None, Transfer | None]:
    """Gives pin and transfer of a request. Raises Refused as the engine would."""
    if options.owned_by == "vllm":
        parameters = fields.kv_transfer_params or {}
        return request_id if parameters.get("do_remote_decode") else None, parameters_transfer(parameters)
    if options.owned_by == "sglang":
        host, port = first(fields.bootstrap_host), first(fields.bootstrap_port)
        return room_of(options.role, host=host or "", port=port or 0, room=first(fields.bootstrap_room))
    return None, None


def rank_of(options: SimOptions, fields: PairFields, *, headers: dict[str, str]) -> int | None:
    """Gives the data-parallel rank that is meant: vLLM reads a header, SGLang a field of the body."""
    if options.owned_by == "sglang":
        return fields.data_parallel_rank
    said = headers.get("x-data-parallel-rank", "")
    return int(said) if said.isdecimal() else None


def first(value: T | list[T] | list[T | None] | None) -> T | None:
    """Gives a value, or the first of a list."""
    return next(iter(value), None) if isinstance(value, list) else value
