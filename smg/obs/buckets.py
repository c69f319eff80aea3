"""Token buckets of all processes. Gives `Buckets`: the native class of `smg_ext.buckets` or, with SMG_NO_EXT, its twin.

Made by `smg.middleware` in each data worker.
"""

from typing import TYPE_CHECKING

from smg._ext import NO_EXT, NativeBuckets
from smg.obs.shm import BUCKET_WAYS, BUCKETS_HEADER_WORDS, PlainShm

__all__ = ["LONGEST_NS", "Buckets", "PlainBuckets"]

LONGEST_NS = 86400 * 1_000_000_000


class PlainBuckets:
    """The twin of `smg_ext.buckets.Buckets`; what each method means is said there. Not atomic: right for one process."""

    def __init__(self, shm: PlainShm) -> None:
        self._words = shm.unsigned
        self._room = self._words[shm.buckets_at]
        self._entries_at = shm.buckets_at + BUCKETS_HEADER_WORDS

    def take(self, key: int, cost_ns: int, burst_ns: int, now_ns: int) -> int:
        check(cost_ns, burst_ns, now_ns)
        cost_ns = min(cost_ns, LONGEST_NS)
        at = self._made(key or 1, now_ns)
        full = max(self._words[at], now_ns)
        wait = full - now_ns + min(cost_ns, burst_ns) - burst_ns
        if wait > 0:
            return wait
        self._words[at] = min(full + cost_ns, now_ns + LONGEST_NS)
        return 0

    def charge(self, key: int, cost_ns: int, now_ns: int) -> None:
        check(abs(cost_ns), 0, now_ns)
        at = self._made(key or 1, now_ns) if cost_ns > 0 else self._found(key or 1)
        if at is not None:
            full = max(self._words[at], now_ns)
            self._words[at] = max(min(full + max(min(cost_ns, LONGEST_NS), -LONGEST_NS), now_ns + LONGEST_NS), 0)

    def debt(self, key: int, now_ns: int) -> int:
        check(0, 0, now_ns)
        at = self._found(key or 1)
        return 0 if at is None else max(self._words[at] - now_ns, 0)

    def _window(self, key: int) -> range:
        first = self._entries_at + 2 * (key * self._room >> 64)
        return range(first, first + 2 * BUCKET_WAYS, 2)

    def _found(self, key: int) -> int | None:
        return next((at + 1 for at in self._window(key) if self._words[at] == key), None)

    def _made(self, key: int, now_ns: int) -> int:
        found = self._found(key)
        if found is not None:
            return found
        at = min(self._window(key), key=lambda entry: self._words[entry + 1])
        self._words[at] = key
        if self._words[at + 1] > now_ns:
            self._words[at + 1] = 0
        return at + 1


def check(cost: int, burst: int, now: int) -> None:
    """Raises ValueError for numbers that are no costs, bursts or times."""
    if cost < 0 or not 0 <= burst <= LONGEST_NS or not 0 <= now < 1 << 62:
        raise ValueError("costs, bursts and times are ns, not below 0, and bursts at most a day")


if TYPE_CHECKING:
    Buckets = NativeBuckets
else:
    Buckets = PlainBuckets if NO_EXT else NativeBuckets
