"""Processes that die, end and start again while many streams are open: what is lost, and how soon everything is as before."""

import os
import pathlib
import signal

import httpx
import pytest

from smg.sim.processes import Child, sim_command
from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import TAG, Fleet, Gateway, running_with_tag, wait_until
from tests.e2e.load import load
from tests.stopwatch import Stopwatch

CHAT = "/v1/chat/completions"
TWO_WORKERS = ("--workers", "2")
ONE_SECOND = "tokens=20 itl_ms=50"
THREE_SECONDS = "tokens=20 itl_ms=150"
QUICK = {"model": "sim-model", "messages": [{"role": "user", "content": "[[sim: tokens=2]]"}], "max_tokens": 4}


def children(pid: int) -> list[int]:
    """Child processes in the order of their start."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def data_workers(gateway: Gateway) -> list[int]:
    """All children but the control process, which is the first to start."""
    return children(gateway.child.process.pid)[1:]


def control(gateway: Gateway) -> int:
    return children(gateway.child.process.pid)[0]


def answer_of(http: httpx.Client) -> int:
    try:
        return http.post(CHAT, json=QUICK).status_code
    except httpx.TransportError:
        return 0


def test_data_worker(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=TWO_WORKERS)
    wait_until(lambda: gateway.ready_workers() == 2, what="both workers serve")
    with load(gateway.base_url, marker=THREE_SECONDS, clients=64) as streams:
        held: dict[int, int] = {}

        def one_stands_still_with_many() -> bool:
            held.update(gateway.held())
            if sum(held.values()) < 32:
                return False
            fullest = max(held, key=lambda pid: held[pid])
            os.kill(fullest, signal.SIGSTOP)  # by now its streams may have ended, on a busy machine
            if gateway.held()[fullest] >= 8:
                return True
            os.kill(fullest, signal.SIGCONT)
            return False

        wait_until(one_stands_still_with_many, what="half the streams are at the engine at once")
        killed = max(held, key=lambda pid: held[pid])
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(data_workers(gateway)) == 2 and killed not in data_workers(gateway), what="a new worker")
        wait_until(lambda: streams.ends["done"] >= 64, what="the others' streams went on")
    assert streams.ends["failed"] == 0, streams.problems[:5]
    assert min(held.values()) >= 3, f"one worker has nearly all: {held}"
    assert 1 <= streams.ends["cut"] + streams.ends["refused"] <= 64, (streams.ends, streams.problems)
    wait_until(gateway.idle, what="the dead worker's requests are no longer counted")
    with gateway.http() as http:
        assert answer_of(http) == 200


def test_control_process(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=TWO_WORKERS)
    with load(gateway.base_url, marker=ONE_SECOND, clients=16) as streams:
        killed, done = control(gateway), streams.ends["done"]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(children(gateway.child.process.pid)) == 3, what="a new control process")
        wait_until(lambda: streams.ends["done"] >= done + 32, what="streams go on")
    assert set(streams.ends) == {"done"}, (streams.ends, streams.problems[:5])
    wait_until(gateway.idle, what="nothing is counted")


def test_supervisor_leaves_no_orphans(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=TWO_WORKERS)
    family = children(gateway.child.process.pid)
    with load(gateway.base_url, marker=ONE_SECOND, clients=8) as streams:
        gateway.child.process.send_signal(signal.SIGKILL)
        streams.finish()
    gateway.child.process.wait(timeout=30)
    wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in family), what="workers and control ended")


def test_sighup_cuts_and_refuses_nothing(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=TWO_WORKERS)
    with load(gateway.base_url, marker="tokens=10 itl_ms=50", clients=16) as streams:
        for _ in range(2):
            before = set(data_workers(gateway))
            gateway.child.process.send_signal(signal.SIGHUP)
            wait_until(lambda before=before: not before & set(data_workers(gateway)), what="new workers only")
            done = streams.ends["done"]
            wait_until(lambda done=done: streams.ends["done"] > done + 32, what="the new workers serve")
    assert set(streams.ends) == {"done"}, (streams.ends, streams.problems[:5])
    wait_until(gateway.idle, what="nothing is counted")


def test_sigterm_lets_all_streams_end(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=TWO_WORKERS)
    with load(gateway.base_url, marker="tokens=30 itl_ms=50", clients=32) as streams:
        streams.finish()
        gateway.child.process.terminate()
    assert gateway.child.process.wait(timeout=30) == 0
    assert streams.ends == {"done": 32}, (streams.ends, streams.problems[:5])


def test_engine_that_starts_again_is_used_at_once(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, own_ports=True)
    [engine] = gateway.engines
    with gateway.http() as http:
        for _ in range(2):
            engine.kill()
            assert answer_of(http) == 503
            port = engine.url.rpartition(":")[2]
            command = [
                *sim_command(protocol="vllm", flags=SIM_FLAGS),
                "--port",
                port,
                "--status-port",
                engine.status_url.rpartition(":")[2],
            ]
            with Child("vllm", command=command, environment={TAG: own_fleet.tag}) as child:
                child.wait_ready(within_s=30)
                watch = Stopwatch(gateway.child.process.pid, child.process.pid)
                wait_until(lambda: answer_of(http) == 200, what="it is served by the new engine")
                assert watch.seconds() < 2.0
                child.kill()
            wait_until(lambda: answer_of(http) == 503, what="it is seen to be gone")


def test_an_idle_engine_that_dies_is_missed_before_any_request(own_fleet: Fleet) -> None:
    """Its KV events break off, long before the next check is due (60 s)."""
    gateway = own_fleet.launch("vllm", "vllm", sim_flags=SIM_FLAGS, flags=("--workers", "1", "--policy", "round_robin"))

    def healthy() -> int:
        with gateway.http() as http:
            return int(http.get("/readiness").json()["healthy_workers"])

    def both_have_served() -> bool:
        with gateway.http() as http:
            assert answer_of(http) == 200
        return all(engine.counters()["started"] for engine in gateway.engines)

    wait_until(both_have_served, what="both have stored blocks, and told of them")
    assert healthy() == 2
    gateway.engines[0].kill()
    wait_until(lambda: healthy() == 1, what="the engine is missed")


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_one_of_two_engines(own_fleet: Fleet, protocol: str) -> None:
    gateway = own_fleet.launch(protocol, protocol, sim_flags=SIM_FLAGS, flags=TWO_WORKERS)
    with load(gateway.base_url, marker=THREE_SECONDS, clients=32) as streams:
        wait_until(lambda: gateway.engines[0].counters()["running"] >= 8, what="the engine has work")
        gateway.engines[0].kill()
        done = streams.ends["done"]
        wait_until(lambda: streams.ends["done"] > done + 32, what="the other engine serves")
    assert streams.ends["cut"] == streams.ends["refused"] == 0, (streams.ends, streams.problems[:5])
    assert 1 <= streams.ends["failed"] <= 32, "those that had begun there are told of it"
    wait_until(gateway.idle, what="nothing is counted")
    assert len(running_with_tag(own_fleet.tag)) == 5
