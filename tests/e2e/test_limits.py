"""Limits over all data workers: how many run and wait, who goes first, who has to leave, and what is left when somebody dies or goes."""

import asyncio
import json
import os
import pathlib
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway, wait_until
from tests.e2e.test_client_leaves import CHAT, chat, send
from tests.e2e.test_killed_under_load import data_workers

SEATS, ROOM = 4, 1000
LONG = "ttft_ms=300000"  # longer than any test
FLAGS = ("--workers", "2", "--max-concurrent-requests", str(SEATS), "--queue-size", str(ROOM), "--queue-timeout-secs", "300")


@pytest.fixture(scope="module")
def limited(module_fleet: Fleet) -> Gateway:
    """Four seats and a long queue, over two data workers."""
    return module_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=FLAGS)


@pytest.fixture
def full(limited: Gateway) -> Iterator[list[socket.socket]]:
    """All seats are taken, by requests that end when their connections are closed."""
    wires = [send(limited, CHAT, chat(LONG)) for _ in range(SEATS)]
    wait_until(lambda: limited.seats() == (SEATS, 0), what="all seats are taken")
    yield wires
    for wire in wires:
        wire.close()
    wait_until(lambda: limited.seats() == (0, 0), what="nobody runs or waits")


def started(gateway: Gateway) -> int:
    [engine] = gateway.engines
    return engine.counters()["started"]


def status_of(wire: socket.socket) -> int:
    return int(wire.recv(65536).split(b" ", 2)[1])


def test_first_come_first_served_over_processes(limited: Gateway, full: list[socket.socket]) -> None:
    """Each waiter names itself to the engine by the length of its output; one seat is given up at a time."""
    waiting = []
    for number in range(6):
        waiting.append(send(limited, CHAT, chat("tokens=2")))
        wait_until(lambda number=number: limited.seats() == (SEATS, number + 1), what="it waits")
    before = started(limited)
    with limited.http() as http:
        assert http.get("/v1/models").status_code == 200, "what no engine works for is not limited"
    for wire in waiting:
        wire.settimeout(0.0)
    full.pop().close()
    wait_until(lambda: started(limited) == before + 6, what="all had their turn, one after another")
    for wire in waiting:
        wire.settimeout(30)
        assert status_of(wire) == 200
        wire.close()


def test_the_order_is_kept(limited: Gateway, full: list[socket.socket]) -> None:
    """The next has the seat for as long as it likes: nobody behind it comes first, whichever process has them."""
    waiting = []
    for number in range(6):
        waiting.append(send(limited, CHAT, chat(LONG)))
        wait_until(lambda number=number: limited.seats() == (SEATS, number + 1), what="it waits")
    for number, wire in enumerate(waiting):
        before = started(limited)
        full.pop().close()
        full.append(wire)
        wait_until(lambda before=before: started(limited) == before + 1, what="the next has begun")
        # who has begun is at the engine: its leaving frees a seat; that of a waiter would not
        assert limited.seats() == (SEATS, 5 - number)


def test_a_thousand_who_wait_leave_at_once(limited: Gateway, full: list[socket.socket]) -> None:
    async def crowd() -> None:
        data = json.dumps(chat("tokens=2", stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        host, _, port = limited.base_url.removeprefix("http://").partition(":")
        writers = []
        for _ in range(ROOM):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + data)
            writers.append(writer)
        await asyncio.to_thread(wait_until, lambda: limited.seats() == (SEATS, ROOM), within_s=60, what="all wait")
        async with httpx.AsyncClient(base_url=limited.base_url, trust_env=False, timeout=30) as http:
            refused = await http.post(CHAT, json=chat("tokens=2"))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == refused.headers["x-smg-error-code"] == "scheduler_queue_full"
        for writer in writers:
            writer.transport.abort()

    before = started(limited)
    asyncio.run(crowd())
    wait_until(lambda: limited.seats() == (SEATS, 0), what="the queue is empty")
    assert started(limited) == before


def test_a_killed_worker_gives_back_what_it_held(limited: Gateway) -> None:
    """The last test of this gateway."""
    gateway = limited
    wires = [send(gateway, CHAT, chat(LONG)) for _ in range(20)]
    wait_until(lambda: gateway.seats() == (SEATS, 16), what="some run, the others wait")
    [first, second] = data_workers(gateway)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: gateway.seats()[0] == SEATS or sum(gateway.seats()) < SEATS, what="who is left has the seats")
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: gateway.seats() == (0, 0), what="nothing is left")
    for wire in wires:
        wire.close()
    with gateway.http() as http:
        wait_until(lambda: answers(http), what="it serves again")


def answers(http: httpx.Client) -> bool:
    try:
        return http.post(CHAT, json=chat("tokens=2")).status_code == 200
    except httpx.TransportError:
        return False


def test_a_higher_class_takes_the_place_of_who_has_not_begun(own_fleet: Fleet) -> None:
    flags = ("--workers", "2", "--max-concurrent-requests", "2", "--priority-scheduler-enabled")
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=(*flags, "--priority-scheduler-default-max-class", "interactive"))
    bulk = {"x-smg-priority": "bulk"}
    with gateway.http() as http, http.stream("POST", CHAT, json=chat("tokens=2000 itl_ms=100", stream=True), headers=bulk) as safe:
        lines = safe.iter_lines()
        assert next(lines).startswith("data: ")
        victim = send_as(gateway, "bulk", chat(LONG))
        wait_until(lambda: gateway.seats() == (2, 0), what="both seats are taken")
        answer = httpx.post(gateway.base_url + CHAT, json=chat("tokens=2"), headers={"x-smg-priority": "Interactive"}, timeout=30)
        assert answer.status_code == 200
        told = victim.recv(65536)
        victim.close()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nx-smg-preempted: true\r\n" in told
        assert b"\r\nretry-after: 1\r\n" in told
        assert b'"scheduler_preempted"' in told
        [engine] = gateway.engines
        wait_until(lambda: engine.counters()["aborted"] == 1, what="the engine was told")
        wait_until(lambda: gateway.seats() == (1, 0), what="one seat is taken")
        # a comment has filled the silence of a stream: its status is sent, so that the rest is told in the stream
        with send_as(gateway, "bulk", chat(LONG, stream=True)) as begun:
            assert begun.recv(65536).startswith(b"HTTP/1.1 200 ")
            httpx.post(gateway.base_url + CHAT, json=chat("tokens=2"), headers={"x-smg-priority": "interactive"}, timeout=30)
            rest = b""
            while b"0\r\n\r\n" not in rest:
                rest += begun.recv(65536)
        assert b'"scheduler_preempted"' in rest


def send_as(gateway: Gateway, name: str, request: dict[str, Any]) -> socket.socket:
    host, _, port = gateway.base_url.removeprefix("http://").partition(":")
    wire, data = socket.create_connection((host, int(port)), timeout=30), json.dumps(request).encode()
    headers = f"host: x\r\nx-smg-priority: {name}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    wire.sendall(f"POST {CHAT} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + data)
    return wire


def test_tenants_have_limits_of_their_own(own_fleet: Fleet, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(
        "default_policy: {requests_per_minute: 3}\n"
        "tenants:\n"
        "  - {tenant_key: 'auth:big', tokens_per_minute: 100000, model_rules: [{rule_id: sim, matcher: {type: prefix, value: sim},"
        " tokens_per_minute: 400}]}\n"
    )
    keys = ("--tenant-api-key", "small:k1", "big:k2", "--api-key", "k3")
    flags = ("--workers", "2", "--tenant-rate-limit-enabled", "--tenant-rate-limit-config", str(file), *keys)
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=flags)

    def asked(key: str, **fields: Any) -> httpx.Response:
        """On a connection of its own: the kernel chooses the data worker anew."""
        return httpx.post(
            gateway.base_url + CHAT, json={**chat("tokens=2"), **fields}, headers={"authorization": f"Bearer {key}"}, timeout=30
        )

    outcomes = [asked("k1").status_code for _ in range(12)]
    assert outcomes[:3] == [200] * 3
    assert set(outcomes[3:]) <= {200, 429}
    assert outcomes.count(200) <= 4, "one comes back in 20 s"
    assert asked("k3").status_code == 200
    refused = asked("k1")
    assert refused.headers["x-smg-error-code"] == "tenant_rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    # two tokens are used of a hundred that might have been: the rest comes back, and so five fit in
    assert [asked("k2", max_tokens=100).status_code for _ in range(5)] == [200] * 5
    assert asked("k2", max_tokens=390, stream=True).status_code == 429
