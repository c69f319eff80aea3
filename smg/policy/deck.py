"""A deck of engines: dealt at random, each once a round, so that chance alone never gives one of them much more than the others.

Independent draws would: at 80 % load prompts wait about 1.8 times as long as in turn (`make bench-policies`, mixed). From one round to the
next about half of the engines change places with a neighbour, which after some rounds makes any order of any other.
"""

import random
from collections.abc import Collection

from smg.types.candidate import Candidates

__all__ = ["Deck"]


class Deck:
    """Knows the engines of the last round. One that comes takes part from the next round on, anywhere in it."""

    def __init__(self) -> None:
        self._order: list[int] = []  # slots
        self._left: list[int] = []

    def draw(self, candidates: Candidates) -> int:
        """Gives the index of the next candidate."""
        if len(candidates) == 1:
            return 0
        index_of = candidates.index_of
        while True:
            for place, slot in enumerate(self._left):
                if slot in index_of:
                    del self._left[place]
                    return index_of[slot]
            self._shuffle(index_of)

    def _shuffle(self, slots: Collection[int]) -> None:
        known = set(self._order)
        order = [slot for slot in self._order if slot in slots]
        new = [slot for slot in slots if slot not in known]
        random.shuffle(new)
        for slot in new:
            order.insert(random.randint(0, len(order)), slot)
        for place in range(random.randrange(2), len(order) - 1, 2):
            if random.random() < 0.5:
                order[place], order[place + 1] = order[place + 1], order[place]
        self._order, self._left = order, order.copy()
