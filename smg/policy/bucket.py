"""Bucket: prompts of like length go to the same engines, so that short ones do not wait behind long ones.

Lengths are counted in bins, eight to an octave; an engine's bucket is its equal part of the tokens that came of late. Each data worker sees
an even sample of the requests, so each comes to the same boundaries by itself.
"""

import random
import time

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest

__all__ = ["Bucket"]

BINS_PER_OCTAVE = 8
BINS = 21 * BINS_PER_OCTAVE
FIRST_LONGEST = 4096  # tokens: what is divided evenly before anything was seen


@POLICIES.register("bucket")
class Bucket(Policy):
    """Passes over an engine with over `balance_rel_threshold` times the tokens of the least busy one and `balance_abs_threshold` more."""

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._window = [0.0] * BINS
        self._before: list[float] = []
        self._adjust_at = time.monotonic() + config.bucket_adjust_interval_s

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        size = max(1, request.size)
        bin_ = min(bin_of(size), BINS - 1)
        self._window[bin_] += size
        if time.monotonic() >= self._adjust_at:
            self._adjust()
        chosen = candidates.in_order[min(int(self._position(size, bin_) * len(candidates)), len(candidates) - 1)]
        least = self.least_loaded(candidates)
        if least == chosen:
            return chosen
        most, fewest = (one.tokens + one.foreign_tokens for one in (candidates[chosen], candidates[least]))
        excess = most - fewest > self.config.balance_abs_threshold
        return least if excess and most > fewest * self.config.balance_rel_threshold else chosen

    def _position(self, size: int, bin_: int) -> float:
        """Gives the share of the load that comes with shorter prompts, 0 to 1; anywhere within the bin's own share."""
        if not self._before:
            return min(size / FIRST_LONGEST, 1.0)
        return self._before[bin_] + random.random() * (self._before[bin_ + 1] - self._before[bin_])

    def _adjust(self) -> None:
        """Takes new boundaries from what came lately; what came before counts half."""
        self._adjust_at = time.monotonic() + self.config.bucket_adjust_interval_s
        total = sum(self._window)
        before = [0.0]
        for load in self._window:
            before.append(before[-1] + load / total)
        self._before = before
        self._window = [load / 2 for load in self._window]


def bin_of(size: int) -> int:
    """Gives a length's bin: eight to an octave, the whole part of the logarithm first."""
    octave = size.bit_length() - 1
    return octave * BINS_PER_OCTAVE + (size * BINS_PER_OCTAVE >> octave) - BINS_PER_OCTAVE
