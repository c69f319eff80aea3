"""Measures how long something takes without what is the fault of a busy machine: the time in which ready threads waited for a core.

Tests use it where a figure is what is promised. Where what is wrong never ends, or ends after minutes, a plain bound of many seconds does.
"""

import contextlib
import os
import pathlib
import time

__all__ = ["Stopwatch"]


class Stopwatch:
    """Started when it is made. `pids`: processes that take part besides this one; their descendants are watched too."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._before = self._denied()
        self._began_s = time.monotonic()

    def seconds(self, *, until_s: float | None = None) -> float:
        """Seconds from the start to now, or to `until_s` on the clock of `time.monotonic`, less those that the processes were denied.

        The waits of all threads are added up, so on a busy machine this may be too little, and never is too much.
        """
        took = (until_s or time.monotonic()) - self._began_s
        return took - sum(waited - self._before.get(task, 0) for task, waited in self._denied().items()) / 1e9

    def _denied(self) -> dict[int, int]:
        """Nanoseconds that each thread has waited to run, by its id: field 2 of schedstat (Documentation/scheduler/sched-stats.rst)."""
        found, left = {}, list(self._pids)
        while left:
            with contextlib.suppress(OSError):  # it ended meanwhile
                tasks = list(pathlib.Path(f"/proc/{left.pop()}/task").iterdir())
                for task in tasks:
                    found[int(task.name)] = int((task / "schedstat").read_text().split()[1])
                    left += map(int, (task / "children").read_text().split())
        return found
