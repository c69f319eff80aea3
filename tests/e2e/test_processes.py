"""The gateway's processes: what a killed worker costs, and how the whole ends and reloads."""

import contextlib
import os
import pathlib
import signal
import socket
import time
from collections.abc import Iterator

import httpx

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway, wait_until
from tests.stopwatch import Stopwatch

CHAT = "/v1/chat/completions"
LISTEN_ADDRESS = "0100007F"  # 127.0.0.1 as /proc/net/tcp writes it


def serving_pid(wire: socket.socket) -> int | None:
    """The process at the other end of a loopback connection; None before it was accepted."""
    here, there = wire.getsockname()[1], wire.getpeername()[1]
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == f"{LISTEN_ADDRESS}:{there:04X}" and fields[2] == f"{LISTEN_ADDRESS}:{here:04X}":
            return holder(f"socket:[{fields[9]}]")
    return None


def holder(target: str) -> int | None:
    for link in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == target:
                return int(link.parts[2])
    return None


@contextlib.contextmanager
def connections_to_two_workers(gateway: Gateway, *, but: int = 0, within_s: float = 30.0) -> Iterator[dict[int, socket.socket]]:
    """Open connections, one to each of two data workers, by their process id; neither is the process `but`."""
    host, _, port = gateway.base_url.removeprefix("http://").partition(":")
    end = time.monotonic() + within_s
    with contextlib.ExitStack() as stack:
        found: dict[int, socket.socket] = {}
        while len(found) < 2:
            assert time.monotonic() < end, f"after {within_s:g} s all connections went to process {list(found)}"
            wire = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            wire.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            try:
                assert wire.recv(4096).startswith(b"HTTP/1.1 200")
            except ConnectionResetError:  # it lay in the queue of the process that was killed
                assert but
                continue
            pid = serving_pid(wire)
            if pid is not None and pid != but:
                found.setdefault(pid, wire)
        yield found


def send_chat(wire: socket.socket, marker: str) -> None:
    body = f'{{"model": "sim-model", "stream": true, "messages": [{{"role": "user", "content": "Go on. [[sim: {marker}]]"}}]}}'.encode()
    wire.sendall(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )


def read_to_end(wire: socket.socket) -> bytes:
    """What comes until the stream's or the connection's end."""
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        try:
            part = wire.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        received += part
    return received


def test_killed_worker_loses_only_its_own_requests(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "2"))
    [engine] = gateway.engines
    with connections_to_two_workers(gateway) as wires:
        (victim, lost), (_, kept) = wires.items()
        for wire in (lost, kept):
            send_chat(wire, "tokens=100 itl_ms=40")
        wait_until(lambda: engine.counters()["running"] == 2, what="both requests run")
        watch = Stopwatch(gateway.child.process.pid)
        os.kill(victim, signal.SIGKILL)
        with connections_to_two_workers(gateway, but=victim):
            assert watch.seconds() < 2
        assert b"[DONE]" not in read_to_end(lost)
        assert b"data: [DONE]" in read_to_end(kept)
    wait_until(gateway.idle, what="the engine dropped the lost request")


def test_sigterm_lets_streams_end(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "2"))
    with connections_to_two_workers(gateway) as wires:
        for wire in wires.values():
            send_chat(wire, "tokens=100 itl_ms=10")
        wait_until(lambda: gateway.engines[0].counters()["tokens"] > 4, what="tokens come")
        gateway.child.process.terminate()
        for wire in wires.values():
            assert b"data: [DONE]" in read_to_end(wire)
    assert gateway.child.process.wait(timeout=30) == 0


def test_sigterm_ends_within_the_grace_period(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "1", "--shutdown-grace-period-secs", "1"))
    with gateway.http() as http, http.stream("POST", CHAT, json=endless()) as reply:
        lines = reply.iter_lines()
        assert next(lines)
        gateway.child.process.terminate()
        asked = time.monotonic()
        with contextlib.suppress(httpx.RemoteProtocolError):
            for _ in lines:
                pass
    gateway.child.process.wait(timeout=30)
    assert 0.5 < time.monotonic() - asked < 30  # the stream would take 80 s
    wait_until(gateway.idle, what="the engine was told")


def endless() -> dict[str, object]:
    messages = [{"role": "user", "content": "Go on. [[sim: tokens=100000 itl_ms=20]]"}]
    return {"model": "sim-model", "stream": True, "messages": messages, "max_tokens": 4000}


def test_sighup_keeps_streams(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "2"))
    with connections_to_two_workers(gateway) as wires:
        for wire in wires.values():
            send_chat(wire, "tokens=100 itl_ms=10")
        wait_until(lambda: gateway.engines[0].counters()["tokens"] > 4, what="tokens come")
        gateway.child.process.send_signal(signal.SIGHUP)
        for wire in wires.values():
            assert b"data: [DONE]" in read_to_end(wire)
    with gateway.http() as http:
        wait_until(lambda: http.get("/readiness").status_code == 200, what="ready after the reload")
