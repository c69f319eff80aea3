"""An engine as routing sees it: what the worker's view offers and a policy chooses among."""

from msgspec import Struct

__all__ = ["Candidate"]


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
