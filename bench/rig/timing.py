"""Times a call in this process: the least of many repeats, since whatever else runs on a machine can only add. Used by `bench.stages`."""

import gc
import time
from collections.abc import Awaitable, Callable

__all__ = ["least_async_us", "least_us"]

REPEAT_S = 0.01  # long against the clock's steps, short against a time slice


def least_us(call: Callable[[], object], *, seconds: float) -> float:
    """Gives microseconds of processor time of this process a call, by repeats over so many seconds."""
    number = _calibrated(call)
    least = float("inf")
    end = time.perf_counter() + seconds
    gc.collect()
    while least == float("inf") or time.perf_counter() < end:
        began = time.process_time()
        for _ in range(number):
            call()
        least = min(least, (time.process_time() - began) / number)
    return least * 1e6


async def least_async_us(
    call: Callable[[], Awaitable[object]], *, seconds: float, units: int, prepare: Callable[[], object] = lambda: None
) -> float:
    """Gives microseconds a unit of a coroutine that does `units` of them, on the running loop. `prepare` comes before each, untimed."""
    prepare()
    await call()
    least = float("inf")
    end = time.perf_counter() + seconds
    gc.collect()
    while least == float("inf") or time.perf_counter() < end:
        prepare()
        began = time.process_time()
        await call()
        least = min(least, (time.process_time() - began) / units)
    return least * 1e6


def _calibrated(call: Callable[[], object]) -> int:
    """How many calls one repeat is made of."""
    number = 1
    while True:
        began = time.perf_counter()
        for _ in range(number):
            call()
        if time.perf_counter() - began > REPEAT_S / 4:
            return max(1, round(number * REPEAT_S / max(1e-9, time.perf_counter() - began)))
        number *= 2
