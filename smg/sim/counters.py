"""What a simulated engine counts, for tests and for the status port: the scheduler and the protocols write, everybody reads."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

__all__ = ["Abort", "Counters", "total"]


class Abort(Struct, frozen=True, kw_only=True):
    """One way in which a client gave up: an Abort call, or a cancelled Generate call. `at_s` is on the clock of `time.monotonic`."""

    request_id: str
    cause: Literal["rpc", "cancel"]
    known: bool
    at_s: float


class Counters(Struct, kw_only=True):
    """All since start, except running, waiting, blocks_used and blocks_pinned, which are now. Requests, not choices."""

    started: int = 0
    finished: int = 0
    aborted: int = 0
    faulted: int = 0
    refused: int = 0
    abort_calls: int = 0
    cancelled_calls: int = 0
    health_checks: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preempted: int = 0
    transfers: int = 0
    transfers_failed: int = 0
    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    blocks_used: int = 0
    blocks_pinned: int = 0
    aborts: deque[Abort] = field(default_factory=lambda: deque(maxlen=1000))

    def add_abort(self, request_id: str, *, cause: Literal["rpc", "cancel"], known: bool) -> None:
        """Counts an Abort call or a cancelled call; `known`: the request was still alive at that moment."""
        self.aborts.append(Abort(request_id=request_id, cause=cause, known=known, at_s=time.monotonic()))
        if cause == "rpc":
            self.abort_calls += 1
        else:
            self.cancelled_calls += 1
        self.aborted += known


def total(parts: Iterable[Counters]) -> Counters:
    """Gives the sum over the ranks of an engine, as of now."""
    made = Counters()
    for part in parts:
        for name in Counters.__struct_fields__[:-1]:
            setattr(made, name, getattr(made, name) + getattr(part, name))
        made.aborts.extend(part.aborts)
    made.aborts = deque(sorted(made.aborts, key=lambda abort: abort.at_s), maxlen=made.aborts.maxlen)
    return made
