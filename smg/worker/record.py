"""What is known of each engine: the control process makes and publishes it (`smg.worker.snapshot`), data workers read it."""

import enum

from msgspec import Struct

from smg.engine import ModelInfo, ServerInfo

__all__ = ["EngineRecord", "EngineState", "Snapshot"]


class EngineState(enum.IntEnum):
    """How an engine is: kept in shared memory, by slot."""

    PENDING = 0
    READY = 1
    NOT_READY = 2
    FAILED = 3
    DRAINING = 4


class EngineRecord(Struct, frozen=True, kw_only=True):
    """One registered engine. `epoch` tells lives of a reused `slot` apart; `model` and `runtime` are empty until the engine was asked.

    `context_length` in tokens, 0 = unknown; `tokenizer_dir`: where the tokenizer fetched from the engine lies.
    """

    slot: int
    epoch: int
    id: str
    url: str
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
