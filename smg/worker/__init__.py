"""Engines as the gateway knows them: registry and health checks in the control process, view and connections in each data worker."""

__all__ = [
    "Detector",
    "EnginePool",
    "EngineRecord",
    "EngineSpec",
    "EngineState",
    "Fleet",
    "Lease",
    "Registry",
    "Role",
    "Snapshot",
    "WorkerView",
    "engine_options",
    "listed_engines",
    "read_snapshot",
]

from smg.worker.detect import Detector
from smg.worker.listed import listed_engines
from smg.worker.pool import EnginePool, engine_options
from smg.worker.record import EngineRecord, EngineSpec, EngineState, Role, Snapshot
from smg.worker.registry import Registry
from smg.worker.snapshot import read_snapshot
from smg.worker.view import Lease, WorkerView
from smg.worker.watch import Fleet
