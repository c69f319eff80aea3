"""Power of two choices (Mitzenmacher 2001): two candidates at random, the less loaded one is taken."""

import random

from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest

__all__ = ["PowerOfTwo"]


@POLICIES.register("power_of_two")
class PowerOfTwo(Policy):
    """Draws two different candidates; a tie goes to the first drawn, which is random."""

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        if len(candidates) == 1:
            return 0
        first, second = random.randrange(len(candidates)), random.randrange(len(candidates) - 1)
        second += second >= first
        return second if candidates.work(second, self.cost) < candidates.work(first, self.cost) else first
