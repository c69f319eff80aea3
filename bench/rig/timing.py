"""Times a call in this process: the least of many repeats, since whatever else runs on a machine can only add; or the call as it is in a
process that does other things too, with nothing of it in the caches. Used by `bench.stages`.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable

__all__ = ["cold_us", "least_async_us", "least_us"]

CACHES_BYTES = 8 << 20  # more than the second-level cache, which code and data of a call share, of any processor around
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


def cold_us(call: Callable[[], object], *, seconds: float) -> float:
    """Gives microseconds of processor time a call whose code and data have left the first two levels of cache: the median of many."""
    other, times = bytearray(CACHES_BYTES), []
    call()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        bytes(other)
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e6


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
