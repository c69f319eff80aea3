"""Engines that fail and clients that leave: what the client is told, and that the engine's work ends."""

import json
import socket
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway, SimEngine, wait_until
from tests.stopwatch import Stopwatch

CHAT = "/v1/chat/completions"
ABORT_WITHIN_S = 0.1


def body(marker: str, *, stream: bool, model: str = "sim-model") -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Go on. [[sim: {marker}]]"}]
    return {"model": model, "messages": messages, "stream": stream, "max_tokens": 2000}


def events(reply: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("fault", ["error:UNAVAILABLE@0", "rst@0", "end@0"])
@pytest.mark.parametrize("stream", [False, True])
def test_engine_that_fails_at_once(gateway: Gateway, fault: str, stream: bool) -> None:
    with gateway.http() as http:
        reply = http.post(CHAT, json=body(f"fault={fault}", stream=stream))
    assert reply.status_code in (502, 503)
    assert reply.json()["error"]["code"].startswith("engine_")


@pytest.mark.parametrize("fault", ["error:INTERNAL@3", "rst@3", "end@3"])
def test_engine_that_fails_in_mid_stream(gateway: Gateway, fault: str) -> None:
    with gateway.http() as http, http.stream("POST", CHAT, json=body(f"fault={fault} itl_ms=10", stream=True)) as reply:
        assert reply.status_code == 200
        received = events(reply)
    assert received[-1] == "[DONE]"
    error = json.loads(received[-2])["error"]
    assert error["code"].startswith("engine_")
    choices = [choice for event in received[:-2] for choice in json.loads(event).get("choices", [])]
    assert any(choice["delta"].get("content") for choice in choices)
    assert not any(choice["finish_reason"] for choice in choices), "a failed stream must not look finished"


@pytest.mark.parametrize("fault", ["error:INTERNAL@3", "rst@3", "end@3"])
def test_engine_that_fails_in_mid_answer(gateway: Gateway, fault: str) -> None:
    with gateway.http() as http:
        reply = http.post(CHAT, json=body(f"fault={fault}", stream=False))
    assert reply.status_code in (500, 502, 503)
    assert reply.json()["error"]["code"].startswith("engine_")


def test_engine_that_dies_in_mid_stream(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS)
    with gateway.http() as http, http.stream("POST", CHAT, json=body("tokens=2000 itl_ms=50", stream=True)) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: ")
        gateway.engines[0].kill()
        received = [line.removeprefix("data: ") for line in lines if line]
    assert received[-1] == "[DONE]"
    assert json.loads(received[-2])["error"]["code"] == "engine_unavailable"
    with gateway.http() as http:
        reply = http.post(CHAT, json=body("tokens=2", stream=False))
    assert reply.status_code == 503


def leave(gateway: Gateway, request: dict[str, Any], *, once: str) -> Stopwatch:
    """Sends a request, closes the connection once the engine has it (`started`) or has made tokens (`tokens`); gives a watch."""
    [engine] = gateway.engines
    before = engine.counters()
    with gateway.http() as http:
        call = http.build_request("POST", CHAT, json=request)
        if request["stream"] and once == "tokens":
            reply = http.send(call, stream=True)
            next(reply.iter_lines())
            watch = Stopwatch(gateway.child.process.pid, engine.child.process.pid)
            reply.close()
            return watch
    return leave_silently(gateway, call, engine=engine, before=before, once=once)


def leave_silently(gateway: Gateway, call: httpx.Request, *, engine: SimEngine, before: dict[str, int], once: str) -> Stopwatch:
    """The same before anything has come back: raw, as no HTTP client lets go of a request that is not answered."""
    host, _, port = gateway.base_url.removeprefix("http://").partition(":")
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(call.content)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(head.encode() + call.content)
        wait_until(lambda: engine.counters()[once] > before[once], what=f"the engine's {once} grew")
        return Stopwatch(gateway.child.process.pid, engine.child.process.pid)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("marker", "once"), [("ttft_ms=100000", "started"), ("tokens=2000 itl_ms=50", "tokens")])
def test_client_that_leaves(each_protocol: Gateway, stream: bool, marker: str, once: str) -> None:
    [engine] = each_protocol.engines
    before = engine.counters()["aborted"]
    watch = leave(each_protocol, body(marker, stream=stream, model=each_protocol.model), once=once)
    wait_until(lambda: engine.counters()["aborted"] > before, what="the engine was told that the client left")
    assert watch.seconds(until_s=engine.last_abort_s()) <= ABORT_WITHIN_S
    wait_until(each_protocol.idle, what="the engine has nothing left to do")
