"""Consistent hashing: requests with one key go to one engine, and an engine that comes or goes moves only its own share of the keys."""

import random
from collections.abc import Sequence

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidate, Policy, RouteRequest
from smg.policy.ring import Ring, hash_key

__all__ = ["ConsistentHashing"]


@POLICIES.register("consistent_hashing")
class ConsistentHashing(Policy):
    """The key is the `x-smg-routing-key` header, else the request's user; without either any engine is taken."""

    takes_target = True

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._ring = Ring()

    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        key = request.routing.key or request.routing.user
        if not key:
            return random.randrange(len(candidates))
        return self._ring.find(hash_key(key.encode("utf-8", "surrogatepass")), candidates)
