"""Engines as the gateway knows them: registry and health checks in the control process, view and connections in each data worker."""

__all__ = [
    "Detector",
    "EnginePool",
    "EngineRecord",
    "EngineState",
    "Fleet",
    "Lease",
    "Registry",
    "Snapshot",
    "WorkerView",
    "engine_options",
    "read_snapshot",
]

from smg.worker.detect import Detector
from smg.worker.pool import EnginePool, engine_options
from smg.worker.record import EngineRecord, EngineState, Snapshot
from smg.worker.registry import Registry
from smg.worker.snapshot import read_snapshot
from smg.worker.view import Lease, WorkerView
from smg.worker.watch import Fleet
