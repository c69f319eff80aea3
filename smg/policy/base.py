"""What a routing policy is: candidates and a request in, the index of one candidate out."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from smg.config.tree import Routing as RoutingConfig
from smg.obs.shm import Shm
from smg.registry import Registry
from smg.types.candidate import Candidate
from smg.types.job import Routing

__all__ = ["POLICIES", "Candidate", "Policy", "RouteRequest"]

FULLEST = 0.999
OVERLOADED = 1 << 40


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

    What all worker processes must agree on is kept in `shm`. `takes_target`: obeys `x-smg-target-worker`.
    """

    takes_target: ClassVar[bool] = False

    def __init__(self, config: RoutingConfig, *, shm: Shm) -> None:
        self.config = config
        self.shm = shm
        self.cached_tokens = 0
        self.rank = -1

    def work(self, candidate: Candidate) -> int:
        """Gives what is queued at a candidate, in prompt tokens to compute: the one score by which policies compare loads.

        It is what all processes of this gateway have under way there, what the engine reports beyond that, and how full its cache is: the
        nearer to full, the sooner it must recompute what it had begun. One over `overload_token_usage_threshold` comes after all others.
        """
        config = self.config
        work = candidate.tokens + candidate.requests * config.request_cost_tokens
        if candidate.foreign_requests or candidate.foreign_tokens:
            work += candidate.foreign_tokens + candidate.foreign_requests * config.request_cost_tokens
            work += candidate.foreign_untold * config.least_load_mean_prefill_tokens
        if usage := min(candidate.usage, FULLEST):
            work += int(config.least_load_kv_pressure_weight * config.least_load_default_throughput * usage / (1 - usage))
            if usage > config.overload_token_usage_threshold:
                work += OVERLOADED
        return work

    def least_loaded(self, candidates: Sequence[Candidate]) -> int:
        """Gives the index of the candidate with the least work, any of those that are equal."""
        works = [self.work(candidate) for candidate in candidates]
        least = min(works)
        return works.index(least) if works.count(least) == 1 else random.choice([i for i, work in enumerate(works) if work == least])

    @abstractmethod
    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        """Gives the index of the chosen candidate; `candidates` is never empty.

        `cached_tokens` then says how many of the prompt's tokens the chosen engine is expected to hold already, and `rank` which of its
        data-parallel ranks does, -1 when that is for the engine to choose.
        """


POLICIES: Registry[type[Policy]] = Registry("policy")
