"""Deadlines of many calls with one timer: adding and taking away one costs no timer of the event loop. One a pipeline."""

import asyncio
import time
from typing import Protocol

__all__ = ["Deadlines", "Mortal"]

# Deadlines are kept in buckets of this length, at whose end their calls expire.
TICK_S = 0.05
LATEST_S = 1e10  # what an infinite deadline is taken for


class Mortal(Protocol):
    """What has a deadline."""

    def expire(self) -> None:
        """The deadline has passed."""


class Deadlines:
    """Used from one event loop. A call expires at its deadline or at most a tick later."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[Mortal]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def add(self, call: Mortal, deadline_s: float) -> int:
        """Watches a call; `deadline_s` is on the clock of `time.monotonic`. Gives what `discard` needs."""
        tick = int(min(deadline_s, LATEST_S) / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = set()
            if self._timer is None or tick < self._next:
                self._arm(tick)
        bucket.add(call)
        return tick

    def discard(self, call: Mortal, tick: int) -> None:
        """Forgets a call."""
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.discard(call)
            if not bucket:
                del self._buckets[tick]

    def calls(self) -> list[Mortal]:
        """Gives all that is watched."""
        return [call for bucket in self._buckets.values() for call in bucket]

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _arm(self, tick: int) -> None:
        self.close()
        self._next = tick
        self._timer = asyncio.get_running_loop().call_later(max(0.0, tick * TICK_S - time.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = time.monotonic() / TICK_S
        for tick in sorted(tick for tick in self._buckets if tick <= now):
            for call in self._buckets.pop(tick):
                call.expire()
        if self._buckets:
            self._arm(min(self._buckets))
