"""Manual: a routing key stays with the engine that it was first given to, in all worker processes, until it was not used for long.

Engines that come later get only new keys. A key whose engine is away goes to another one and remembers the one before, for when it is back.
"""

import random
import time
from hashlib import blake2b

from smg.config.tree import Routing
from smg.kvindex import PrefixIndex, Sticky
from smg.obs.shm import Shm
from smg.policy.base import POLICIES, Candidates, Policy, RouteRequest
from smg.policy.deck import Deck

__all__ = ["Manual"]

EXPIRE_S = 60
LONGEST_KEY_BYTES = 256
SPREAD = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


@POLICIES.register("manual")
class Manual(Policy):
    """The key is the `x-smg-routing-key` header, else the request's user. A request without one is given to an engine as a new key is."""

    def __init__(self, config: Routing, *, shm: Shm) -> None:
        super().__init__(config, shm=shm)
        self._sticky = Sticky(shm)
        self._deck = Deck()
        self._index = PrefixIndex(shm)
        self._idle_s = int(config.max_idle_s)
        self._expire_at_s = 0

    def select(self, candidates: Candidates, *, request: RouteRequest) -> int:
        text = request.routing.key or request.routing.user
        now_s = int(time.monotonic())
        if not text:
            return self._assign(candidates, now_s=now_s)
        key = self._key(f"{request.model}\n{text}")
        index_of = candidates.index_of
        bound = self._sticky.find(key, now_s, self._idle_s)
        for slot in (bound, -1 if bound < 0 else self._sticky.find(key ^ WORD, now_s, self._idle_s)):
            if slot in index_of:
                return index_of[slot]
        chosen = self._assign(candidates, now_s=now_s)
        if bound >= 0:
            self._sticky.put(key ^ WORD, bound, now_s)
        self._sticky.put(key, candidates.slots[chosen], now_s)
        return chosen

    def _key(self, text: str) -> int:
        """Gives the key's number, by the block's secret: clients cannot choose keys that share a place."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > LONGEST_KEY_BYTES:
            data = blake2b(data).digest()
        data += b"\x80" + bytes(-len(data) - 1 & 63)  # no two keys are alike once they are filled up
        return self._index.names(0, data, len(data) // 4)[0] * SPREAD & WORD

    def _assign(self, candidates: Candidates, *, now_s: int) -> int:
        mode = self.config.assignment_mode
        if mode == "min_load":
            return self.least_loaded(candidates)
        if mode == "random":
            return self._deck.draw(candidates)
        if now_s >= self._expire_at_s:
            self._expire_at_s = now_s + EXPIRE_S
            self._sticky.expire(now_s, self._idle_s)
        counts = [self._sticky.keys(slot) for slot in candidates.slots]
        least = min(counts)
        return random.choice([index for index, count in enumerate(counts) if count == least])
