"""Deadlines of many calls on one timer: each call expires in time, none before it, and those taken away never."""

import asyncio
import math
import time

from smg.pipeline.deadlines import TICK_S, Deadlines
from tests.engine.drive import until


class Call:
    """Notes when it expired."""

    def __init__(self, deadlines: Deadlines, *, in_s: float) -> None:
        self.deadline_s = time.monotonic() + in_s
        self.expired_s: list[float] = []
        self.tick = deadlines.add(self, self.deadline_s)

    def expire(self) -> None:
        self.expired_s.append(time.monotonic())


def test_each_call_expires_once_and_not_early() -> None:
    async def run() -> None:
        deadlines = Deadlines()
        late, early, same = (Call(deadlines, in_s=in_s) for in_s in (3 * TICK_S, TICK_S, TICK_S))
        await until(lambda: late.expired_s)
        for call in (late, early, same):
            assert len(call.expired_s) == 1
            assert call.expired_s[0] >= call.deadline_s
        assert early.expired_s < late.expired_s
        deadlines.close()

    asyncio.run(run())


def test_a_deadline_that_has_passed_expires_soon() -> None:
    async def run() -> None:
        deadlines = Deadlines()
        call = Call(deadlines, in_s=-1.0)
        await until(lambda: call.expired_s)
        deadlines.close()

    asyncio.run(run())


def test_calls_taken_away_never_expire_and_leave_nothing_behind() -> None:
    async def run() -> None:
        deadlines = Deadlines()
        gone, other = Call(deadlines, in_s=TICK_S), Call(deadlines, in_s=2 * TICK_S)
        deadlines.discard(gone, gone.tick)
        deadlines.discard(gone, gone.tick)
        await until(lambda: other.expired_s)
        assert not gone.expired_s
        deadlines.discard(other, other.tick)
        assert not deadlines._buckets
        deadlines.close()

    asyncio.run(run())


def test_no_deadline_is_far_away() -> None:
    async def run() -> None:
        deadlines = Deadlines()
        forever = Call(deadlines, in_s=math.inf)
        soon = Call(deadlines, in_s=0.0)
        await until(lambda: soon.expired_s)
        assert not forever.expired_s
        deadlines.close()

    asyncio.run(run())
