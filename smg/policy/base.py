"""What a routing policy is: candidates and a request in, the index of one candidate out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from smg.registry import Registry
from smg.types.candidate import Candidate
from smg.types.job import Routing

__all__ = ["POLICIES", "Candidate", "Policy", "RouteRequest"]


class RouteRequest(Struct, frozen=True, kw_only=True):
    """What a policy may know of the request."""

    prompt_ids: Sequence[int]
    routing: Routing


class Policy(ABC):
    """Chooses among one model's candidates. Must not keep anything that grows with the number of requests."""

    @abstractmethod
    def select(self, candidates: Sequence[Candidate], *, request: RouteRequest) -> int:
        """Gives the index of the chosen candidate; `candidates` is never empty."""


POLICIES: Registry[type[Policy]] = Registry("policy")
