"""The prefix index as the feed of an engine sees it whose data-parallel ranks are routed to one by one: each rank has a slot of its own.

Made by `smg.kvindex.follow`. What a feed says of rank r of the engine's slot goes to the r-th slot, where it is the only rank.
"""

from array import array
from collections.abc import Sequence

from smg.kvindex.index import PrefixIndex

__all__ = ["RankSlots"]


class RankSlots:
    """`places`: slot and epoch of each rank, in their order; what is said of further ranks is dropped.

    The slot that a call names is the engine's first, and so is its epoch: both stand for all ranks.
    """

    def __init__(self, index: PrefixIndex, *, places: Sequence[tuple[int, int]]) -> None:
        self._index = index
        self._places = tuple(places)
        self._slots = tuple(slot for slot, _ in places)

    def open(self, slot: int) -> None:
        """Begins the lives of all of them."""
        for one in self._slots:
            self._index.open(one)

    def names(self, start: int, ids: Sequence[int] | bytes, step: int) -> "array[int]":
        """As the index does."""
        return self._index.names(start, ids, step)

    def confirm(self, names: "array[int]", slot: int, rank: int = 0, epoch: int = -1) -> bool:
        """Takes the engine's word for one rank."""
        if rank >= len(self._places):
            return False
        place, life = self._places[rank]
        return self._index.confirm(names, place, 0, life)

    def remove(self, names: "array[int]", slot: int, rank: int = 0) -> None:
        """Takes back what a rank holds no more."""
        if rank < len(self._slots):
            self._index.remove(names, self._slots[rank])

    def forget(self, slot: int, predicted: bool = True, confirmed: bool = True) -> int:
        """Forgets all ranks; gives the number of entries that were taken away."""
        return sum(self._index.forget(one, predicted, confirmed) for one in self._slots)

    def step(self, slot: int) -> int:
        """Gives the tokens of an entry, the same for all ranks."""
        return self._index.step(self._slots[0])

    def set_block_size(self, slot: int, tokens: int) -> None:
        """Takes the engine's block size."""
        for one in self._slots:
            self._index.set_block_size(one, tokens)

    def set_ranks(self, slot: int, ranks: int) -> None:
        """Does nothing: each slot is one rank."""
