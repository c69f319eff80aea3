"""How many requests may begin in a second, over all processes (`--rate-limit-tokens-per-second`). Made by `smg.middleware.gate`."""

import time

from smg.obs.buckets import LONGEST_NS, Buckets

__all__ = ["StartRate"]

KEY = 0x5354_4152_5453
SECOND = 1_000_000_000


class StartRate:
    """`per_second` in the long run, `burst` at once."""

    def __init__(self, buckets: Buckets, *, per_second: int, burst: int) -> None:
        self._buckets = buckets
        self._cost_ns = SECOND // per_second
        self._burst_ns = min(burst * self._cost_ns, LONGEST_NS)

    def take(self) -> float:
        """Gives 0 when one more may begin, else the seconds to wait."""
        return self._buckets.take(KEY, self._cost_ns, self._burst_ns, time.monotonic_ns()) / SECOND

    def give(self) -> None:
        """One did not begin."""
        self._buckets.charge(KEY, -self._cost_ns, time.monotonic_ns())
