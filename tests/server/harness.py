"""A gateway with the trivial application as a child process, and what the process tests ask of it."""

import contextlib
import http.client
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from smg.sim.processes import Child, python_module

__all__ = ["Gateway", "alive", "gateway", "wait_until"]


def wait_until(condition: Callable[[], bool], *, within_s: float = 30.0, what: str) -> float:
    """Polls until the condition holds; gives the seconds that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - start


def alive(pid: int) -> bool:
    """False also for a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Gateway:
    """One running gateway."""

    def __init__(self, child: Child, *, streams_end: pathlib.Path | None = None) -> None:
        self.child = child
        self._streams_end = streams_end
        self.pid = child.process.pid
        self.port = 0

    def wait_listening(self) -> None:
        """Waits for the line that says the port."""

        def said() -> bool:
            self.child.check()
            return bool(re.search(r"listening on http://127\.0\.0\.1:\d+", self.child.output()))

        wait_until(said, what=f"listening: {self.child.output()}")
        self.port = int(re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.child.output())[1])  # type: ignore[index]

    def get(self, path: str, *, timeout_s: float = 30.0) -> tuple[int, str]:
        """One request on a connection of its own."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)) as connection:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def children(self) -> dict[int, str]:
        """pid -> name of every child."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            if rest.split()[1] == str(self.pid) and rest.split()[0] != "Z":
                found[int(entry.name)] = name
        return found

    def named(self, name: str) -> list[int]:
        """Pids of the children whose name begins so."""
        return [pid for pid, found in self.children().items() if found.startswith(f"smg:{name}")]

    def signal(self, number: int) -> None:
        """Sends a signal to the supervisor."""
        os.kill(self.pid, number)

    def end_streams(self) -> None:
        """Has the streams of the trivial application come to their end."""
        assert self._streams_end
        self._streams_end.touch()

    def wait_exit(self, *, within_s: float = 30.0) -> int:
        """Gives the exit status."""
        return int(self.child.process.wait(timeout=within_s))


@contextlib.contextmanager
def gateway(
    folder: pathlib.Path, *flags: str, workers: int = 2, listening: bool = True, environment: Mapping[str, str] | None = None
) -> Iterator[Gateway]:
    """Starts a gateway on a free port and ends it."""
    place: Sequence[str] = ("--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0")
    more: Sequence[str] = ("--workers", str(workers), "--state-dir", str(folder / "state"), "--worker-urls", "grpc://127.0.0.1:1")
    command = python_module("tests.server.trivial", *place, *more, *flags)
    streams_end = folder / "streams-end"
    with Child("gateway", command=command, environment={"TEST_STREAMS_END": str(streams_end), **(environment or {})}) as child:
        made = Gateway(child, streams_end=streams_end)
        if listening:
            made.wait_listening()
        yield made
