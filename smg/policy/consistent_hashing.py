"""Consistent hashing: requests with one key go to one engine, and an engine that comes or goes moves only its own share of the keys.

An engine that has far more to do than the others passes requests on to the next on the ring, always the same one for a key (consistent
hashing with bounded loads: Mirrokni, Thorup, Zadimoghaddam 2018). An engine holds no state that another could not compute again, so that a
long wait costs more than the move.
"""

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest
from smg.policy.deck import Deck
from smg.policy.ring import Ring, hash_key, works_to_share

__all__ = ["ConsistentHashing"]

LOAD_FACTOR = 1.25


@POLICIES.register("consistent_hashing")
class ConsistentHashing(Policy):
    """The key is the `x-smg-routing-key` header, else the request's user; without either any engine is taken.

    An engine passes requests on that has over 1.25 times the mean of the work and `consistent_hashing_slack_tokens`: a key's requests stay
    together when there is little to do.
    """

    takes_target = True

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._ring = Ring()
        self._deck = Deck()

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        key = request.routing.key or request.routing.user
        if not key:
            return self._deck.draw(candidates)
        place = hash_key(key.encode("utf-8", "surrogatepass"))
        owner = self._ring.find(place, candidates)
        if not self.config.consistent_hashing_slack_tokens:
            return owner
        works = candidates.works(self.cost)
        shared = works_to_share(works)
        bound = LOAD_FACTOR * sum(shared) / len(shared) + self.config.consistent_hashing_slack_tokens
        if works[owner] <= bound:
            return owner
        return self._ring.find(place, candidates, free=lambda index: works[index] <= bound)
