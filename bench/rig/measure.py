"""Processor time and memory of process trees, from /proc, and where processes may run. Used by all that measures a gateway."""

import contextlib
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from types import TracebackType

__all__ = ["PeakMemory", "affinity", "cpu_s", "cpus", "machine", "pss_mb", "rss_mb", "tree"]

MB = 1024.0  # /proc counts in kB
CLEAR_PEAK = "5"  # of clear_refs: resets VmHWM, proc(5)


def tree(root: int) -> list[int]:
    """Gives a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (text := _read(f"/proc/{entry}/stat")):
            children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(root: int) -> dict[int, float]:
    """Gives the processor seconds of each process of a tree, all threads, those that ended too, in nanosecond steps."""
    used = {}
    for pid in tree(root):
        with contextlib.suppress(OSError):
            used[pid] = time.clock_gettime((~pid << 3) | 2)  # the clock of another process, clock_getcpuclockid(3)
    return used


def rss_mb(root: int) -> dict[int, float]:
    """Gives the resident memory of each process of a tree, shared pages counted in each."""
    return {pid: _field(pid, "status", "VmRSS") / MB for pid in tree(root)}


def pss_mb(root: int) -> float:
    """Gives the resident memory of a tree with shared pages counted once."""
    return sum(_field(pid, "smaps_rollup", "Pss") for pid in tree(root)) / MB


class PeakMemory:
    """Context manager: `mb` is the largest resident memory of a tree while the body ran, shared pages counted in each process.

    The sum of the tree is sampled; of a single process the kernel's own high-water mark is taken.
    """

    def __init__(self, root: int, *, every_s: float = 0.2) -> None:
        self.mb = 0.0
        self._root = root
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        for pid in tree(self._root):
            with contextlib.suppress(OSError):
                pathlib.Path(f"/proc/{pid}/clear_refs").write_text(CLEAR_PEAK)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        pids = tree(self._root)
        alone = _field(pids[0], "status", "VmHWM") / MB if len(pids) == 1 else 0.0
        self.mb = max(self.mb, alone, sum(rss_mb(self._root).values()))

    def _sample(self) -> None:
        while not self._stop.wait(self._every_s):
            self.mb = max(self.mb, sum(rss_mb(self._root).values()))


def cpus() -> tuple[set[int], set[int]] | None:
    """Gives the processors of the gateway and of all else; None with a single one."""
    usable = sorted(os.sched_getaffinity(0))
    return ({usable[1]}, {usable[0]}) if len(usable) > 1 else None


@contextlib.contextmanager
def affinity(wanted: set[int] | None) -> Iterator[None]:
    """Processes started in the body run on these processors only; None changes nothing."""
    before = os.sched_getaffinity(0)
    if wanted:
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine() -> dict[str, str]:
    """Gives what a table of figures must say about where and when it was made."""
    model = next((line.partition(":")[2].strip() for line in (_read("/proc/cpuinfo") or "").splitlines() if "model name" in line), "?")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return {"date": time.strftime("%Y-%m-%d %H:%M"), "cpu": f"{len(os.sched_getaffinity(0))} x {model}", "load_average": load}


def _read(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text()
    except OSError:  # the process is gone
        return None


def _field(pid: int, file: str, name: str) -> int:
    for line in (_read(f"/proc/{pid}/{file}") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    return 0
