"""Clients that leave in odd moments: whatever the gateway was doing for them ends, at the engine and in its own counts."""

import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway, wait_until
from tests.stopwatch import Stopwatch

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ABORT_WITHIN_S = 0.1


def connect(gateway: Gateway) -> socket.socket:
    host, _, port = gateway.base_url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head_of(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode()


def send(gateway: Gateway, path: str, request: dict[str, Any]) -> socket.socket:
    wire, data = connect(gateway), json.dumps(request).encode()
    wire.sendall(head_of(path, len(data)) + data)
    return wire


def reset(wire: socket.socket) -> None:
    """Closes with RST instead of FIN, as a client that crashed does."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def chat(marker: str, *, text: str = "Go on.", **fields: Any) -> dict[str, Any]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": f"{text} [[sim: {marker}]]"}], "max_tokens": 2000, **fields}


def started(gateway: Gateway) -> int:
    return sum(engine.counters()["started"] for engine in gateway.engines)


def aborts(gateway: Gateway) -> Sequence[float]:
    """The moments at which the engine was told, on the clock of `time.monotonic`, which processes share."""
    [engine] = gateway.engines
    return [abort["at_s"] for abort in engine.counters()["aborts"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("marker", ["ttft_ms=100000", "tokens=2000 itl_ms=50"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_abort_reaches_the_engine_at_once(gateway: Gateway, stream: bool, marker: str, leave: Any) -> None:
    [engine] = gateway.engines
    before = engine.counters()
    wire = send(gateway, CHAT, chat(marker, stream=stream))
    once = "started" if "ttft" in marker else "tokens"
    wait_until(lambda: engine.counters()[once] > before[once], what=f"the engine's {once} grew")
    left, watch = time.monotonic(), Stopwatch(gateway.child.process.pid, engine.child.process.pid)
    leave(wire)
    wait_until(lambda: engine.counters()["aborted"] > before["aborted"], what="the engine was told")
    first = min(at for at in aborts(gateway) if at > left)
    assert watch.seconds(until_s=first) < ABORT_WITHIN_S
    wait_until(gateway.idle, what="nothing is left")


def test_all_choices_of_all_prompts_are_aborted(gateway: Gateway) -> None:
    [engine] = gateway.engines
    before = engine.counters()
    prompts = [f"{number} [[sim: tokens=2000 itl_ms=50]]" for number in range(5)]
    wire = send(gateway, COMPLETIONS, {"model": "sim-model", "prompt": prompts, "n": 2, "max_tokens": 1000})
    wait_until(lambda: engine.counters()["started"] == before["started"] + 5, what="all five have started")
    wire.close()
    wait_until(lambda: engine.counters()["aborted"] == before["aborted"] + 5, what="all five were aborted")
    wait_until(gateway.idle, what="nothing is left")


def test_while_the_body_is_on_its_way(gateway: Gateway) -> None:
    before = started(gateway)
    wire = connect(gateway)
    wire.sendall(head_of(CHAT, 1_000_000) + b'{"model": "sim-model", "messages": [')
    wire.close()
    with gateway.http() as http:
        assert http.get("/health").status_code == 200
    assert started(gateway) == before
    assert gateway.idle()


def test_while_the_prompt_is_tokenized(gateway: Gateway) -> None:
    """A long prompt is tokenized in a thread; whoever has left by then costs the engine nothing, or an abort at once."""
    [engine] = gateway.engines
    before = engine.counters()
    for _ in range(5):
        send(gateway, CHAT, chat("tokens=2000 itl_ms=50", text="Über Köln 12,5 " * 4000)).close()
    with gateway.http() as http:
        http.post(CHAT, json=chat("tokens=1")).raise_for_status()
    wait_until(gateway.idle, what="nothing is left")
    now = engine.counters()
    assert now["started"] - before["started"] - 1 == now["aborted"] - before["aborted"], "each that had started was aborted"


def test_while_the_request_waits_in_the_engines_queue(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=(*SIM_FLAGS, "--max-running", "1"))
    [engine] = gateway.engines
    first = send(gateway, CHAT, chat("tokens=2000 itl_ms=50", stream=True))
    wait_until(lambda: engine.counters()["running"] == 1, what="the first runs")
    waiting = [send(gateway, CHAT, chat("tokens=2000", stream=stream)) for stream in (False, True)]
    wait_until(lambda: engine.counters()["waiting"] == 2, what="the others wait")
    for wire in waiting:
        wire.close()
    wait_until(lambda: engine.counters()["waiting"] == 0, what="the queue is empty")
    assert engine.counters()["running"] == 1
    first.close()
    wait_until(gateway.idle, what="nothing is left")


def test_one_who_reads_nothing_is_given_up_or_waited_for_without_memory(gateway: Gateway) -> None:
    """A stalled reader's stream ends at the latest with its client; the others go on meanwhile."""
    wire = connect(gateway)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    data = json.dumps(chat("tokens=20000", stream=True, n=8, ignore_eos=True, max_tokens=4000, logprobs=True, top_logprobs=20)).encode()
    wire.sendall(head_of(CHAT, len(data)) + data)
    with gateway.http() as http:
        for _ in range(5):
            http.post(CHAT, json=chat("tokens=3")).raise_for_status()
    reset(wire)
    wait_until(gateway.idle, what="nothing is left")


def test_hundred_at_once(gateway: Gateway) -> None:
    [engine] = gateway.engines
    before = engine.counters()
    wires = [send(gateway, CHAT, chat("tokens=2000 itl_ms=50", stream=number % 2 == 0)) for number in range(100)]
    wait_until(lambda: engine.counters()["started"] == before["started"] + 100, what="all have started")
    for wire in wires:
        wire.close()
    wait_until(lambda: engine.counters()["aborted"] == before["aborted"] + 100, what="all were aborted")
    wait_until(gateway.idle, what="nothing is left")
