"""Engines as the gateway knows them: registry and health checks in the control process, view and connections in each data worker."""

__all__ = ["EnginePool", "EngineRecord", "EngineState", "Lease", "Snapshot", "WorkerView", "engine_options"]

from smg.worker.pool import EnginePool, engine_options
from smg.worker.record import EngineRecord, EngineState, Snapshot
from smg.worker.view import Lease, WorkerView
