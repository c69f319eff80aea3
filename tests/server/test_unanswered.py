"""What clients are told while no engine has said yet what it serves."""

import asyncio

import pytest

from smg.worker import EngineState
from tests.server.relaying import over

WAITS = "no engine has answered yet (1 is being tried)"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", {"error": {"message": WAITS, "type": "service_unavailable_error", "param": None, "code": "no_engine"}}),
        ("/v1/responses", {"error": {"message": WAITS, "type": "service_unavailable_error", "param": None, "code": "no_engine"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "overloaded_error", "message": WAITS}}),
    ],
)
def test_an_engine_that_has_not_answered_yet(path: str, told: dict[str, object]) -> None:
    """It may be one that serves the path, so a client is told to come again."""

    async def scene() -> None:
        async with asyncio.timeout(40), over({"url": "http://127.0.0.1:1"}) as gateway:
            gateway.shm.set_engine_state(0, EngineState.PENDING)
            reply = await gateway.http.post(path, json={"model": "org/m", "messages": [{"role": "user", "content": "Hi"}]})
            assert (reply.status_code, reply.json(), reply.headers["retry-after"]) == (503, told, "1")
            models, ready = await gateway.http.get("/v1/models"), await gateway.http.get("/readiness")
            assert (models.status_code, models.json()["error"]["message"]) == (503, WAITS)
            assert (ready.status_code, ready.json()["healthy_workers"], ready.json()["total_workers"]) == (503, 0, 1)

    asyncio.run(scene())
