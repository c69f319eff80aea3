"""What HTTP engines say of themselves, as bytes in: `/v1/models`, `/version`, Prometheus' `/metrics`. Pure; called by `engine.py`.

Shapes of vLLM 0.11 (vllm/entrypoints/openai/protocol.py, vllm/v1/metrics/loggers.py), SGLang 0.5 (sglang/srt/metrics/collector.py) and
llama.cpp's server (tools/server/README.md). What is missing or of another type counts as not said.
"""

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from smg.engine.base import Load, ModelInfo, ServerInfo
from smg.errors import EngineProtocol

__all__ = ["OWNERS", "loads_of_metrics", "model_info_of", "owner_of", "ranks_in_metrics", "server_info_of", "version_of"]

# What `owned_by` says -> the runtime's name.
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
MOST_NAMES = 256
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio")
SPEED = ("sglang:gen_throughput", "llamacpp:predicted_tokens_seconds")
ROOM = ("sglang:max_total_num_tokens",)
# Where an engine tells only the share of its cache that is used: the share is what counts.
SHARE_OF = 1_000_000
# By which vLLM and SGLang tell the series of data-parallel ranks apart.
RANK = re.compile(r'[{,](?:engine|dp_rank)="(\d{1,4})"')

Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Card(Struct, frozen=True):
    """One entry of `/v1/models`."""

    id: str
    root: str | None = None
    owned_by: str = ""
    max_model_len: Count | None = None
    parent: str | None = None


class Cards(Struct, frozen=True):
    """The list."""

    data: list[Card]


class Version(Struct, frozen=True):
    """`/version`."""

    version: str = ""


class Server(Struct, frozen=True):
    """`/get_server_info`."""

    version: str = ""
    dp_size: Annotated[int, Meta(ge=1, le=1 << 16)] = 1
    disaggregation_bootstrap_port: Annotated[int, Meta(ge=0, le=65535)] | None = None


CARDS = msgspec.json.Decoder(Cards)
VERSION = msgspec.json.Decoder(Version)
SERVER = msgspec.json.Decoder(Server)


def cards_of(body: bytes) -> list[Card]:
    """Raises EngineProtocol."""
    try:
        cards = CARDS.decode(body).data
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineProtocol("the engine's list of models cannot be read", detail=str(error)) from error
    if not cards:
        raise EngineProtocol("the engine lists no model")
    return cards


def owner_of(body: bytes) -> str:
    """Gives the runtime's name, `openai` for one that is not known. Raises EngineProtocol."""
    return OWNERS.get(cards_of(body)[0].owned_by, "openai")


def model_info_of(body: bytes) -> ModelInfo:
    """Gives the first model; the others, as adapters and further names are listed, are `names`. Raises EngineProtocol."""
    first, *others = cards_of(body)
    return ModelInfo(
        served_name=first.id,
        model_path=first.root or "",
        context_length=first.max_model_len or 0,
        names=tuple(card.id for card in others[:MOST_NAMES]),
    )


def version_of(body: bytes) -> str:
    """Gives the version, empty where there is none."""
    try:
        return VERSION.decode(body).version[:80]
    except (msgspec.DecodeError, RecursionError):
        return ""


def server_info_of(body: bytes) -> ServerInfo:
    """Gives what SGLang's `/get_server_info` says; nothing for what cannot be read."""
    try:
        said = SERVER.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ServerInfo()
    port = said.disaggregation_bootstrap_port or 0
    return ServerInfo(version=said.version[:80], data_parallel_size=said.dp_size, bootstrap_port=port)


def ranks_in_metrics(text: str) -> int:
    """Gives the number of data-parallel ranks behind one address of vLLM, which labels its series with them; 1 where they do not begin with
    0: the others have addresses of their own then.
    """
    ranks = {rank for rank in map(_rank, _series(text)) if rank is not None}
    return len(ranks) if ranks == set(range(len(ranks))) and ranks else 1


def loads_of_metrics(text: str) -> list[Load]:
    """Gives the load of each rank that Prometheus' text names, in their order, or the one of an engine that names none; empty when it says
    nothing known. Series of one name and rank are added up, of shares the highest counts.
    """
    ranks: dict[int, list[str]] = {}
    for line in _series(text):
        ranks.setdefault(_rank(line) or 0, []).append(line)
    loads = (_load(rank, lines) for rank, lines in sorted(ranks.items()))
    return [load for load in loads if load is not None]


def _series(text: str) -> list[str]:
    """The lines of an engine's own series."""
    return [line for line in text.splitlines() if not line.startswith("#") and ":" in line.partition("{")[0].partition(" ")[0]]


def _rank(line: str) -> int | None:
    found = RANK.search(line)
    return int(found[1]) if found else None


def _load(rank: int, lines: list[str]) -> Load | None:
    sums: dict[str, float] = {}
    shares: dict[str, float] = {}
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        value = _number(line.rpartition(" ")[2])
        sums[name] = sums.get(name, 0.0) + value
        shares[name] = max(shares.get(name, 0.0), value)
    if not any(name in sums for name in (*RUNNING, *WAITING)):
        return None
    room = int(_first(sums, ROOM)) or SHARE_OF
    return Load(
        rank=rank,
        running=int(_first(sums, RUNNING)),
        waiting=int(_first(sums, WAITING)),
        used_tokens=int(min(_first(shares, USAGE), 1.0) * room),
        max_tokens=room,
        generated_per_s=_first(sums, SPEED),
    )


def _first(values: dict[str, float], names: tuple[str, ...]) -> float:
    return next((values[name] for name in names if name in values), 0.0)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e12 else 0.0
