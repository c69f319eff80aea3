"""An engine as routing sees it: what the worker's view offers and a policy chooses among."""

from msgspec import Struct

__all__ = ["Candidate"]


class Candidate(Struct, frozen=True):
    """An engine that is Ready and whose breaker lets requests through. Loads are summed over all worker processes."""

    slot: int
    url: str
    requests: int
    tokens: int
