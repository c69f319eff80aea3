"""What is known of each engine: the control process makes and publishes it (`smg.worker.snapshot`), data workers read it."""

import enum
from typing import Literal

from msgspec import Struct

from smg.engine import ModelInfo, ServerInfo

__all__ = ["EngineRecord", "EngineSpec", "EngineState", "Role", "Snapshot"]

# Which part of a request an engine computes: all of it, or one leg where prefill and decode are apart.
Role = Literal["regular", "prefill", "decode"]


class EngineState(enum.IntEnum):
    """How an engine is: kept in shared memory, by slot."""

    PENDING = 0
    READY = 1
    NOT_READY = 2
    FAILED = 3
    DRAINING = 4


class EngineSpec(Struct, frozen=True, kw_only=True):
    """What an operator or a discovery says of an engine, before it was asked anything.

    `source` names who said it (config, api, file, kubernetes), and takes it away again; `backend`: the protocol, auto = ask the engine;
    `bootstrap_port`: where a prefill engine of SGLang hands over its KV cache, 0 = not said.
    """

    url: str
    source: str = "config"
    backend: str = "auto"
    role: Role = "regular"
    bootstrap_port: int = 0
    labels: tuple[tuple[str, str], ...] = ()


class EngineRecord(EngineSpec, frozen=True, kw_only=True):
    """One registered engine. `epoch` tells lives of a reused `slot` apart; `model` and `runtime` are empty until the engine was asked.

    `context_length` in tokens, 0 = unknown; `tokenizer_dir`: where the tokenizer fetched from the engine lies.
    """

    slot: int
    epoch: int
    id: str
    runtime: str = ""
    model: str = ""
    aliases: tuple[str, ...] = ()
    context_length: int = 0
    info: ModelInfo = ModelInfo()
    server: ServerInfo = ServerInfo()
    tokenizer_dir: str | None = None


class Snapshot(Struct, frozen=True, kw_only=True):
    """Every registered engine at one time."""

    generation: int = 0
    engines: tuple[EngineRecord, ...] = ()
