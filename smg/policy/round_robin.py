"""Round robin: each candidate in turn. The turn is kept per data worker; starts differ so that workers do not march in step."""

import os
from collections.abc import Sequence

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest

__all__ = ["RoundRobin"]


@POLICIES.register("round_robin")
class RoundRobin(Policy):
    """Takes the candidate with the next higher slot than the one before, so that a changing set is still walked evenly."""

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._last = os.getpid() % 97  # a slot number; any start will do

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        after = first = -1
        for index, candidate in enumerate(candidates):
            slot = candidate.slot
            if first < 0 or slot < candidates[first].slot:
                first = index
            if slot > self._last and (after < 0 or slot < candidates[after].slot):
                after = index
        chosen = after if after >= 0 else first
        self._last = candidates[chosen].slot
        return chosen
