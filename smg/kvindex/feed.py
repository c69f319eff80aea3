"""One engine's KV events on their way into the prefix index: numbered batches come in, confirmed entries go out. No I/O.

Keeps what the engine calls its blocks, so that it can be told which entry a removed block was. A block is under the name of its beginning
only where its parent is known; what cannot be placed is counted and left out, for a wrong place would be worse than none.

An engine whose model mixes kinds of attention has several groups of blocks, of several sizes and under the same names. One of them is
followed, which keeps all of a prompt if there is such a one: what it holds is what can be used again, but for a window's worth that another
group may have given up.
"""

import enum
import time
from array import array
from collections.abc import Iterable, Iterator

from smg.engine import KvBatch, KvCleared, KvRemoved, KvStored
from smg.engine.events import Kept
from smg.kvindex.index import PrefixIndex
from smg.kvindex.ranks import RankSlots

__all__ = ["MOST_RANKS", "Feed", "Outcome"]

HEAVY_BLOCKS = 256
LARGEST_BLOCK = 65536
MOST_RANKS = 256
MOST_COPIES = 8  # as the servicers count them


Place = tuple[int, bytes]


class Outcome(enum.Enum):
    """What became of a batch. AGAIN: batches are missing before it, ask for those after `Feed.last`."""

    TAKEN = 1
    KNOWN = 2
    AGAIN = 3


class Rank:
    """What is known of one data-parallel rank: its cursor, and its blocks by the engine's names for them.

    `older`: those from before events were missed. What they stand for is still true, whether they are held is not certain: they stay
    until the engine tells of them or there is no room.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.last_at_s = 0.0
        self.asked_again = self.resumed = False
        self.blocks: dict[int, Place] = {}
        self.older: dict[int, Place] = {}
        self.copies: dict[int, int] = {}  # of blocks that the engine holds more than once

    def __len__(self) -> int:
        return len(self.blocks) + len(self.older)

    def find(self, name: int) -> Place | None:
        """Gives where a block ends, if it is known."""
        return self.blocks.get(name) or self.older.get(name)

    def pop(self, name: int) -> Place | None:
        """Takes one copy of a block away; gives where it ended if that was the last."""
        copies = self.copies.pop(name, 1)
        if copies > 1:
            if copies > 2:
                self.copies[name] = copies - 1
            return None
        older = self.older.pop(name, None)
        return self.blocks.pop(name, None) or older

    def put(self, name: int, place: Place) -> None:
        """One copy more."""
        self.older.pop(name, None)
        if name in self.blocks:
            self.copies[name] = min(self.copies.get(name, 1) + 1, MOST_COPIES)
        self.blocks[name] = place

    def give_way(self) -> Place | None:
        """Takes away the block that was known for longest of those from before a pause; gives where it ended, None when there is none."""
        return self.older.pop(next(iter(self.older))) if self.older else None

    def clear(self) -> list[Place]:
        """Gives where all blocks ended, and knows none any more."""
        places = [*self.blocks.values(), *self.older.values()]
        self.blocks, self.older, self.copies = {}, {}, {}
        return places


class Feed:
    """`lag_s`: how old the last batch was when it was taken; `passed_over`: blocks of groups that are not followed. A block takes about 150
    bytes here.
    """

    def __init__(self, index: PrefixIndex | RankSlots, *, slot: int, epoch: int = -1, most_blocks: int = 1 << 20) -> None:
        self.lag_s = 0.0
        self.restarts = self.gaps = self.unplaced = self.passed_over = 0
        self._index = index
        self._slot, self._epoch = slot, epoch
        self._most_blocks = most_blocks
        self._group: tuple[int, int, Kept] | None = None  # the one that is followed: its number, size, and what it keeps
        self._rank_count = 1
        self._ranks: dict[int, Rank] = {}

    @property
    def blocks(self) -> int:
        """Blocks that the engine is known to hold."""
        return sum(map(len, list(self._ranks.values())))  # another thread may be taking a batch

    @property
    def last(self) -> int:
        """The number of the last batch that was taken, to ask for those after it; 0 = none, or there are several ranks with numbers."""
        ranks = list(self._ranks.values())
        return ranks[0].last or 0 if len(ranks) == 1 else 0

    def heavy(self, batch: KvBatch) -> bool:
        """True when taking the batch may need over a millisecond, and so a thread."""
        rank = self._ranks.get(batch.rank)
        stored = sum(len(event.blocks) for event in batch.events if isinstance(event, KvStored))
        cleared = any(isinstance(event, KvCleared) for event in batch.events)
        following = rank is None or rank.last is None or batch.sequence == rank.last + 1
        return stored > HEAVY_BLOCKS or cleared or not (following or batch.load_only)

    def take(self, batch: KvBatch) -> Outcome:
        """Takes the next batch. A number that begins again with a later time tells that the engine was started anew."""
        if batch.load_only or batch.rank >= MOST_RANKS:
            return Outcome.KNOWN
        outcome = Outcome.TAKEN if batch.snapshot else self._order(batch)
        if outcome is not Outcome.TAKEN:
            return outcome
        rank = self._ranks.setdefault(batch.rank, Rank())
        rank.asked_again = rank.resumed = False
        rank.last, rank.last_at_s = batch.sequence, batch.at_s
        self.lag_s = max(0.0, time.time() - batch.at_s) if batch.at_s else 0.0
        for event in batch.events:
            if isinstance(event, KvStored):
                self._store(event, batch.rank, rank)
            elif isinstance(event, KvRemoved):
                if self._group is not None and -1 not in (event.group, self._group[0]) and event.group != self._group[0]:
                    continue
                places = [place for place in map(rank.pop, event.names) if place is not None]
                self._remove(places, batch.rank)
            elif isinstance(event, KvCleared):
                self._clear(batch.rank, rank)
        return Outcome.TAKEN

    def _order(self, batch: KvBatch) -> Outcome:
        """Says what a batch is by its number: the next, one that came before, one after a gap, or the first of a new life."""
        rank = self._ranks.get(batch.rank)
        if rank is None or rank.last is None:
            return Outcome.TAKEN
        if batch.sequence <= rank.last:
            if batch.at_s <= rank.last_at_s and batch.at_s:
                return Outcome.KNOWN
            self.restarts += 1
            self.forget(predicted=True)
        elif batch.sequence > rank.last + 1:
            self.gaps += not rank.asked_again
            if not rank.asked_again and not rank.resumed:
                rank.asked_again = True
                return Outcome.AGAIN
            if rank.asked_again and not rank.resumed:  # the engine has them no more: what happened meanwhile is not known
                self._remove(rank.clear(), batch.rank)
        return Outcome.TAKEN

    def lost(self) -> None:
        """The engine does not have the batches after `last`: it was started anew, unless that was asked for a gap's sake."""
        asked_again = any(rank.asked_again for rank in self._ranks.values())
        self.restarts += bool(self._ranks) and not asked_again
        self.forget(predicted=not asked_again)

    def resume(self) -> None:
        """Events are followed again, but those of the pause will not come: what was known may be held still, and children name it."""
        for rank in self._ranks.values():
            rank.resumed = True
            rank.older.update(rank.blocks)
            rank.blocks, rank.copies = {}, {}

    def forget(self, *, predicted: bool = False) -> None:
        """Takes back what the engine has confirmed; the next batch may have any number. Reads the whole table."""
        self._ranks.clear()
        self._group = None
        self._index.forget(self._slot, predicted)

    def _store(self, event: KvStored, number: int, rank: Rank) -> None:
        if not 0 < event.size <= LARGEST_BLOCK:
            self.unplaced += len(event.blocks)
            return
        if not self._follows(event):
            self.passed_over += len(event.blocks)
            return
        if number >= self._rank_count:
            self._rank_count = number + 1
            self._index.set_ranks(self._slot, self._rank_count)
        ends = array("Q")
        for block, place in self._places(event, (0, b"") if event.parent is None else rank.find(event.parent)):
            if len(rank) >= self._most_blocks and rank.find(block) is None:
                if (oldest := rank.give_way()) is None:
                    self.unplaced += 1
                    continue
                self._remove((oldest,), number)
            rank.put(block, place)
            if not place[1]:
                ends.append(place[0])
        self._index.confirm(ends, self._slot, number, self._epoch)

    def _follows(self, event: KvStored) -> bool:
        """True for the group that is followed: the first; another one while none of its blocks is held; and at once one that keeps more, or
        that has larger blocks where no number tells groups apart: a smaller block is one that was not full.
        """
        group, now = (event.group, event.size, event.kept), self._group
        if group == now:
            return True
        if event.kept == "none":
            return False
        if now is not None:
            worth = event.kept == "all", event.size if event.group == now[0] else now[1]
            known = now[2] == "all", now[1]
            if worth <= known and (self.blocks or worth[0] < known[0]):
                return False
        for number, rank in self._ranks.items():
            self._remove(rank.clear(), number)
        self._group = group
        if now is None or event.size != now[1]:
            self._index.set_block_size(self._slot, event.size)
        return True

    def _places(self, event: KvStored, start: Place | None) -> Iterator[tuple[int, Place]]:
        """Gives each block that can be placed: its name, and where it ends."""
        whole = next((number for number, block in enumerate(event.blocks) if not block.ids), len(event.blocks)) if start is not None else 0
        self.unplaced += len(event.blocks) - whole
        if start is None or not whole:
            return
        name, units = start[0], start[1] + b"".join(array("I", block.ids).tobytes() for block in event.blocks[:whole])
        step, end, done = self._index.step(self._slot), len(start[1]) // 4, 0
        names = self._index.names(name, units, step)
        for block in event.blocks[:whole]:
            end += len(block.ids)
            if end // step > len(names):  # further into the event than the index goes
                self.unplaced += 1
                continue
            while done < end // step:
                name, done = names[done], done + 1
            yield block.name, (name, units[4 * step * done : 4 * end])

    def _clear(self, number: int, rank: Rank) -> None:
        """The rank holds nothing: with one rank, nothing that was predicted either, also of blocks that no event has named."""
        places = rank.clear()
        if self._rank_count > 1:
            self._remove(places, number)
        else:
            self._index.forget(self._slot)

    def _remove(self, places: Iterable[Place], number: int) -> None:
        self._index.remove(array("Q", [name for name, rest in places if not rest]), self._slot, number)
