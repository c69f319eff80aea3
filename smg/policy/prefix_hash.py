"""Prefix hash: requests that begin alike go to one engine, unless it has far more to do than the others.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018), of the prompt's first tokens.
"""

import random
from array import array

from smg.config.tree import Routing
from smg.obs.loads import least_of
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest
from smg.policy.ring import Ring, hash_key, works_to_share

__all__ = ["PrefixHash"]

BYTES_PER_TOKEN = 4


@POLICIES.register("prefix_hash")
class PrefixHash(Policy):
    """Passes over an engine that has over `prefix_hash_load_factor` times its share of the work."""

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._ring = Ring()

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        count = self.config.prefix_token_count
        if request.prompt_ids:
            data = array("I", request.prompt_ids[:count]).tobytes()
        else:
            data = request.text[: count * BYTES_PER_TOKEN].encode("utf-8", "surrogatepass")
        owner = self._ring.find(hash_key(data), candidates)
        works = candidates.works(self.cost)
        shared = works_to_share(works)
        share = (sum(shared) + request.size + self.config.request_cost_tokens) / len(shared)
        return owner if works[owner] <= share * self.config.prefix_hash_load_factor else least_of(works, random.getrandbits(31))
