"""Round robin: each candidate in turn, one turn for all data workers."""

from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest

__all__ = ["RoundRobin"]


@POLICIES.register("round_robin")
class RoundRobin(Policy):
    """Takes the candidates in the order of their slots. The turn is kept with the first of them, so that each pool has one of its own."""

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        in_order = candidates.in_order
        return in_order[self.shm.turn(candidates.slots[in_order[0]]) % len(in_order)]
