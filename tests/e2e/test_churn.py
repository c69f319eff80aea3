"""Engines added and taken away one after the other under load: no request fails, and no connection, slot or entry is left behind.

One simulated engine listens on every loopback address, so that each address is another engine to the gateway.
"""

import concurrent.futures
import os
import threading
import time

import httpx

from smg.sim.processes import Child, sim_command
from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import TAG, Fleet, Gateway, SimEngine, wait_until
from tests.e2e.test_workers import ask, control

AT_ONCE = 8
# TEST_CHURN_ROUNDS=63 has 500 of them come and go.
ROUNDS = int(os.environ.get("TEST_CHURN_ROUNDS", "6"))


def descriptors(gateway: Gateway) -> dict[str, int]:
    """Open descriptors by the name of the process."""
    pid, found = gateway.child.process.pid, {}
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/comm") as name:
                found[name.read().strip()] = len(os.listdir(f"/proc/{child}/fd"))
    return found


def come_and_go(http: httpx.Client, urls: list[str]) -> None:
    """Adds engines, waits for some of the rounds until they are ready, takes them away."""
    for url in urls:
        assert http.post("/workers", json={"url": url}).status_code == 202
    wait_until(lambda: all(worker["is_healthy"] for worker in http.get("/workers").json()["workers"]), within_s=60, what="all are ready")
    for worker in http.get("/workers").json()["workers"]:
        if worker["source"] == "api":
            assert http.delete(f"/workers/{worker['id']}").status_code == 202
    wait_until(lambda: http.get("/workers").json()["total"] == 1, within_s=60, what="the others are gone")


def test_engines_that_come_and_go_under_load(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=("--workers", "2", "--policy", "cache_aware"))
    command = sim_command(protocol="vllm", flags=("--host", "0.0.0.0", "--status-port", "0", *SIM_FLAGS))
    spare = SimEngine(own_fleet._stack.enter_context(Child("spare", command=command, environment={TAG: own_fleet.tag})))
    port = spare.url.rpartition(":")[2]
    over, codes = threading.Event(), []

    def load() -> None:
        with gateway.http() as http:
            while not over.is_set():
                codes.append(ask(http, "sim-model", "tokens=5 itl_ms=2").status_code)

    with gateway.http() as http, concurrent.futures.ThreadPoolExecutor(4) as threads:
        loads = [threads.submit(load) for _ in range(4)]
        try:
            come_and_go(http, [f"grpc://127.1.0.{number + 1}:{port}" for number in range(AT_ONCE)])
            before, began_s = descriptors(gateway), time.monotonic()
            for turn in range(ROUNDS):
                come_and_go(http, [f"grpc://127.1.{turn + 1}.{number + 1}:{port}" for number in range(AT_ONCE)])
            print(f"{ROUNDS * AT_ONCE} engines came and went in {time.monotonic() - began_s:.1f} s, {len(codes)} requests")
        finally:
            over.set()
        for done in loads:
            done.result()
        assert set(codes) == {200}
        wait_until(lambda: all(now <= before[name] + 4 for name, now in descriptors(gateway).items()), what="connections are closed")
        assert spare.counters()["started"] > 0
        wait_until(gateway.idle, what="nothing is left to do")
        os.kill(control(gateway), 0)
