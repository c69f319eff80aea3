"""Least load: the candidate with the fewest requests in flight, counted over all worker processes."""

import random
from collections.abc import Sequence

from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest

__all__ = ["LeastLoad", "least_loaded"]


def least_loaded(candidates: Sequence[Candidate]) -> int:
    """Gives the index of the candidate with the fewest requests, then tokens, in flight; any of those that are equal."""
    least = min((candidate.requests, candidate.tokens) for candidate in candidates)
    return random.choice([i for i, candidate in enumerate(candidates) if (candidate.requests, candidate.tokens) == least])


@POLICIES.register("least_load")
class LeastLoad(Policy):
    """Compares requests, then tokens in flight; ties are broken at random, so that idle fleets fill evenly."""

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        return least_loaded(candidates)
