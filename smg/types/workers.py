"""The wire structs of `/workers`, with the field names of the original (inventory, "WorkerSpec")."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = ["HealthBody", "JobStatus", "ModelBody", "WorkerBody", "WorkerInfo", "WorkerPatch"]

Role = Literal["regular", "prefill", "decode", "encode"]


class HealthBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How one engine is watched, where that differs from the configuration."""

    timeout_secs: float | UnsetType = UNSET
    check_interval_secs: float | UnsetType = UNSET
    success_threshold: int | UnsetType = UNSET
    failure_threshold: int | UnsetType = UNSET
    disable_health_check: bool | UnsetType = UNSET


class ModelBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One of an engine's models; what is not here is asked of the engine."""

    id: str
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    tokenizer_path: str | None = None
    reasoning_parser: str | None = None
    tool_parser: str | None = None


class WorkerBody(Struct, frozen=True, kw_only=True):
    """The body of POST and PUT. Fields without use here are known to `smg.api.workers`."""

    url: str
    models: tuple[ModelBody, ...] = ()
    model_id: str | None = None
    worker_type: Role = "regular"
    runtime_type: str | None = None
    runtime: str | None = None
    labels: dict[str, str] = {}
    priority: int = 50
    cost: float = 1.0
    api_key: str | None = None
    bootstrap_port: int | None = None
    health: HealthBody = HealthBody()


class WorkerPatch(Struct, frozen=True, kw_only=True):
    """The body of PATCH; what it leaves out stays as it is."""

    priority: int | None = None
    cost: float | None = None
    labels: dict[str, str] | None = None
    api_key: str | None = None
    health: HealthBody | None = None


class JobStatus(Struct, frozen=True, kw_only=True):
    """What is under way with an engine. `timestamp`: Unix time in whole seconds."""

    job_type: Literal["AddWorker", "RemoveWorker"]
    worker_url: str
    status: Literal["pending", "processing", "failed"]
    timestamp: int
    message: str | None = None


class WorkerInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What GET says of an engine, or of one data-parallel rank of it. `load`: requests under way there; `source`: who named it."""

    id: str
    url: str
    worker_type: str
    connection_mode: str
    runtime_type: str
    priority: int
    cost: float
    is_healthy: bool
    load: int
    status: str
    source: str
    model_id: str | None = None
    models: tuple[ModelBody, ...] = ()
    labels: dict[str, str] = {}
    bootstrap_port: int | None = None
    dp_base_url: str | None = None
    dp_rank: int | None = None
    dp_size: int | None = None
    kv_connector: str | None = None
    kv_engine_id: str | None = None
    health: HealthBody | None = None
    job_status: JobStatus | None = None
