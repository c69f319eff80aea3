"""Engines as the gateway knows them: registry and health checks in the control process, view and connections in each data worker."""

__all__ = [
    "Breaker",
    "Detector",
    "Discovery",
    "Edit",
    "EnginePool",
    "EngineRecord",
    "EngineSpec",
    "EngineState",
    "Fleet",
    "HealthEdit",
    "Lease",
    "Registry",
    "Role",
    "Snapshot",
    "Source",
    "WorkerView",
    "check_allowed",
    "edit_said",
    "engine_options",
    "lacking",
    "listed_engines",
    "read_snapshot",
    "spec_of",
    "spec_said",
]

from smg.worker.allowed import check_allowed
from smg.worker.breaker import Breaker
from smg.worker.detect import Detector
from smg.worker.discovery import Discovery
from smg.worker.fleet import Fleet
from smg.worker.listed import listed_engines
from smg.worker.pool import EnginePool, engine_options
from smg.worker.record import Edit, EngineRecord, EngineSpec, EngineState, HealthEdit, Role, Snapshot, Source, lacking, spec_of
from smg.worker.registry import Registry
from smg.worker.said import edit_said, spec_said
from smg.worker.snapshot import read_snapshot
from smg.worker.view import Lease, WorkerView
