"""Cache aware: the engine on which the request costs least, what its cache saves weighed against what is queued there.

The cost of a candidate is in prompt tokens to compute: those of this request that it does not hold, and what is queued there by the one
score of all policies. There is no threshold at which one of the two is thrown away (known bugs B111, B114).
"""

import random
from array import array

from smg.config.tree import Routing
from smg.kvindex import PrefixIndex
from smg.obs.loads import least_of
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest

__all__ = ["CacheAware"]

BYTES_PER_TOKEN = 4  # of a text, by which the index counts what an engine holds of it


@POLICIES.register("cache_aware")
class CacheAware(Policy):
    """Predicts, for all worker processes, that the chosen engine will hold the prompt; engines that tell of their cache correct it."""

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._index = PrefixIndex(shm)
        self._held = array("q")

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        index, held = self._index, self._held
        prompt = index.text_prompt(request.text) if request.text and not request.prompt_ids else index.prompt(request.prompt_ids)
        slots = candidates.slots
        if len(held) < len(slots):
            held = self._held = array("q", slots)
        index.match(prompt, slots, held)
        unit = 1 if request.prompt_ids else BYTES_PER_TOKEN
        chosen = least_of(candidates.works(self.cost), random.getrandbits(31), held, unit)
        self.rank = index.rank(prompt, slots[chosen])
        index.insert(prompt, slots[chosen], self.rank)
        self.cached_tokens = held[chosen] // unit
        return chosen
