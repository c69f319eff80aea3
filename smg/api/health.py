"""`/health`, `/liveness`, `/readiness`: what probes ask. Public, and never waits for an engine."""

import msgspec

from smg.api.base import Reply, Request, Services
from smg.worker import EngineState, lacking

__all__ = ["health", "readiness"]


async def health(http: Request, services: Services) -> Reply:
    """The process answers, so it lives."""
    return Reply(body=b'{"status":"ok"}')


async def readiness(http: Request, services: Services) -> Reply:
    """200 while a ready engine is there and the gateway is not on its way out; else 503 with the reason. `total_workers` are all that
    are registered, also those that have not answered yet.
    """
    records = [record for engines in services.view.models().values() for record in engines]
    healthy = [record for record in records if services.view.state(record.slot) is EngineState.READY]
    total = len(services.view.registered())
    fields: dict[str, object] = {"status": "ready", "healthy_workers": len(healthy), "total_workers": total}
    if services.draining:
        fields |= {"status": "not_ready", "reason": "the gateway is draining"}
    elif reason := lacking(healthy):
        fields |= {"status": "not_ready", "reason": reason}
    return Reply(status=503 if "reason" in fields else 200, body=msgspec.json.encode(fields))
