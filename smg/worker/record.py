"""What is known of each engine: the control process makes and publishes it (`smg.worker.snapshot`), data workers read it."""

import enum
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from smg.engine import HTTP_SCHEMES, ModelInfo, ServerInfo

__all__ = [
    "DEPARTED_S",
    "Edit",
    "EngineRecord",
    "EngineSpec",
    "EngineState",
    "HealthEdit",
    "Role",
    "Snapshot",
    "Source",
    "lacking",
    "spec_of",
]

# For so long a model is remembered whose last engine has left.
DEPARTED_S = 600.0

# Who said that there is an engine: the configuration, the workers API, the watched file, or Kubernetes.
Source = Literal["config", "api", "file", "kubernetes"]

# Which part of a request an engine computes: all of it, or one leg where prefill and decode are apart.
Role = Literal["regular", "prefill", "decode"]


class EngineState(enum.IntEnum):
    """How an engine is: kept in shared memory, by slot."""

    PENDING = 0
    READY = 1
    NOT_READY = 2
    FAILED = 3
    DRAINING = 4


class HealthEdit(Struct, frozen=True, kw_only=True):
    """How one engine is watched where that differs from the configuration; None = as configured. Times in seconds."""

    check_timeout_s: float | None = None
    check_interval_s: float | None = None
    success_threshold: int | None = None
    failure_threshold: int | None = None
    disable_check: bool | None = None


class EngineSpec(Struct, frozen=True, kw_only=True):
    """What an operator or a discovery says of an engine, before it was asked anything.

    `source` names who said it, and takes it away again; `backend`: the protocol, auto = ask the engine; `bootstrap_port`: where a prefill
    engine of SGLang hands over its KV cache, 0 = not said; `served_as` and `served_aliases`: the model's names in place of those that the
    engine gives; `api_key`: sent to this engine in place of the gateway's. `priority` and `cost` are kept for who asks; routing does not go
    by them.
    """

    url: str
    source: Source = "config"
    backend: str = "auto"
    role: Role = "regular"
    bootstrap_port: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    served_as: str = ""
    served_aliases: tuple[str, ...] = ()
    api_key: str = ""
    priority: int = 50
    cost: float = 1.0
    health: HealthEdit = HealthEdit()

    @property
    def relayed(self) -> bool:
        """True for an engine that is asked over HTTP: requests are passed on to it as they are."""
        return self.url.startswith(HTTP_SCHEMES)


class Edit(Struct, frozen=True, kw_only=True):
    """What the workers API changed of an engine, whoever said it; None = nothing. `removed`: it is to be away though somebody says it."""

    removed: bool = False
    labels: tuple[tuple[str, str], ...] | None = None
    priority: int | None = None
    cost: float | None = None
    api_key: str | None = None
    health: HealthEdit | None = None


class EngineRecord(EngineSpec, frozen=True, kw_only=True):
    """One registered engine, or one data-parallel rank of it where ranks are routed to: `url` is then `base_url` with `@RANK`.

    `epoch` tells lives of a reused `slot` apart; `model` and `runtime` are empty until the engine was asked. `context_length` in tokens, 0
    = unknown; `tokenizer_dir`: where the tokenizer fetched from the engine lies.
    """

    slot: int
    epoch: int
    id: str
    base_url: str = ""
    rank: int | None = None
    runtime: str = ""
    model: str = ""
    aliases: tuple[str, ...] = ()
    context_length: int = 0
    info: ModelInfo = ModelInfo()
    server: ServerInfo = ServerInfo()
    tokenizer_dir: str | None = None

    @property
    def address(self) -> str:
        """Where the engine is reached, the same for all its ranks."""
        return self.base_url or self.url

    @property
    def handover_port(self) -> int:
        """Where a prefill engine hands over its KV cache: as was said of it, else as it says itself; 0 = nobody has said."""
        return self.bootstrap_port or self.server.bootstrap_port


def lacking(ready: Iterable[EngineRecord]) -> str:
    """Says what is missing before any request can be answered by these engines, all of them ready; empty when nothing is."""
    roles: dict[str, set[Role]] = {}
    for record in ready:
        roles.setdefault(record.model, set()).add(record.role)
    if any("regular" in each or len(each) > 1 for each in roles.values()):
        return ""
    alone = next(iter(roles.values()), None)
    return "no healthy worker" if alone is None else f"no healthy {'decode' if 'prefill' in alone else 'prefill'} worker"


class Snapshot(Struct, frozen=True, kw_only=True):
    """Every registered engine at one time, with what the workers API changed, by address.

    `departed`: models whose last engine left, each with its other names and the Unix time of that.
    """

    generation: int = 0
    engines: tuple[EngineRecord, ...] = ()
    edits: dict[str, Edit] = {}
    departed: dict[str, tuple[tuple[str, ...], float]] = {}


def spec_of(record: EngineRecord) -> EngineSpec:
    """Gives what was said of a registered engine, whichever of its ranks the record is."""
    said = {name: getattr(record, name) for name in EngineSpec.__struct_fields__}
    return EngineSpec(**said | {"url": record.address})
