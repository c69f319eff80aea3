"""An event loop whose clock jumps: no second is waited for, and a run gives the same figures each time. `replay` runs on it."""

import asyncio
import selectors

__all__ = ["JumpingLoop"]


class JumpingClock(selectors.DefaultSelector):
    """A selector that does not wait: the time that it should have waited has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen")
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on that clock."""

    def __init__(self) -> None:
        self._clock = JumpingClock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now
