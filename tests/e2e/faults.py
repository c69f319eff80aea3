"""`make test-faults ARGS="[--only NAME] [--clients 64] [--seconds 8.5]"`: every fault that a gateway must survive, under load, as a table.

Three simulated engines and a gateway with two data workers; streams of a second each are sent while the fault is made, and for a while
after it. Then nothing may hang, nothing may be counted any more, and of the requests that failed each must have brought text before, or
have been held by a process of the gateway that was killed. `tests/e2e/test_fault_table.py` plays some of them, shorter.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import httpx
from msgspec import Struct

from smg.sim.processes import Child, free_port, sim_command
from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import TAG, Fleet, Gateway, SimEngine, fleet, wait_until
from tests.e2e.load import Load, load

STREAM = "tokens=20 itl_ms=50"
HEALTH = ("--health-check-interval-secs", "0.5", "--health-check-timeout-secs", "0.5", "--load-monitor-interval", "0.5")
REDIS = shutil.which("valkey-server") or shutil.which("redis-server")
LIMITS = "default_policy: {requests_per_minute: 1000000, tokens_per_minute: 1000000000}"
FLAGS = ("--workers", "2", "--policy", "cache_aware", "--request-timeout-secs", "15", *HEALTH)


class Row(Struct, frozen=True, kw_only=True):
    """What became of the requests. `unbegun`: failed or cut without any text; `idle_s`: until nothing was counted any more."""

    fault: str
    sent: int
    answered: int
    failed: int
    cut: int
    refused: int
    unbegun: int
    idle_s: float


class Stage(Struct, frozen=True):
    """What a fault acts on."""

    fleet: Fleet
    gateway: Gateway
    streams: Load
    clients: int
    seconds: float
    redis: subprocess.Popen[bytes] | None

    def control(self) -> int:
        """Gives the pid of the control process, the first that the supervisor starts."""
        path = f"/proc/{self.gateway.child.process.pid}/task/{self.gateway.child.process.pid}/children"
        with open(path) as file:
            return min(map(int, file.read().split()))

    def go_on(self, streams: int = 0) -> None:
        """Returns when so many more streams were answered, else two for each client."""
        done, streams = self.streams.ends["done"], streams or 2 * self.clients
        wait_until(lambda: self.streams.ends["done"] >= done + streams, within_s=60, what="streams go on")


def kill_engine(stage: Stage) -> None:
    stage.gateway.engines[0].kill()
    stage.go_on()


def hang_engine(stage: Stage) -> None:
    """The kernel goes on accepting for a process that is stopped; in a whole run for longer than the deadline of the requests there."""
    pause(stage.gateway.engines[0], on_s=0.0, off_s=2 * stage.seconds, rounds=1)
    stage.go_on()


def slow_engine(stage: Stage) -> None:
    pause(stage.gateway.engines[0], on_s=0.02, off_s=0.18, rounds=int(stage.seconds / 0.2))


def flapping_health(stage: Stage) -> None:
    pause(stage.gateway.engines[0], on_s=1.5, off_s=1.5, rounds=max(1, int(stage.seconds / 3)))


def reset_streams(stage: Stage) -> None:
    stage.go_on(int(64 * stage.seconds))


def restart_engine(stage: Stage) -> None:
    """The new process numbers its KV events from 0 again."""
    engine = stage.gateway.engines[0]
    engine.kill()
    ports = ("--port", engine.url.rpartition(":")[2], "--status-port", engine.status_url.rpartition(":")[2])
    child = Child("vllm", command=[*sim_command(protocol="vllm", flags=SIM_FLAGS), *ports], environment={TAG: stage.fleet.tag})
    stage.fleet.keep(child)
    child.wait_ready(within_s=30)
    wait_until(lambda: engine.counters()["started"] > 8, within_s=60, what="the new process is used")
    stage.go_on()


def kill_control(stage: Stage) -> None:
    os.kill(stage.control(), signal.SIGKILL)
    stage.go_on()


def kill_worker(stage: Stage) -> None:
    held: dict[int, int] = {}

    def some_are_open() -> bool:
        held.update(stage.gateway.held())
        return max(held.values()) >= 8

    wait_until(some_are_open, within_s=60, what="a data worker holds streams")
    os.kill(max(held, key=lambda pid: held[pid]), signal.SIGKILL)
    stage.go_on()


def churn(stage: Stage) -> None:
    """500 engines, which do not answer, are added and removed again in a whole run."""
    with stage.gateway.http() as http:
        for number in range(int(60 * stage.seconds)):
            reply = http.post("/workers", json={"url": f"grpc://127.0.0.1:{1 + number}"})
            assert reply.status_code == 202, reply.text
            assert http.delete(reply.headers["location"]).status_code == 202
        wait_until(lambda: len(http.get("/workers").json()["workers"]) == 3, within_s=60, what="the removed engines are gone")
    stage.go_on()


def kill_redis(stage: Stage) -> None:
    """Each node limits for itself then."""
    assert stage.redis is not None
    stage.redis.kill()
    stage.go_on()


def pause(engine: SimEngine, *, on_s: float, off_s: float, rounds: int) -> None:
    """Stops an engine's process for a while, again and again."""
    done = threading.Event()
    for _ in range(rounds):
        engine.child.process.send_signal(signal.SIGSTOP)
        done.wait(off_s)
        engine.child.process.send_signal(signal.SIGCONT)
        done.wait(on_s)


FAULTS: dict[str, Callable[[Stage], None]] = {
    "engine killed": kill_engine,
    "engine accepts and never answers": hang_engine,
    "streams reset in the middle": reset_streams,
    "engine 10 times slower": slow_engine,
    "health flaps": flapping_health,
    "engine restarts at sequence 0": restart_engine,
    "control process killed": kill_control,
    "data worker killed": kill_worker,
    "engines added and removed": churn,
    **({"Redis gone": kill_redis} if REDIS else {}),
}
OTHERS = {"streams reset in the middle": f"{STREAM} fault=rst@5"}


@contextlib.contextmanager
def limits_of(fault: str) -> Iterator[tuple[subprocess.Popen[bytes] | None, tuple[str, ...]]]:
    """Gives a server for tenants' limits and the flags that name it, where the fault is about it."""
    if fault != "Redis gone":
        yield None, ()
        return
    with tempfile.TemporaryDirectory() as folder:
        file, port = pathlib.Path(folder) / "limits.yaml", free_port()
        file.write_text(LIMITS)
        command = [REDIS or "", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                flags = ("--tenant-rate-limit-enabled", "--tenant-rate-limit-config", str(file))
                yield server, (*flags, "--rate-limit-url", f"redis://127.0.0.1:{port}/0")
            finally:
                server.kill()


def play(fault: str, *, clients: int, seconds: float) -> Row:
    """Makes one fault under load. AssertionError when something hangs, is still counted, or a process is left."""
    with fleet() as made, limits_of(fault) as (redis, flags):
        gateway = made.launch("vllm", "vllm", "vllm", sim_flags=SIM_FLAGS, flags=(*FLAGS, *flags), own_ports=True)
        with load(gateway.base_url, marker=STREAM, clients=clients, within_s=60, other_marker=OTHERS.get(fault, "")) as streams:
            FAULTS[fault](Stage(made, gateway, streams, clients, seconds, redis))
        assert streams.sent == sum(streams.ends.values()), "a request hangs"
        idle_s = wait_until(gateway.idle, within_s=60, what="nothing is counted")
        with gateway.http() as http:
            assert http.get("/readiness").status_code == 200
        ends = streams.ends
        unbegun = ends["failed"] + ends["cut"] - streams.begun
        row = Row(
            fault=fault,
            sent=streams.sent,
            answered=ends["done"],
            failed=ends["failed"],
            cut=ends["cut"],
            refused=ends["refused"],
            unbegun=unbegun,
            idle_s=idle_s,
        )
    return row


def survived(row: Row) -> bool:
    """True when only those failed that had begun, or that a killed data worker held."""
    if row.fault == "data worker killed":
        return row.failed == 0
    return row.unbegun == row.refused == row.cut == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(FAULTS))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.5)
    options = parser.parse_args()
    print(f"{'fault':34} {'sent':>6} {'answered':>8} {'failed':>6} {'cut':>5} {'refused':>7} {'unbegun':>7} {'idle s':>6} {'took s':>6}")
    if not REDIS:
        print("Redis gone: left out, because neither valkey-server nor redis-server is installed", file=sys.stderr)
    bad = 0
    for fault in [options.only] if options.only else FAULTS:
        began = time.monotonic()
        try:
            row = play(fault, clients=options.clients, seconds=options.seconds)
        except (AssertionError, httpx.HTTPError) as error:
            bad += 1
            print(f"{fault:34} {error}", flush=True)
            continue
        bad += not survived(row)
        numbers = f"{row.sent:6} {row.answered:8} {row.failed:6} {row.cut:5} {row.refused:7} {row.unbegun:7} {row.idle_s:6.1f}"
        print(f"{fault:34} {numbers} {time.monotonic() - began:6.1f}{'' if survived(row) else '  NOT SURVIVED'}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
