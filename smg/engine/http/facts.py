"""What HTTP engines say of themselves, as bytes in: `/v1/models`, `/version`, Prometheus' `/metrics`. Pure; called by `engine.py`.

Shapes of vLLM 0.11 (vllm/entrypoints/openai/protocol.py, vllm/v1/metrics/loggers.py), SGLang 0.5 (sglang/srt/metrics/collector.py) and
llama.cpp's server (tools/server/README.md). What is missing or of another type counts as not said.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from smg.engine.base import Load, ModelInfo
from smg.errors import EngineProtocol

__all__ = ["OWNERS", "load_of_metrics", "model_info_of", "owner_of", "version_of"]

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


CARDS = msgspec.json.Decoder(Cards)
VERSION = msgspec.json.Decoder(Version)


def cards_of(body: bytes) -> list[Card]:
    """Raises EngineProtocol."""
    try:
        cards = CARDS.decode(body).data
    except msgspec.DecodeError as error:
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
    except msgspec.DecodeError:
        return ""


def load_of_metrics(text: str) -> Load | None:
    """Gives the load that Prometheus' text says; None when it says nothing known. Series of one name are added up, shares the highest."""
    sums: dict[str, float] = {}
    shares: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if ":" in name:
            value = _number(line.rpartition(" ")[2])
            sums[name] = sums.get(name, 0.0) + value
            shares[name] = max(shares.get(name, 0.0), value)
    if not any(name in sums for name in (*RUNNING, *WAITING)):
        return None
    room = int(_first(sums, ROOM)) or SHARE_OF
    return Load(
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
