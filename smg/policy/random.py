"""Random choice, without the heaps that chance makes: each candidate once a round, in an order that nobody can tell."""

from smg.config.tree import Routing
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest
from smg.policy.deck import Deck

__all__ = ["Random"]


@POLICIES.register("random")
class Random(Policy):
    """Takes any candidate with equal probability, and none of them twice before the others had theirs."""

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._deck = Deck()

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        return self._deck.draw(candidates)
