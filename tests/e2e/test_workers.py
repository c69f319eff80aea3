"""Engines added to and taken from a running gateway, with streams under way and processes that die."""

import os
import signal
from collections.abc import Callable

import httpx
import pytest

from smg.sim.processes import Child, sim_command
from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import TAG, Fleet, Gateway, SimEngine, wait_until

CHAT = "/v1/chat/completions"


@pytest.fixture
def spare(own_fleet: Fleet) -> Callable[..., SimEngine]:
    """Starts an engine that the gateway does not know yet."""

    def start(*flags: str) -> SimEngine:
        command = sim_command(protocol="vllm", flags=("--status-port", "0", *SIM_FLAGS, *flags))
        return SimEngine(own_fleet._stack.enter_context(Child("spare", command=command, environment={TAG: own_fleet.tag})))

    return start


def add(http: httpx.Client, engine: SimEngine, **body: object) -> str:
    reply = http.post("/workers", json={"url": engine.url, **body})
    assert reply.status_code == 202, reply.text
    location = reply.headers["location"]
    wait_until(lambda: http.get(location).json()["is_healthy"], what="the engine is ready")
    return str(location)


def ask(http: httpx.Client, model: str, marker: str = "tokens=2") -> httpx.Response:
    message = {"role": "user", "content": f"Go on. [[sim: {marker}]]"}
    return http.post(CHAT, json={"model": model, "messages": [message], "max_tokens": 2000})


def control(gateway: Gateway) -> int:
    """The pid of the control process."""
    children = f"/proc/{gateway.child.process.pid}/task/{gateway.child.process.pid}/children"
    with open(children) as file:
        pids = [int(word) for word in file.read().split()]
    for pid in pids:
        with open(f"/proc/{pid}/comm") as file:
            if file.read().startswith("smg:control"):
                return pid
    raise AssertionError("no control process")


def test_engines_come_and_go(own_fleet: Fleet, spare: Callable[..., SimEngine]) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "2"))
    second = spare("--served-name", "other-model")
    with gateway.http() as http:
        assert ask(http, "other-model").status_code == 404
        location = add(http, second, models=[{"id": "renamed", "aliases": ["short"]}])
        assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["sim-model", "renamed"]
        for name in ("renamed", "short", "other-model"):
            assert ask(http, name).status_code == 200
        assert second.counters()["started"] == 3
        message = {"role": "user", "content": "Go on. [[sim: tokens=100 itl_ms=40]]"}
        body = {"model": "renamed", "messages": [message], "max_tokens": 200, "stream": True}
        with http.stream("POST", CHAT, json=body) as reply, gateway.http() as admin:
            lines = reply.iter_lines()
            assert next(lines).startswith("data: ")
            assert admin.delete(location).status_code == 202
            assert admin.get(location).json()["status"] == "draining"
            refused = ask(admin, "renamed")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_engine")
            assert refused.headers["retry-after"]
            assert [line for line in lines if line][-1] == "data: [DONE]"
        wait_until(lambda: http.get(location).status_code == 404, what="the engine is gone")
        assert ask(http, "renamed").status_code == 503  # it may come back
        assert ask(http, "sim-model").status_code == 200
        metrics = {worker["url"]: worker for worker in http.get("/workers").json()["workers"]}
        assert list(metrics) == [gateway.engines[0].url]


def test_the_control_process_dies(own_fleet: Fleet, spare: Callable[..., SimEngine]) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "2"))
    with gateway.http() as http:
        location = add(http, spare("--served-name", "other-model"))
        first = next(worker for worker in http.get("/workers").json()["workers"] if worker["source"] == "config")
        assert http.patch(f"/workers/{first['id']}", json={"priority": 7}).status_code == 202
        pid = control(gateway)
        os.kill(pid, signal.SIGSTOP)
        reply = http.get("/workers")
        assert (reply.status_code, reply.json()["code"], reply.headers["retry-after"]) == (503, "CONTROL_UNAVAILABLE", "1")
        assert ask(http, "other-model").status_code == 200
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: http.get("/workers").status_code == 200, what="a new control process answers")
        worker = http.get(location).json()
        assert (worker["source"], worker["model_id"]) == ("api", "other-model")
        assert http.get(f"/workers/{first['id']}").json()["priority"] == 7
        assert ask(http, "other-model").status_code == 200
