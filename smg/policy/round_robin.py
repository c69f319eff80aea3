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
        slots = [candidate.slot for candidate in candidates]
        after = [slot for slot in slots if slot > self._last]
        self._last = min(after or slots)
        return slots.index(self._last)
