"""One engine's KV events on their way into the prefix index: numbered batches come in, confirmed entries go out. No I/O.

Keeps what the engine calls its blocks, so that it can be told which entry a removed block was. A block is under the name of its beginning
only where its parent is known; what cannot be placed is counted and left out, for a wrong place would be worse than none.
"""

import enum
import time
from array import array
from collections.abc import Iterator

from smg.engine import KvBatch, KvCleared, KvRemoved, KvStored
from smg.kvindex.index import PrefixIndex

__all__ = ["Feed", "Outcome"]

HEAVY_BLOCKS = 256
LARGEST_BLOCK = 65536
MOST_RANKS = 1024


class Outcome(enum.Enum):
    """What became of a batch. AGAIN: batches are missing before it, ask for those after `Feed.last`."""

    TAKEN = 1
    KNOWN = 2
    AGAIN = 3


class Feed:
    """`last` is the number of the last batch that was taken, `lag_s` how old that was then. A block takes about 100 bytes here."""

    def __init__(self, index: PrefixIndex, *, slot: int, most_blocks: int = 1 << 20) -> None:
        self.last = 0
        self.lag_s = 0.0
        self.restarts = self.gaps = self.unplaced = 0
        self._index = index
        self._slot = slot
        self._most_blocks = most_blocks
        self._asked_again = False
        self._last_at_s = 0.0
        self._size = 0
        # by rank: the engine's name of a block -> (name of the beginning that ends with it, tokens of it after the last entry)
        self._blocks: dict[int, dict[int, tuple[int, int]]] = {}

    @property
    def blocks(self) -> int:
        """Blocks that the engine is known to hold."""
        return sum(map(len, self._blocks.values()))

    def heavy(self, batch: KvBatch) -> bool:
        """True when taking the batch may need over a millisecond, and so a thread."""
        stored = sum(len(event.blocks) for event in batch.events if isinstance(event, KvStored))
        return stored > HEAVY_BLOCKS or (self.last > 0 and batch.sequence != self.last + 1)

    def take(self, batch: KvBatch) -> Outcome:
        """Takes the next batch. A number that begins again with a later time tells that the engine was started anew."""
        if self.last and batch.sequence <= self.last:
            if batch.at_s <= self._last_at_s and batch.at_s:
                return Outcome.KNOWN
            self.restarts += 1
            self.forget(predicted=True)
        elif self.last and batch.sequence > self.last + 1:
            self.gaps += not self._asked_again
            if not self._asked_again:
                self._asked_again = True
                return Outcome.AGAIN
            self.forget()  # the engine has them no more: what happened meanwhile is not known
        self._asked_again = False
        self.last, self._last_at_s = batch.sequence, batch.at_s
        self.lag_s = max(0.0, time.time() - batch.at_s) if batch.at_s else 0.0
        for event in batch.events if batch.rank < MOST_RANKS else ():
            if isinstance(event, KvStored):
                self._store(event, batch.rank)
            elif isinstance(event, KvRemoved):
                self._remove(event, batch.rank)
            elif isinstance(event, KvCleared):
                self._clear(batch.rank)
        return Outcome.TAKEN

    def lost(self) -> None:
        """The engine does not have the batches after `last`: it was started anew, unless that was asked for a gap's sake."""
        self.restarts += not self._asked_again
        self.forget(predicted=not self._asked_again)

    def forget(self, *, predicted: bool = False) -> None:
        """Takes back what the engine has confirmed; the next batch may have any number. Reads the whole table."""
        self.last, self._asked_again = 0, False
        self._blocks.clear()
        self._index.forget(self._slot, predicted)

    def _store(self, event: KvStored, rank: int) -> None:
        known = self._blocks.setdefault(rank, {})
        if not 0 < event.size <= LARGEST_BLOCK:
            self.unplaced += len(event.blocks)
            return
        if event.size != self._size:
            self._size = event.size
            self._index.set_block_size(self._slot, event.size)
        start = (0, 0) if event.parent is None else known.get(event.parent)
        names = array("Q")
        for block, place in self._places(event, start):
            if len(known) >= self._most_blocks and block not in known:
                self.unplaced += 1
                continue
            known[block] = place
            if not place[1]:
                names.append(place[0])
        self._index.confirm(names, self._slot, rank)

    def _places(self, event: KvStored, start: tuple[int, int] | None) -> Iterator[tuple[int, tuple[int, int]]]:
        """Gives each block that can be placed: its name, and where it ends."""
        step = self._index.step(self._slot)
        for number, block in enumerate(event.blocks):
            if start is None or not block.ids:
                self.unplaced += len(event.blocks) - number
                return
            start = self._index.advance(start[0], block.ids), (start[1] + len(block.ids)) % step
            yield block.name, start

    def _remove(self, event: KvRemoved, rank: int) -> None:
        known = self._blocks.get(rank, {})
        places = [place for place in (known.pop(name, None) for name in event.names) if place is not None]
        self._index.remove(array("Q", [name for name, rest in places if not rest]), self._slot, rank)

    def _clear(self, rank: int) -> None:
        places = self._blocks.pop(rank, {}).values()
        self._index.remove(array("Q", [name for name, rest in places if not rest]), self._slot, rank)
