"""The KV event feed: the block pool's events come in, numbered batches go out to subscribers, old ones again on request."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import TypeAlias

from msgspec import Struct

__all__ = ["Batch", "Cleared", "HistoryLost", "KvEvent", "KvLog", "Removed", "Stored"]


class Stored(Struct, frozen=True, kw_only=True):
    """Consecutive blocks now held: (hash, token ids) each. `parent` is the hash of the block before them, None at a prompt's start."""

    blocks: tuple[tuple[int, tuple[int, ...]], ...]
    parent: int | None


class Removed(Struct, frozen=True, kw_only=True):
    """Blocks that were evicted."""

    hashes: tuple[int, ...]


class Cleared(Struct, frozen=True, kw_only=True):
    """The whole cache was emptied."""


KvEvent: TypeAlias = Stored | Removed | Cleared


class Batch(Struct, frozen=True, kw_only=True):
    """The events of one engine step. Sequence numbers start at 1 and have no holes; `at_s` is Unix time. `heartbeat`: it has none, and the
    number of the one before.
    """

    sequence: int
    at_s: float
    events: tuple[KvEvent, ...] = ()
    heartbeat: bool = False


class HistoryLost(Exception):
    """The batches after the asked number are no longer kept, or were never made: the subscriber must forget and start from 0.

    `replays`: False when no number at all could be gone on from.
    """

    def __init__(self, message: str, *, replays: bool = True) -> None:
        super().__init__(message)
        self.replays = replays


# Of a feed that keeps nothing: what a subscriber may leave unread.
UNREAD = 1000


class KvLog:
    """Keeps the last `keep` batches; with 0 it has nothing but what comes.

    `drop_every` N hides each Nth batch from live subscribers; a replay still has it.
    """

    def __init__(self, *, keep: int = 10000, drop_every: int = 0) -> None:
        self._replays = keep > 0
        self._batches: deque[Batch] = deque(maxlen=keep or UNREAD)
        self._drop_every = drop_every
        self._hidden: set[int] = set()
        self._hide = 0
        self._changed = asyncio.Event()
        self.sequence = 0
        self.subscribers = 0

    def append(self, events: list[KvEvent]) -> None:
        """Makes one batch of `events`; nothing when there are none."""
        if not events:
            return
        self.sequence += 1
        if self._hide or (self._drop_every and self.sequence % self._drop_every == 0):
            self._hide = max(0, self._hide - 1)
            self._hidden.add(self.sequence)
        self._batches.append(Batch(sequence=self.sequence, at_s=time.time(), events=tuple(events)))
        self._hidden = {number for number in self._hidden if number >= self._batches[0].sequence} if self._hidden else self._hidden
        self._changed.set()
        self._changed = asyncio.Event()

    def heartbeat(self, sequence: int) -> Batch:
        """Gives what says, after batch `sequence`, that the engine lives."""
        return Batch(sequence=sequence, at_s=time.time(), heartbeat=True)

    def hide_next(self, count: int = 1) -> None:
        """Lets live subscribers miss the next `count` batches."""
        self._hide += count

    async def subscribe(self, start: int) -> AsyncIterator[Batch]:
        """Gives the batches after number `start` that are kept, then new ones for ever. 0 = all that are kept.

        Raises HistoryLost when batch `start` + 1 is gone, or `start` is in the future as after a restart. Where nothing is kept, 0 = new
        ones only.
        """
        if not self._replays:
            if start:
                raise HistoryLost("nothing is kept to go on from: subscribe with zero", replays=False)
            start = self.sequence
        oldest = self._batches[0].sequence if self._batches else self.sequence + 1
        if start > self.sequence or (start and start + 1 < oldest):
            raise HistoryLost(f"batches after {start} are not kept; the oldest is {oldest}")
        self.subscribers += 1
        try:
            last, replay_end = start, self.sequence
            while True:
                changed = self._changed
                fresh = [batch for batch in self._tail(last) if batch.sequence <= replay_end or batch.sequence not in self._hidden]
                last = self.sequence
                for batch in fresh:
                    yield batch
                if last == self.sequence:
                    await changed.wait()
        finally:
            self.subscribers -= 1

    def _tail(self, last: int) -> list[Batch]:
        """Gives the kept batches after `last`."""
        missing = self.sequence - last
        return list(self._batches)[-missing:] if missing else []
