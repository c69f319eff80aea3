"""Passthrough: always the first candidate. For a gateway that stands before one engine, or before another balancer."""

from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest

__all__ = ["Passthrough"]


@POLICIES.register("passthrough")
class Passthrough(Policy):
    """Takes the ready candidate with the lowest slot."""

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        return candidates.in_order[0]
