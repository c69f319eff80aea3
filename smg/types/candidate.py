"""Engines as routing sees them: what the worker's view offers and a policy chooses among, and the one score by which loads are compared."""

from array import array
from collections.abc import Container, Iterator, Sequence
from functools import cached_property

from msgspec import Struct

__all__ = ["MOST_REQUESTS", "MOST_TOKENS", "OVERLOADED", "Candidate", "Candidates", "Cost"]

# No report of an engine weighs more than these: it may say anything.
MOST_REQUESTS = 1 << 24
MOST_TOKENS = 1 << 40
FULLEST = 0.999
OVERLOADED = 1 << 56


class Cost(Struct, frozen=True, dict=True):
    """How the score weighs what it counts, in prompt tokens to compute.

    `request_tokens`: a request under way. `untold_tokens`: one of others that waits with an untold number of tokens. `pressure`: a KV cache
    that is half full. `overload`: the part of it in use above which an engine comes after all others.
    """

    request_tokens: int
    untold_tokens: int
    pressure: float
    overload: float

    @cached_property
    def weights(self) -> "array[float]":
        """The fields as numbers for `Loads.works`, which reads them for every request."""
        return array("d", (self.request_tokens, self.untold_tokens, self.pressure, self.overload))


class Candidate(Struct, frozen=True):
    """An engine that is Ready and whose breaker lets requests through. Loads are summed over all worker processes.

    `tokens`: of prompts still to compute. `foreign_*`: what the engine reports beyond these, from other gateways and clients; `untold` are
    those of its waiting requests whose tokens it does not tell. `usage`: the part of its KV cache in use. `probe`: the breaker is not
    closed, and `WorkerView.take_probe` must be asked.
    """

    slot: int
    url: str
    requests: int
    tokens: int
    foreign_requests: int = 0
    foreign_tokens: int = 0
    foreign_untold: int = 0
    usage: float = 0.0
    probe: bool = False

    def work(self, cost: Cost) -> int:
        """Gives what is queued, in prompt tokens to compute.

        It is what all processes of this gateway have under way there, what the engine reports beyond that, and how full its cache is: the
        nearer to full, the sooner it must recompute what it had begun.
        """
        requests = self.requests + min(self.foreign_requests, MOST_REQUESTS)
        work = self.tokens + min(self.foreign_tokens, MOST_TOKENS) + requests * cost.request_tokens
        work += min(self.foreign_untold, MOST_REQUESTS) * cost.untold_tokens
        if usage := min(self.usage, FULLEST):
            work += int(cost.pressure * usage / (1 - usage))
            if usage > cost.overload:
                work += OVERLOADED
        return work


class Candidates(Sequence[Candidate]):
    """The engines among which a request is routed; the specification of `smg.worker.candidates.LiveCandidates`, whose loads are read late.

    While nothing but their loads changes it is the same object for each request, so that what is derived of it is found once. `slots` and
    `urls` are in the order of the candidates.
    """

    def __init__(self, found: Sequence[Candidate]) -> None:
        self._found = found
        self.slots = array("q", [candidate.slot for candidate in found])
        self.urls = [candidate.url for candidate in found]

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, index: int) -> Candidate:  # type: ignore[override]  # slices are not asked for
        return self._found[index]

    def __iter__(self) -> Iterator[Candidate]:
        return map(self.__getitem__, range(len(self.slots)))

    @cached_property
    def in_order(self) -> list[int]:
        """The indices in the order of the slots."""
        return sorted(range(len(self.slots)), key=self.slots.__getitem__)

    @cached_property
    def index_of(self) -> dict[int, int]:
        """The index of each slot."""
        return {slot: index for index, slot in enumerate(self.slots)}

    @cached_property
    def index_of_url(self) -> dict[str, int]:
        """The index of each URL."""
        return {url: index for index, url in enumerate(self.urls)}

    def is_probe(self, index: int) -> bool:
        """True when the breaker of a candidate is not closed."""
        return self[index].probe

    def work(self, index: int, cost: Cost) -> int:
        """Gives what is queued at one candidate, in prompt tokens to compute."""
        return self[index].work(cost)

    def works(self, cost: Cost) -> "array[int]":
        """Gives what is queued at each candidate. The array is the caller's until the next call."""
        return array("q", [candidate.work(cost) for candidate in self])

    def only(self, indices: Sequence[int]) -> "Candidates":
        """Gives some of the candidates."""
        return Candidates([self[index] for index in indices])

    def without(self, slots: Container[int]) -> "Candidates":
        """Gives the candidates but those of some slots."""
        return self.only([index for index, slot in enumerate(self.slots) if slot not in slots])
