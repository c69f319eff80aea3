"""`/workers` and `/workers/{id}`: the engines, listed, added, replaced, changed and taken away at run time, with the original's fields.

A data worker checks the body and asks the control process, which does it for all. What takes time, asking a new engine or waiting for the
requests of a removed one, goes on after the answer 202: the engine's `status` and `job_status` say how far it is.
"""

import logging
import uuid
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from smg.api.base import JSON, Reply, Request, Services
from smg.api.decode import decode, described
from smg.api.errors import DIALECTS, Dialect
from smg.api.sse import event
from smg.errors import InvalidValue, SmgError
from smg.types.json import JsonObject
from smg.types.workers import WorkerBody, WorkerInfo, WorkerPatch
from smg.worker import check_allowed, edit_said, spec_said

__all__ = ["add_worker", "edit_worker", "get_worker", "list_workers", "remove_worker", "replace_worker"]

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

# What GET says, and what the original takes and has no use here: the address says how an engine is reached, the engine its ranks.
SAID_BY_US = {"id", "is_healthy", "load", "status", "source", "job_status", "connection_mode", "dp_base_url", "dp_rank", "dp_size"}
WITHOUT_USE = SAID_BY_US | {"kv_connector", "kv_role", "kv_engine_id", "bootstrap_host", "max_connection_attempts"}
LONGEST_TEXT = 2048
CODES = {"not_found": "WORKER_NOT_FOUND", "conflict": "WORKER_ALREADY_EXISTS"}

OBJECT = msgspec.json.Decoder(dict[str, object])
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
    """Takes an engine in. Raises Conflict when its address is registered, Forbidden when engines may not be there."""
    spec = spec_said(_read(await http.body(), WorkerBody), source="api")
    await check_allowed(spec.url, services.config.engines.worker_url_allow)
    info = INFO.decode(await services.control("workers.add", spec))
    location = f"/workers/{info.id}"
    _told(http, "added", info)
    body = _accepted(info, "the worker is being added") | {"url": info.url, "location": location}
    return Reply(status=202, headers=(*JSON, ("location", location)), body=msgspec.json.encode(body))


async def replace_worker(http: Request, services: Services) -> Reply:
    """Says everything of an engine anew. Raises NotFound, InvalidValue for another address."""
    number = _number(http)
    spec = spec_said(_read(await http.body(), WorkerBody), source="api")
    info = INFO.decode(await services.control("workers.replace", {"id": number, "spec": spec}))
    _told(http, "replaced", info)
    return Reply(status=202, body=msgspec.json.encode(_accepted(info, "the worker is being replaced")))


async def edit_worker(http: Request, services: Services) -> Reply:
    """Changes priority, cost, labels, key or health checks of an engine. Raises NotFound."""
    number = _number(http)
    patch = _read(await http.body(), WorkerPatch)
    edit = edit_said(patch)
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
        if name not in known and name not in WITHOUT_USE and value not in (None, {}, []):
            raise InvalidValue(f"{name[:64]!r} is not supported", param=name[:64])
    try:
        return msgspec.convert({name: fields[name] for name in known if name in fields}, wanted)
    except msgspec.ValidationError as error:
        raise described(error) from error
