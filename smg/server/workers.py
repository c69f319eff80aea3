"""The control process's side of `/workers`: what the data workers ask over the UNIX socket, as methods of its `AdminServer`.

In: the data of a call, checked by `smg.api.workers`. Out: engines as the API tells of them. Everything is done at once; that an engine
is asked, or ends its requests, is told by its status.
"""

import time
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from smg.errors import Conflict, InvalidValue, NotFound
from smg.types.workers import HealthBody, JobStatus, ModelBody, WorkerInfo
from smg.worker import Edit, EngineRecord, EngineSpec, EngineState, Fleet, HealthEdit, Registry

__all__ = ["WorkerCalls", "WorkerChange"]


class WorkerChange(Struct, frozen=True, kw_only=True):
    """An engine by its id, and what it is to be: all of it, or what changes."""

    id: str
    spec: EngineSpec | None = None
    edit: Edit | None = None


CHANGE = msgspec.msgpack.Decoder(WorkerChange)
SPEC = msgspec.msgpack.Decoder(EngineSpec)
TEXT = msgspec.msgpack.Decoder(str)
# Nothing is wrong with an engine that has not been asked, or has not answered well as often as it must.
NO_REASON = "its first checks have not ended"


class WorkerCalls:
    """Answers from the event loop of the control process."""

    def __init__(self, fleet: Fleet, registry: Registry) -> None:
        self._fleet = fleet
        self._registry = registry

    def methods(self) -> Mapping[str, Callable[[msgspec.Raw], object]]:
        """Gives the methods by name."""
        return {
            "workers.list": self.all,
            "workers.get": self.one,
            "workers.add": self.add,
            "workers.replace": self.replace,
            "workers.edit": self.edit,
            "workers.remove": self.remove,
        }

    def all(self, data: msgspec.Raw) -> list[WorkerInfo]:
        """Gives every engine, or those of the model that `data` names, also by another name of it."""
        model = TEXT.decode(data)
        return [self._info(record) for record in self._registry.records() if not model or model in (record.model, *record.aliases)]

    def one(self, data: msgspec.Raw) -> WorkerInfo:
        """Gives the engine with an id. Raises NotFound."""
        return self._info(self._found(TEXT.decode(data)))

    def add(self, data: msgspec.Raw) -> WorkerInfo:
        """Adds an engine. Raises Conflict when it is registered, InvalidValue when there is no room."""
        spec = SPEC.decode(data)
        record = self._registry.get(spec.url)
        if record is not None and self._registry.state(record) is not EngineState.DRAINING:
            raise Conflict(f"the worker {spec.url!r} is registered already, as {record.id}: PUT replaces it, PATCH changes it")
        self._fleet.add(spec)
        return self._info(self._at(spec.url))

    def replace(self, data: msgspec.Raw) -> WorkerInfo:
        """Says everything of an engine anew. Raises NotFound, and InvalidValue when it is to have another address."""
        change = CHANGE.decode(data)
        record = self._kept(change.id)
        assert change.spec is not None
        if change.spec.url not in (record.url, record.address):
            raise InvalidValue(f"the worker has the address {record.url!r}, which PUT cannot change: use DELETE and POST", param="url")
        self._fleet.add(msgspec.structs.replace(change.spec, url=record.address))
        return self._info(self._at(record.address))

    def edit(self, data: msgspec.Raw) -> WorkerInfo:
        """Changes some of what is said of an engine. Raises NotFound."""
        change = CHANGE.decode(data)
        record = self._kept(change.id)
        assert change.edit is not None
        self._fleet.edit(record.address, change.edit)
        return self._info(self._at(record.address))

    def remove(self, data: msgspec.Raw) -> WorkerInfo:
        """Has an engine, all of its ranks, drained and let go. Raises NotFound."""
        record = self._found(TEXT.decode(data))
        self._fleet.remove(record.address)
        return self._info(record)

    def _found(self, number: str) -> EngineRecord:
        record = self._registry.find(number)
        if record is None:
            raise NotFound(f"there is no worker {number}")
        return record

    def _kept(self, number: str) -> EngineRecord:
        """One that drains is gone for who changes it, as it will be in a moment: only POST takes it back."""
        record = self._found(number)
        if self._registry.state(record) is EngineState.DRAINING:
            raise NotFound(f"the worker {number} is being removed")
        return record

    def _at(self, url: str) -> EngineRecord:
        record = self._registry.get(url)
        assert record is not None
        return record

    def _info(self, record: EngineRecord) -> WorkerInfo:
        state = self._registry.state(record)
        size = len(self._registry.ranks(record.address))
        return WorkerInfo(
            id=record.id,
            url=record.url,
            worker_type=record.role,
            connection_mode="http" if record.url.startswith("http") else "grpc",
            runtime_type=record.runtime or (record.backend if record.backend != "auto" else "unspecified"),
            priority=record.priority,
            cost=record.cost,
            is_healthy=state is EngineState.READY,
            load=self._registry.inflight(record)[0],
            status=state.name.lower(),
            source=record.source,
            model_id=record.model or None,
            models=_models(record),
            labels=dict(record.labels),
            bootstrap_port=record.bootstrap_port or None,
            dp_base_url=record.base_url or None,
            dp_rank=record.rank,
            dp_size=size if record.rank is not None else None,
            kv_connector=record.server.kv_connector or None,
            kv_engine_id=record.server.kv_engine_id or None,
            health=_health(record.health),
            job_status=self._job(record, state),
        )

    def _job(self, record: EngineRecord, state: EngineState) -> JobStatus | None:
        """What is under way, and why: an engine that serves has nothing."""
        watcher = self._fleet.watcher(record.address)
        since = int(watcher.since_s if watcher is not None else time.time())
        if state is EngineState.DRAINING:
            return JobStatus(job_type="RemoveWorker", worker_url=record.url, status="processing", timestamp=since)
        if state is EngineState.READY:
            return None
        asked = watcher is not None and watcher.seen.is_set()
        return JobStatus(
            job_type="AddWorker",
            worker_url=record.url,
            status="failed" if state is EngineState.FAILED else "processing" if asked else "pending",
            timestamp=since,
            message=(watcher.reason if watcher is not None else "") or NO_REASON,
        )


def _models(record: EngineRecord) -> tuple[ModelBody, ...]:
    if not record.model:
        return ()
    return (ModelBody(id=record.model, aliases=record.aliases, context_length=record.context_length or None),)


def _health(edit: HealthEdit) -> HealthBody | None:
    names = {
        "timeout_secs": edit.check_timeout_s,
        "check_interval_secs": edit.check_interval_s,
        "success_threshold": edit.success_threshold,
        "failure_threshold": edit.failure_threshold,
        "disable_health_check": edit.disable_check,
    }
    said = {name: value for name, value in names.items() if value is not None}
    return HealthBody(**said) if said else None  # type: ignore[arg-type]
