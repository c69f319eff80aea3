"""`/workers` and `/workers/{id}`: the engines, listed, added, replaced, changed and taken away at run time, with the original's fields.

A data worker checks the body and asks the control process, which does it for all. What takes time, asking a new engine or waiting for the
requests of a removed one, goes on after the answer 202: the engine's `status` and `job_status` say how far it is.
"""

import logging
import math
import uuid
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET

from smg.api.base import JSON, Reply, Request, Services
from smg.api.decode import decode, described
from smg.api.errors import DIALECTS, Dialect
from smg.api.sse import event
from smg.config.check import address_fault
from smg.config.choices import BACKENDS
from smg.errors import InvalidValue, SmgError
from smg.types.json import JsonObject
from smg.types.workers import HealthBody, WorkerBody, WorkerInfo, WorkerPatch
from smg.worker import Edit, EngineSpec, HealthEdit

__all__ = ["add_worker", "edit_worker", "get_worker", "list_workers", "remove_worker", "replace_worker"]

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

# What GET says, and what the original takes and has no use here: the address says how an engine is reached, the engine its ranks.
SAID_BY_US = {"id", "is_healthy", "load", "status", "source", "job_status", "connection_mode", "dp_base_url", "dp_rank", "dp_size"}
WITHOUT_USE = SAID_BY_US | {"kv_connector", "kv_role", "kv_engine_id", "bootstrap_host", "max_connection_attempts"}
LONGEST_TEXT = 2048
MOST_LABELS = 64
AUTOMATIC = ("", "unspecified", "auto")
# Fields of a model that its engines say of it as labels.
MODEL_LABELS = ("tokenizer_path", "reasoning_parser", "tool_parser")
CODES = {"not_found": "WORKER_NOT_FOUND", "conflict": "WORKER_ALREADY_EXISTS"}

OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
INFO = msgspec.msgpack.Decoder(WorkerInfo)
INFOS = msgspec.msgpack.Decoder(list[WorkerInfo])


class WorkersDialect(Dialect):
    """The original's own shape for these paths."""

    def body(self, error: SmgError) -> bytes:
        code = CODES.get(error.code) or ("BAD_REQUEST" if error.status == 400 else error.code.upper())
        return msgspec.json.encode({"error": error.message, "code": code})

    def stream(self, error: SmgError) -> bytes:
        return event(self.body(error))


DIALECTS.register("workers")(WorkersDialect())


async def list_workers(http: Request, services: Services) -> Reply:
    """Gives all engines, or those of `?model=`."""
    model = parse_qs(http.query[:LONGEST_TEXT]).get("model", [""])[-1]
    infos = INFOS.decode(await services.control("workers.list", model))
    stats = {f"{role}_count": sum(info.worker_type == role for info in infos) for role in ("prefill", "decode", "regular")}
    return Reply(body=msgspec.json.encode({"workers": infos, "total": len(infos), "stats": stats}))


async def get_worker(http: Request, services: Services) -> Reply:
    """Gives one engine. Raises NotFound."""
    return Reply(body=msgspec.json.encode(INFO.decode(await services.control("workers.get", _number(http)))))


async def add_worker(http: Request, services: Services) -> Reply:
    """Takes an engine in. Raises Conflict when its address is registered."""
    spec = _spec(_read(await http.body(), WorkerBody))
    info = INFO.decode(await services.control("workers.add", spec))
    location = f"/workers/{info.id}"
    _told(http, "added", info)
    body = _accepted(info, "the worker is being added") | {"url": info.url, "location": location}
    return Reply(status=202, headers=(*JSON, ("location", location)), body=msgspec.json.encode(body))


async def replace_worker(http: Request, services: Services) -> Reply:
    """Says everything of an engine anew. Raises NotFound, InvalidValue for another address."""
    number = _number(http)
    spec = _spec(_read(await http.body(), WorkerBody))
    info = INFO.decode(await services.control("workers.replace", {"id": number, "spec": spec}))
    _told(http, "replaced", info)
    return Reply(status=202, body=msgspec.json.encode(_accepted(info, "the worker is being replaced")))


async def edit_worker(http: Request, services: Services) -> Reply:
    """Changes priority, cost, labels, key or health checks of an engine. Raises NotFound."""
    number = _number(http)
    patch = _read(await http.body(), WorkerPatch)
    edit = Edit(
        priority=patch.priority,
        cost=patch.cost if patch.cost is None else _finite(patch.cost, "cost"),
        labels=None if patch.labels is None else _labels(patch.labels),
        api_key=None if patch.api_key is None else _header(patch.api_key),
        health=None if patch.health is None else _health(patch.health),
    )
    info = INFO.decode(await services.control("workers.edit", {"id": number, "edit": edit}))
    _told(http, "changed", info)
    return Reply(status=202, body=msgspec.json.encode(_accepted(info, "the worker is being changed")))


async def remove_worker(http: Request, services: Services) -> Reply:
    """Has an engine drained and let go. Raises NotFound."""
    info = INFO.decode(await services.control("workers.remove", _number(http)))
    _told(http, "removed", info)
    return Reply(status=202, body=msgspec.json.encode(_accepted(info, "the worker is being removed")))


def _accepted(info: WorkerInfo, message: str) -> JsonObject:
    return {"status": "accepted", "worker_id": info.id, "message": message}


def _told(http: Request, what: str, info: WorkerInfo) -> None:
    log.info(f"worker {what}", extra={"engine": info.url, "request_id": http.request_id, "client": http.client})


def _number(http: Request) -> str:
    text = http.params["id"]
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InvalidValue(f"{text[:64]!r} is no worker's id, which is a UUID", param="id") from error


def _read(body: bytes, wanted: type[T]) -> T:
    """Gives the struct. A field that has no use here is refused by name, unless it changes nothing to leave it out."""
    fields = decode(body, OBJECT)
    known = {field.encode_name for field in msgspec.structs.fields(wanted)}
    for name, value in fields.items():
        if name not in known and name not in WITHOUT_USE and bytes(value) not in (b"null", b"{}", b"[]"):
            raise InvalidValue(f"{name[:64]!r} is not supported", param=name[:64])
    try:
        return msgspec.convert({name: msgspec.json.decode(fields[name]) for name in known if name in fields}, wanted)
    except msgspec.ValidationError as error:
        raise described(error) from error


def _spec(body: WorkerBody) -> EngineSpec:
    if fault := address_fault(body.url):
        raise InvalidValue(f"url: {body.url[:256]!r} {fault}", param="url")
    if body.worker_type == "encode":
        raise InvalidValue("worker_type: encode workers are not supported", param="worker_type")
    runtime = body.runtime_type or body.runtime or ""
    if runtime not in (*AUTOMATIC, *BACKENDS):
        raise InvalidValue(f"runtime_type: {runtime[:64]!r} is not one of {', '.join(BACKENDS)}", param="runtime_type")
    if len(body.models) > 1:
        raise InvalidValue("models: a worker serves one model", param="models")
    port = body.bootstrap_port or 0
    if not 0 <= port <= 65535:
        raise InvalidValue("bootstrap_port: must be in 0..65535", param="bootstrap_port")
    model = body.models[0] if body.models else None
    said = {name: value for name in MODEL_LABELS if model is not None and (value := getattr(model, name))}
    return EngineSpec(
        url=body.url.rstrip("/"),
        source="api",
        backend="auto" if runtime in AUTOMATIC else runtime,
        role=body.worker_type,
        bootstrap_port=port,
        labels=_labels(said | body.labels),
        served_as=_text(model.id if model else body.model_id or "", "models"),
        served_aliases=tuple(_text(alias, "models") for alias in model.aliases[:MOST_LABELS]) if model else (),
        api_key=_header(body.api_key or ""),
        priority=body.priority,
        cost=_finite(body.cost, "cost"),
        health=_health(body.health),
    )


def _labels(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    if len(labels) > MOST_LABELS:
        raise InvalidValue(f"labels may have at most {MOST_LABELS} entries", param="labels")
    return tuple((_text(name, "labels"), _text(value, "labels")) for name, value in labels.items())


def _text(value: str, param: str) -> str:
    if len(value) > LONGEST_TEXT or not value.isprintable():
        raise InvalidValue(f"{param}: a text is longer than {LONGEST_TEXT} characters or cannot be printed", param=param)
    return value


def _header(value: str) -> str:
    if len(value) > LONGEST_TEXT or not value.isascii() or not value.isprintable():
        raise InvalidValue("api_key: has characters that a header cannot carry", param="api_key")
    return value


def _finite(value: float, param: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise InvalidValue(f"{param}: must be a finite number, not negative", param=param)
    return value


def _health(body: HealthBody) -> HealthEdit:
    for name in ("timeout_secs", "check_interval_secs", "success_threshold", "failure_threshold"):
        value = getattr(body, name)
        if value is not UNSET and not 0 < value < 1e6:
            raise InvalidValue(f"health.{name}: must be above 0 and below a million", param=f"health.{name}")
    return HealthEdit(
        check_timeout_s=None if body.timeout_secs is UNSET else body.timeout_secs,
        check_interval_s=None if body.check_interval_secs is UNSET else body.check_interval_secs,
        success_threshold=None if body.success_threshold is UNSET else body.success_threshold,
        failure_threshold=None if body.failure_threshold is UNSET else body.failure_threshold,
        disable_check=None if body.disable_health_check is UNSET else body.disable_health_check,
    )
