"""Passthrough: always the first candidate. For a gateway that stands before one engine, or before another balancer."""

from collections.abc import Sequence

from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest

__all__ = ["Passthrough"]


@POLICIES.register("passthrough")
class Passthrough(Policy):
    """Takes the ready candidate with the lowest slot."""

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        return min(range(len(candidates)), key=lambda i: candidates[i].slot)
