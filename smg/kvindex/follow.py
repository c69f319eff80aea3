"""The control process's side of KV events: one task an engine, which subscribes, fills the index through a `Feed`, and subscribes again.

In: the registry's engines. Out: confirmed entries in the prefix index, and gauges of how far behind they are. An engine that has no KV
events keeps its predicted entries.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial

from smg.config import Config
from smg.engine import GrpcEngine
from smg.errors import SmgError, Unimplemented
from smg.kvindex.feed import MOST_RANKS, Feed, Outcome
from smg.kvindex.index import PrefixIndex
from smg.kvindex.ranks import RankSlots
from smg.obs.metrics import Sample
from smg.obs.shm import Shm
from smg.worker import EnginePool, EngineRecord, EngineState, Registry

__all__ = ["Follower", "Followers", "tell_failure"]

log = logging.getLogger(__name__)

LOOK_S = 0.5
# What an engine without a replay stores before it is followed again is never told: the pause must not last.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
# An engine that does nothing has no events: a subscription that stands for this long is taken for a good one.
STANDS_S = 6.0


class Follower:
    """Follows one engine's KV events until cancelled, or until the engine says that it has none.

    `lost` is called when the engine has gone away, whether it had told of anything yet or not: once, until it is there again.
    """

    def __init__(
        self, record: EngineRecord, *, pool: EnginePool, index: PrefixIndex | RankSlots, lost: Callable[[], object] = lambda: None
    ) -> None:
        self.feed = Feed(index, slot=record.slot, epoch=record.epoch)
        self.supported = True
        self._record = record
        self._pool = pool
        self._index = index
        self._lost = lost
        self._pause_s = FIRST_PAUSE_S
        self._roused = asyncio.Event()
        self._told = False
        self._replays = True  # until it refuses a number to go on from, as relays without a history do
        self._torn = False
        self._missed = False
        self._asked_at_s = 0.0
        self._live_at_s = time.monotonic()

    @property
    def live(self) -> bool:
        """True while the events are followed."""
        return self._told or 0 < self._asked_at_s < time.monotonic() - STANDS_S

    @property
    def stale_s(self) -> float:
        """Seconds since the events were last followed, 0 while they are."""
        return 0.0 if self.live else time.monotonic() - self._live_at_s

    async def run(self) -> None:
        """Subscribes again and again: at once after a gap, with growing pauses when the engine cannot be reached."""
        await asyncio.to_thread(self._index.open, self._record.slot)
        await asyncio.to_thread(self._index.forget, self._record.slot, False)  # what an earlier control process was told
        await asyncio.to_thread(self._index.set_ranks, self._record.slot, min(self._record.server.data_parallel_size, MOST_RANKS))
        while self.supported:
            try:
                again = await self._listen()
            except Unimplemented:
                self.supported = False
                log.info("engine has no KV events; its cache is predicted", extra={"engine": self._record.url})
                return
            except SmgError as error:
                log.debug("KV events: %s", error.message, extra={"engine": self._record.url, "detail": error.detail})
                again = await self._broke_off((error.detail or "").partition(":")[0])
            finally:
                self._unlive()
            if not again:
                self._roused.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s):
                        await self._roused.wait()
                self._pause_s = FIRST_PAUSE_S if self._roused.is_set() else min(self._pause_s * 2, LONGEST_PAUSE_S)

    def rouse(self) -> None:
        """Ends a pause: the engine is ready again, and what the index has of it may be of another life."""
        self._missed = False
        self._roused.set()

    async def _broke_off(self, status: str) -> bool:
        """Takes the gRPC status that ended a subscription; True when it should be renewed at once."""
        if status == "DATA_LOSS":
            again = self.feed.last > 0
            await asyncio.to_thread(self.feed.lost)
            return again
        if status == "OUT_OF_RANGE":
            again, self._replays = self._replays and self.feed.last > 0, False
            return again
        if status == "UNAVAILABLE" and (self.live or not self._missed):
            self._missed = True
            self._lost()
        self._torn |= status != "DEADLINE_EXCEEDED"  # which is ours
        return False

    async def _listen(self) -> bool:
        """Takes batches until the subscription ends; True when it should be renewed at once."""
        engine = await self._pool.get(self._record)
        if not isinstance(engine, GrpcEngine) or not engine.features.kv_events:
            raise Unimplemented(f"the {engine.runtime} protocol has no KV events")
        after = self.feed.last if self._replays else 0  # also 0 where each of several ranks has a number
        if not after and self._torn:
            await asyncio.to_thread(self.feed.lost)  # it may be another process by now, and no number would tell
            self._torn = False
        elif not self._replays:
            await asyncio.to_thread(self.feed.resume)
        self._asked_at_s = time.monotonic()
        async with aclosing(engine.kv_events(after)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                self._told, self._torn, self._missed = True, False, False
                self._pause_s = FIRST_PAUSE_S
                heavy = self.feed.heavy(batch)
                outcome = await asyncio.to_thread(self.feed.take, batch) if heavy else self.feed.take(batch)
                if outcome is Outcome.AGAIN:
                    log.info("KV events are missing; asking again", extra={"engine": self._record.url, "after": self.feed.last})
                    return True
        return False

    def _unlive(self) -> None:
        if self.live:
            self._live_at_s = time.monotonic()
        self._told, self._asked_at_s = False, 0.0

    def gauges(self) -> Iterator[Sample]:
        """Gives what the metrics say of this engine's events."""
        feed, labels = self.feed, (self._record.url,)
        yield Sample("smg_kv_events_live", labels, self.live)
        if self.supported:
            yield Sample("smg_kv_events_lag_seconds", labels, feed.lag_s)
            yield Sample("smg_kv_events_stale_seconds", labels, self.stale_s)
            yield Sample("smg_kv_events_gaps_total", labels, feed.gaps)
            yield Sample("smg_kv_events_restarts_total", labels, feed.restarts)
            yield Sample("smg_kv_events_unplaced_total", labels, feed.unplaced)
            yield Sample("smg_kv_events_passed_over_total", labels, feed.passed_over)
            yield Sample("smg_kv_blocks", labels, feed.blocks)


class Followers:
    """A follower for each registered engine that has been described. `run` until cancelled, then `close`.

    `lost` is called with the slot of an engine that has probably gone away.
    """

    def __init__(self, config: Config, *, shm: Shm, registry: Registry, lost: Callable[[int], object] = lambda slot: None) -> None:
        self._registry = registry
        self._lost = lost
        self._index = PrefixIndex(shm)
        self._pool = EnginePool(config)
        self._tasks: dict[tuple[tuple[tuple[int, int], ...], str, str], tuple[Follower, asyncio.Task[None]]] = {}
        self._ready: set[int] = set()
        self._forgetting: set[asyncio.Task[int]] = set()

    async def run(self) -> None:
        """Looks at the registry twice a second, for engines to follow, engines that are back and engines to leave."""
        while True:
            self._update()
            await asyncio.sleep(LOOK_S)

    def _update(self) -> None:
        records = [record for record in self._registry.records() if record.runtime and not record.rank]  # ranks share a stream
        wanted = {(self._places(record), record.runtime, record.server.version): record for record in records}
        held = {record.slot for record in self._registry.records()}
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key)[1].cancel()
            for slot in {slot for slot, _ in key[0]} - held:
                self._forget(slot)
        self._pool.retain(records, held=lambda record: 0)
        before = self._ready
        self._ready = {record.slot for record in records if self._registry.state(record) is EngineState.READY}
        for key, record in wanted.items():
            if key in self._tasks:
                if record.slot in self._ready - before:
                    self._tasks[key][0].rouse()
            elif record.slot in self._ready:
                index = self._index if record.rank is None else RankSlots(self._index, places=key[0])
                follower = Follower(record, pool=self._pool, index=index, lost=partial(self._lost, record.slot))
                task = asyncio.create_task(follower.run())
                task.add_done_callback(tell_failure)
                self._tasks[key] = follower, task

    def _places(self, record: EngineRecord) -> tuple[tuple[int, int], ...]:
        """Slot and epoch of each rank of the engine: one where ranks are not routed to."""
        return tuple((rank.slot, rank.epoch) for rank in self._registry.ranks(record.address))

    def _forget(self, slot: int) -> None:
        """Takes the entries of an engine that is gone out of the index; reads the whole table, so it goes to a thread."""
        task = asyncio.create_task(asyncio.to_thread(self._index.forget, slot))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    def gauges(self) -> Iterator[Sample]:
        """Gives what the metrics say of events and index."""
        for follower, _ in self._tasks.values():
            yield from follower.gauges()
        room, stored, evicted = self._index.counts()
        yield Sample("smg_prefix_index_entries", (), room)
        yield Sample("smg_prefix_index_stored_total", (), stored)
        yield Sample("smg_prefix_index_evicted_total", (), evicted)

    async def close(self) -> None:
        """Ends every subscription and closes its connection."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._forgetting, return_exceptions=True)
        await self._pool.close()


def tell_failure(task: asyncio.Task[None]) -> None:
    """Logs what ended a follower: a fault of ours, by which one engine's cache is only predicted."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("following KV events failed", exc_info=error)
