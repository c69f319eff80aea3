"""Least load: the candidate with the least work queued, counted over all worker processes."""

from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest

__all__ = ["LeastLoad"]


@POLICIES.register("least_load")
class LeastLoad(Policy):
    """Compares prompt tokens to compute, a request in flight counting for some; ties are broken at random."""

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        return self.least_loaded(candidates)
