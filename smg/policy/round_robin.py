"""Round robin: each candidate in turn, one turn for all data workers."""

from collections.abc import Sequence

from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest

__all__ = ["RoundRobin"]


@POLICIES.register("round_robin")
class RoundRobin(Policy):
    """Takes the candidates in the order of their slots. The turn is kept with the first of them, so that each pool has one of its own."""

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        in_order = sorted(range(len(candidates)), key=lambda index: candidates[index].slot)
        return in_order[self.shm.turn(candidates[in_order[0]].slot) % len(in_order)]
