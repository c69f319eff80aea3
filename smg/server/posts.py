"""The places that the supervisor keeps filled: one for the control process, one for each data worker; and when each is filled again."""

import logging
import os
import signal
import time
from collections.abc import Callable

__all__ = ["Child", "Post"]

log = logging.getLogger(__name__)

STABLE_AFTER_S = 5.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
LONGEST_DELAY_ONCE_READY_S = 1.0


class Child:
    """One process. `stop_by` is when it is killed, once it was told to end."""

    def __init__(self, pid: int, *, row: int, name: str) -> None:
        self.pid = pid
        self.row = row
        self.name = name
        self.started = time.monotonic()
        self.ready = False
        self.stop_by: float | None = None
        self.killed = False

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; the process is ours and not reaped yet, so the pid is its own."""
        os.kill(self.pid, number)

    def end(self, number: signal.Signals, *, within_s: float) -> None:
        """Tells it to end, with SIGKILL to follow. A child that does not serve yet has nothing to finish."""
        if not self.killed:
            self.killed = not self.ready
            self.send(signal.SIGKILL if self.killed else number)
        self.stop_by = time.monotonic() + within_s

    def enforce(self, now: float) -> None:
        """Kills it when its time is up."""
        if self.stop_by is not None and now >= self.stop_by and not self.killed:
            log.warning("%s did not end in time and is killed", self.name, extra={"pid": self.pid})
            self.killed = True
            self.send(signal.SIGKILL)


class Post:
    """A place for one process. `successor` is being started beside `child` to take over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.child: Child | None = None
        self.successor: Child | None = None
        self.ever_ready = False
        self.failures = 0
        self.not_before = 0.0

    def fill(self, make: Callable[[], Child | None]) -> None:
        """Starts a process when there is none and it is time."""
        if self.child is None and time.monotonic() >= self.not_before:
            self.child = make()

    def lost(self, child: Child) -> None:
        """Takes note that its process ended unasked: a stable one is replaced at once, others after a growing delay."""
        self.child = None
        now = time.monotonic()
        if child.ready and now - child.started > STABLE_AFTER_S:
            self.failures = 0
            self.not_before = now
            return
        self.failures += 1
        longest = LONGEST_DELAY_ONCE_READY_S if self.ever_ready else LONGEST_DELAY_S
        self.not_before = now + (0.0 if child.ready and self.failures == 1 else min(longest, FIRST_DELAY_S * 2 ** min(self.failures, 10)))
