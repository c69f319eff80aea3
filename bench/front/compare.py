"""`python -m bench.front.compare [ROUNDS]`: processor time of our front and of granian's RSGI with one trivial application, and of a floor,
which is a uvloop protocol that parses nothing and writes constants with one system call each.

Microseconds of the server process (all its threads) per request or chunk, median over interleaved rounds.
"""

import contextlib
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import uvloop

from bench.front.clients import listen, post

KINDS = ("front", "granian", "floor")
SCENARIOS: dict[str, Callable[[int], Awaitable[int]]] = {
    "POST JSON, 32 clients": lambda port: post(port, clients=32, seconds=1.5),
    "stream, 32 x 10 ms": lambda port: listen(port, clients=32, count=150, milliseconds=10),
    "stream, 256 x 20 ms": lambda port: listen(port, clients=256, count=100, milliseconds=20),
}


def cpu_s(pid: int) -> float:
    """Gives the processor seconds of all threads of a process, from the scheduler's own clock."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextlib.contextmanager
def server(kind: str) -> Iterator[tuple[int, int]]:
    """Starts a server; gives its port and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "bench.front.serve", kind, str(port)])
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            assert time.monotonic() < deadline, f"{kind} did not start"
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(10)


async def measure(port: int, pid: int, scenario: Callable[[int], Awaitable[int]]) -> float:
    """Gives microseconds per unit of one run."""
    before = cpu_s(pid)
    count = await scenario(port)
    return (cpu_s(pid) - before) / count * 1e6


async def main() -> None:
    """Runs all scenarios and prints the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"load average {os.getloadavg()[0]:.1f}; us of processor time per request or chunk, median of {rounds}")
    print(f"{'scenario':24}{''.join(f'{kind:>10}' for kind in KINDS)}{'ratio':>8}")
    with contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(server(kind)) for kind in KINDS}
        for name, scenario in SCENARIOS.items():
            costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(rounds + 1):
                for kind, (port, pid) in servers.items():
                    cost = await measure(port, pid, scenario)
                    if number:  # the first round warms up
                        costs[kind].append(cost)
            medians = [statistics.median(costs[kind]) for kind in KINDS]
            print(f"{name:24}{''.join(f'{cost:10.1f}' for cost in medians)}{medians[0] / medians[1]:8.2f}", flush=True)


if __name__ == "__main__":
    uvloop.run(main())
