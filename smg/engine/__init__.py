"""Engines: one interface, one driver a protocol, found by name. Called by `smg.worker` (opens, watches) and `smg.pipeline` (generates)."""

from smg.engine import mlx, sglang, tokenspeed, trtllm, vllm  # noqa: F401  each registers its driver
from smg.engine.base import (
    ENGINES,
    Engine,
    EngineDelta,
    EngineFinish,
    EngineOptions,
    EngineRequest,
    Failed,
    Features,
    KvTransfer,
    Load,
    ModelInfo,
    ResolvedSampling,
    ServerInfo,
    TokenScores,
)
from smg.engine.detect import detect
from smg.engine.events import KvBatch, KvBlock, KvCleared, KvRemoved, KvStored
from smg.engine.fields import field_table
from smg.engine.grpc import GrpcEngine
from smg.engine.http import HTTP_SCHEMES, Head, HttpCall, HttpEngine, HttpRequest
from smg.engine.pair import CAUSE_S, RELEASE_S, PairedEngine, Prefill
from smg.engine.reader import leave_call
from smg.engine.status import error_of_call
from smg.engine.transfer import meeting_host
from smg.errors import ConfigError

__all__ = [
    "CAUSE_S",
    "ENGINES",
    "HTTP_SCHEMES",
    "RELEASE_S",
    "Engine",
    "EngineDelta",
    "EngineFinish",
    "EngineOptions",
    "EngineRequest",
    "Failed",
    "Features",
    "GrpcEngine",
    "Head",
    "HttpCall",
    "HttpEngine",
    "HttpRequest",
    "KvBatch",
    "KvBlock",
    "KvCleared",
    "KvRemoved",
    "KvStored",
    "KvTransfer",
    "Load",
    "ModelInfo",
    "PairedEngine",
    "Prefill",
    "ResolvedSampling",
    "ServerInfo",
    "TokenScores",
    "detect",
    "error_of_call",
    "field_table",
    "leave_call",
    "meeting_host",
    "open_engine",
]


def open_engine(url: str, *, runtime: str, options: EngineOptions | None = None) -> Engine:
    """Makes the driver of a runtime, not started; any that is reached over HTTP has the same. Raises ConfigError for an unknown runtime."""
    if url.startswith(HTTP_SCHEMES):
        return HttpEngine(url, runtime=runtime, options=options)
    try:
        driver = ENGINES.get(runtime)
    except KeyError as error:
        raise ConfigError([str(error.args[0])]) from None
    return driver(url, options=options)
