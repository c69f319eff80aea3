"""What a routing policy is: candidates and a request in, the index of one candidate out."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from smg.config.tree import Routing as RoutingConfig
from smg.obs.loads import least_of
from smg.obs.shm import Shm
from smg.registry import Registry
from smg.types.candidate import Candidate, Candidates, Cost
from smg.types.job import Routing

__all__ = ["POLICIES", "Candidate", "Candidates", "Policy", "RouteRequest"]


class RouteRequest(Struct, frozen=True, kw_only=True):
    """What a policy may know of the request. `text` is set where the engine tokenizes, and `prompt_ids` is empty then."""

    prompt_ids: Sequence[int]
    routing: Routing
    model: str = ""
    text: str = ""

    @property
    def size(self) -> int:
        """The prompt's tokens, or an estimate of them for a text."""
        return len(self.prompt_ids) or len(self.text) // 4


class Policy(ABC):
    """Chooses among one model's candidates. Must not keep anything that grows with the number of requests.

    What all worker processes must agree on is kept in `shm`. `cost`: the one score of all policies, `Candidates.works` goes by it.
    `takes_target`: obeys `x-smg-target-worker`.
    """

    takes_target: ClassVar[bool] = False

    def __init__(self, config: RoutingConfig, *, shm: Shm) -> None:
        self.config = config
        self.shm = shm
        self.cost = Cost(
            config.request_cost_tokens,
            config.least_load_mean_prefill_tokens,
            config.least_load_kv_pressure_weight * config.least_load_default_throughput,
            config.overload_token_usage_threshold,
        )
        self.cached_tokens = 0
        self.rank = -1

    def least_loaded(self, candidates: Candidates) -> int:
        """Gives the index of the candidate with the least work, any of those that are equal."""
        return least_of(candidates.works(self.cost), random.getrandbits(31))

    @abstractmethod
    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        """Gives the index of the chosen candidate; `candidates` is never empty.

        `cached_tokens` then says how many of the prompt's tokens the chosen engine is expected to hold already, and `rank` which of its
        data-parallel ranks does, -1 when that is for the engine to choose.
        """


POLICIES: Registry[type[Policy]] = Registry("policy")
