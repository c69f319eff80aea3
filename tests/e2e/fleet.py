"""Real processes for the end-to-end tests: simulated engines and a gateway in front of them, with handles to watch and to kill them."""

import contextlib
import functools
import os
import pathlib
import signal
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import openai

from smg.obs.seats import PlainSeats
from smg.obs.shm import FIRST_WORKER_ROW, PlainShm, attach_block
from smg.server.boot import Phase
from smg.sim.processes import Child, free_port, gateway_command, sim_command, wait_http

__all__ = ["Fleet", "Gateway", "SimEngine", "running_with_tag", "wait_until"]

TAG = "SMG_TEST_FLEET"
READY_WITHIN_S = 30.0
SLOTS = array("q", range(16))


def wait_until(condition: Callable[[], bool], *, within_s: float = 20.0, what: str) -> float:
    """Polls until the condition holds and gives the seconds that took; fails the test when `within_s` pass first."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - start


def running_with_tag(tag: str) -> list[str]:
    """Command lines of the processes that carry the tag in their environment: children of a fleet, and theirs."""
    wanted, found = f"{TAG}={tag}".encode(), []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}")
        except OSError:  # it ended meanwhile
            continue
    return found


def ports() -> tuple[str, ...]:
    """Flags that give a simulated engine ports below those of clients."""
    return ("--port", str(free_port()), "--status-port", str(free_port()))


class SimEngine:
    """A simulated engine: `url` is its engine address, `status_url` where its counters are."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.url = child.wait_ready(within_s=READY_WITHIN_S)
        addresses = [word for line in child.output().splitlines() for word in line.split() if word.startswith("http://")]
        self.status_url = addresses[-1] if addresses else ""

    def counters(self) -> dict[str, int]:
        """What the engine has counted, by name."""
        counts: dict[str, int] = httpx.get(f"{self.status_url}/counters", timeout=20, trust_env=False).raise_for_status().json()
        return counts

    def last_abort_s(self) -> float:
        """When the engine was last told to give a request up, on the clock of `time.monotonic`, which all processes share."""
        aborts: Any = self.counters()["aborts"]
        return float(aborts[-1]["at_s"])

    def named_as(self, role: str) -> tuple[str, ...]:
        """The flags by which a gateway is told of it as a part of pairs."""
        return ("--prefill", self.url, self.status_url.rpartition(":")[2]) if role == "prefill" else ("--decode", self.url)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.child.kill()


class Gateway:
    """A running gateway in front of its engines."""

    def __init__(self, child: Child, *, base_url: str, engines: list[SimEngine]) -> None:
        self.child = child
        self.base_url = base_url
        self.engines = engines

    @functools.cached_property
    def model(self) -> str:
        """The name of the one model that it serves: MLX has no served names and tells the model's path."""
        with self.http() as http:
            [card] = http.get("/v1/models").raise_for_status().json()["data"]
        return str(card["id"])

    def http(self, *, timeout_s: float = 20.0) -> httpx.Client:
        """A plain HTTP client, to be closed by the caller."""
        return httpx.Client(base_url=self.base_url, timeout=timeout_s, trust_env=False)

    def openai(self, *, timeout_s: float = 20.0) -> openai.OpenAI:
        """The SDK that clients use, without retries; to be closed by the caller."""
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key="none", max_retries=0, timeout=timeout_s, http_client=self.http())

    def idle(self) -> bool:
        """True when no engine has work left, and the gateway, if it still runs, counts none."""
        counts = [engine.counters() for engine in self.engines if engine.child.process.poll() is None]
        counted = self.in_flight() if self.child.process.poll() is None else 0
        return all(count["running"] + count["waiting"] == 0 for count in counts) and counted == 0

    def in_flight(self) -> int:
        """Requests that the gateway's processes count at engines, read from their shared memory."""
        sums = array("q", [0] * 2 * len(SLOTS))
        self.memory().sums(SLOTS, sums)
        return sum(sums[::2])

    def held(self) -> dict[int, int]:
        """The requests that each data worker has at engines, by its pid."""
        shm = self.memory()
        epochs = [shm.engine_epoch(slot) for slot in SLOTS]
        rows = range(FIRST_WORKER_ROW, shm.rows)
        return {pid: sum(map(shm.held, [row] * len(SLOTS), SLOTS, epochs)) for row in rows if (pid := shm.row(row)[0])}

    def ready_workers(self) -> int:
        """The data workers that serve; the gateway is ready with the first of them."""
        shm = self.memory()
        return sum(shm.row(row)[1] == Phase.READY for row in range(FIRST_WORKER_ROW, shm.rows))

    def seats(self) -> tuple[int, int]:
        """Requests that have a seat, and those that wait for one."""
        counts = array("q", [0] * 8)
        PlainSeats(self.memory()).counts(counts)
        return sum(counts[:4]), sum(counts[4:])

    def memory(self) -> PlainShm:
        """A copy of the shared memory of its processes."""
        links = pathlib.Path(f"/proc/{self.child.process.pid}/fd").iterdir()
        link = next(link for link in links if os.readlink(link).startswith("/memfd:smg-shm"))
        block = attach_block(os.open(link, os.O_RDWR | os.O_CLOEXEC))
        with contextlib.closing(block.memory):
            copy = PlainShm(bytearray(block.memory))
        os.close(block.fd)
        return copy


class Fleet:
    """Starts gateways with their engines, and ends all of them."""

    def __init__(self) -> None:
        self.tag = uuid.uuid4().hex
        self._stack = contextlib.ExitStack()
        self._gateways: list[Gateway] = []

    def launch(
        self,
        *protocols: str,
        sim_flags: Sequence[str] = (),
        flags: Sequence[str] = ("--workers", "1"),
        environment: dict[str, str] | None = None,
        own_ports: bool = False,
    ) -> Gateway:
        """One engine for each protocol named, and a gateway in front of them, ready to serve. `openai prefill` and `openai decode` are
        parts of pairs. `own_ports`: engines have ports that no client is given while they are down, for those that start again.
        """
        tagged = {**(environment or {}), TAG: self.tag}
        wanted = ("--status-port", "0", *sim_flags)
        kinds = [(name, role or "regular") for name, _, role in (protocol.partition(" ") for protocol in protocols)]
        commands = [sim_command(protocol=name, flags=(*wanted, "--role", role, *(ports() if own_ports else ()))) for name, role in kinds]
        children = [Child(name, command=command, environment=tagged) for (name, _), command in zip(kinds, commands, strict=True)]
        for child in children:
            self._stack.enter_context(child)
        engines = [SimEngine(child) for child in children]
        whole = [engine.url for engine, (_, role) in zip(engines, kinds, strict=True) if role == "regular"]
        apart = [engine.named_as(role) for engine, (_, role) in zip(engines, kinds, strict=True) if role != "regular"]
        port = free_port()
        command = gateway_command(port=port, engines=whole, flags=(*flags, *(word for words in apart for word in words)))
        child = self._stack.enter_context(Child("gateway", command=command, environment=tagged))
        base_url = f"http://127.0.0.1:{port}"
        wait_http(child, url=f"{base_url}/readiness", within_s=READY_WITHIN_S)
        gateway = Gateway(child, base_url=base_url, engines=engines)
        self._gateways.append(gateway)
        return gateway

    def keep(self, child: Child) -> None:
        """Ends a child with the rest."""
        self._stack.enter_context(child)

    def close(self) -> None:
        """Ends everything; fails when a request is still counted or a process is left. Told twice, a gateway does not drain first: nobody
        is there any more, and how it drains is tested where it is what is looked at.
        """
        with self._stack:
            for gateway in self._gateways:
                if gateway.child.process.poll() is None:
                    wait_until(lambda gateway=gateway: gateway.in_flight() == 0, what="no request counted at an engine")
                    wait_until(lambda gateway=gateway: gateway.seats() == (0, 0), what="no seat taken, nobody waiting")
                    for number in (signal.SIGTERM, signal.SIGINT):
                        gateway.child.process.send_signal(number)
        wait_until(lambda: not running_with_tag(self.tag), what=f"no process left behind: {running_with_tag(self.tag)}")


@contextlib.contextmanager
def fleet() -> Iterator[Fleet]:
    """A fleet for the length of a block."""
    made = Fleet()
    try:
        yield made
    finally:
        made.close()
