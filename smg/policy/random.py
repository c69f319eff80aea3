"""Uniform random choice."""

import random
from collections.abc import Sequence

from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest

__all__ = ["Random"]


@POLICIES.register("random")
class Random(Policy):
    """Takes any candidate with equal probability."""

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        return random.randrange(len(candidates))
