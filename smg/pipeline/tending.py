"""Requests that wait for an engine, looked after from outside: each data worker does so a few times a second, with one loop over all.

In: what waits (`Tended`), the addresses of engines that are lost. Out: an error for each that waits in vain: an engine that is lost before
it has sent anything, so that another one is asked, and one that falls silent in mid-stream. A token costs nothing here: whether an
engine goes on is seen by how many have come. Called by `Pipeline.tend` and `Relay.tend`.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Set
from typing import TypeVar

from smg.errors import EngineTimeout, EngineUnavailable, SmgError

__all__ = ["Tended", "Tender", "Wait"]

T = TypeVar("T")

# Looks in the time that an engine may be silent: it is given up after that time, or up to a quarter of it later.
LOOKS = 4


class Tended(ABC):
    """One request at one engine. `looked`: its progress when it was seen to change last, and the time of that."""

    looked: tuple[int, float] = (0, 0.0)

    @abstractmethod
    def waits_for(self) -> str:
        """Gives the engine's address while nothing has come from there; empty afterwards."""

    @abstractmethod
    def progress(self) -> int:
        """Gives what has come of a stream, as a number that grows; 0 while the engine owes nothing: before the first token, which may
        take long, in an answer that comes as a whole, and while it is held back because the client is slow.
        """

    @abstractmethod
    def fail(self, error: SmgError) -> None:
        """Ends it with an error."""

    def expire(self) -> None:
        """Ends it at its deadline; see `Deadlines`."""
        self.fail(EngineTimeout("the engine did not answer in time"))


class Tender:
    """`idle_s`: the time for which an engine may be silent in mid-stream, 0 = any."""

    def __init__(self, *, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._next_s = 0.0

    def look(self, calls: Callable[[], Iterable[object]], *, lost: Set[str]) -> None:
        """Ends those of `calls` that wait in vain; asks for them only when there is something to look for. What is not `Tended` is left."""
        now_s = self._clock()
        due = self._idle_s > 0 and now_s >= self._next_s
        if due:
            self._next_s = now_s + self._idle_s / LOOKS
        if not (due or lost):
            return
        for call in calls():
            if isinstance(call, Tended):
                if lost and call.waits_for() in lost:
                    call.fail(EngineUnavailable("the engine went away before it answered"))
                elif due:
                    self._check(call, now_s)

    def _check(self, call: Tended, now_s: float) -> None:
        progress = call.progress()
        before, moved_s = call.looked
        if not progress or progress != before:
            call.looked = progress, now_s
        elif now_s - moved_s >= self._idle_s:
            call.fail(EngineTimeout("the engine fell silent in the middle of its answer"))


class Wait:
    """A wait that somebody else can end. `open`: it is under way."""

    def __init__(self) -> None:
        self._error: SmgError | None = None
        self._timeout: asyncio.Timeout | None = None

    @property
    def open(self) -> bool:
        """True while somebody waits."""
        return self._timeout is not None

    async def of(self, what: Awaitable[T]) -> T:
        """Gives what comes. Raises the error of `fail`, also of one that came before."""
        try:
            async with asyncio.timeout(0.0 if self._error is not None else None) as self._timeout:
                return await what
        except TimeoutError:
            if self._error is None:
                raise
            raise self._error from None
        finally:
            self._timeout = None

    def fail(self, error: SmgError) -> None:
        """Ends the wait, or the next one; the first error counts."""
        if self._error is None:
            self._error = error
            if self._timeout is not None:
                self._timeout.reschedule(0.0)
