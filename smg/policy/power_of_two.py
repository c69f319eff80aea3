"""Power of two choices (Mitzenmacher 2001): two candidates at random, the less loaded one is taken."""

import random
from collections.abc import Sequence

from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest

__all__ = ["PowerOfTwo"]


@POLICIES.register("power_of_two")
class PowerOfTwo(Policy):
    """Draws two different candidates; a tie goes to the first drawn, which is random."""

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        if len(candidates) == 1:
            return 0
        first, second = random.sample(range(len(candidates)), 2)
        return second if self.work(candidates[second]) < self.work(candidates[first]) else first
