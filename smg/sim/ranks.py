"""The data-parallel ranks of one engine: each has a scheduler, a KV cache and a KV event feed of its own. To the protocols they are one.

In: `Submission`s, for one rank or for any; out: `Call`s, and the event batches of all ranks in one stream, each with its rank.
"""

import asyncio
from collections.abc import AsyncIterator

from smg.sim.counters import Counters, total
from smg.sim.kvlog import Batch, HistoryLost
from smg.sim.model import SimModel
from smg.sim.options import SimOptions
from smg.sim.request import Call, Refused, Submission
from smg.sim.scheduler import Scheduler
from smg.sim.script import Fault, Script

__all__ = ["Ranks"]


class Ranks:
    """The schedulers in the order of their ranks. `start` and `close` frame their life, within one event loop."""

    def __init__(self, options: SimOptions, *, model: SimModel, script: Script, fault: Fault | None = None) -> None:
        self.model = model
        self.ranks = [Scheduler(options, model=model, script=script, fault=fault) for _ in range(options.dp_size)]
        self._heartbeat_s = options.kv_heartbeat_ms / 1e3

    @property
    def counters(self) -> Counters:
        """What all ranks counted; live where there is only one. What is the whole engine's affair is counted by the first."""
        return self.ranks[0].counters if len(self.ranks) == 1 else total([rank.counters for rank in self.ranks])

    @property
    def calls(self) -> dict[str, Call]:
        """Calls that have not ended."""
        return {name: call for rank in self.ranks for name, call in rank.calls.items()}

    def start(self) -> None:
        """Starts them."""
        for rank in self.ranks:
            rank.start()

    async def close(self) -> None:
        """Stops them."""
        for rank in self.ranks:
            await rank.close()

    def submit(self, submission: Submission) -> Call:
        """Takes a request for the rank that it names, else for the one with the fewest. Raises Refused."""
        number = submission.rank
        if number is None:
            number = min(range(len(self.ranks)), key=lambda number: len(self.ranks[number].calls))
        if not 0 <= number < len(self.ranks):
            raise Refused(f"data_parallel_rank {number} is out of range: there are {len(self.ranks)}")
        if any(submission.request_id in rank.calls for rank in self.ranks):
            raise Refused(f"request id {submission.request_id!r} is in use", status="ALREADY_EXISTS")
        call = self.ranks[number].submit(submission)
        call.rank = number
        return call

    def of(self, call: Call) -> Scheduler:
        """Gives the scheduler of a call."""
        return self.ranks[call.rank]

    def abort(self, request_id: str) -> bool:
        """Obeys an Abort call. False when no rank knows the request, or it has ended."""
        owners = [rank for rank in self.ranks if request_id in rank.calls or rank.pins.owns(request_id)]
        return next(iter(owners), self.ranks[0]).abort(request_id)

    async def flush_cache(self, timeout_s: float) -> bool:
        """Empties every prefix cache; False when one was in use all the time."""
        return all(await asyncio.gather(*(rank.flush_cache(timeout_s) for rank in self.ranks)))

    async def take(self, name: str, *, wait_s: float) -> int | None:
        """Releases a pin as transferred, whichever rank has it; see `PinBoard.take`."""
        tasks = [asyncio.ensure_future(rank.pins.take(name, wait_s=wait_s)) for rank in self.ranks]
        try:
            for task in asyncio.as_completed(tasks):
                if (tokens := await task) is not None:
                    return tokens
        finally:
            for one in tasks:
                one.cancel()
        return None

    async def subscribe(self, start: int) -> AsyncIterator[tuple[int, Batch]]:
        """Gives rank and batch of all feeds, and heartbeats between them. Raises HistoryLost; a number to go on from says nothing where
        each of several ranks has its own.
        """
        if start and len(self.ranks) > 1:
            raise HistoryLost("each rank has numbers of its own: subscribe with zero", replays=False)
        queue: asyncio.Queue[tuple[int, Batch | HistoryLost | None]] = asyncio.Queue(1)
        last = [0] * len(self.ranks)
        tasks = [asyncio.create_task(self._feed(number, start, queue)) for number in range(len(self.ranks))]
        if self._heartbeat_s:
            tasks.append(asyncio.create_task(self._beat(queue)))
        try:
            while True:
                number, batch = await queue.get()
                if isinstance(batch, HistoryLost):
                    raise batch
                if batch is None:  # with the number of what was told before it, which is not that of when it was due
                    batch = self.ranks[number].log.heartbeat(last[number])
                last[number] = batch.sequence
                yield number, batch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, number: int, start: int, queue: "asyncio.Queue[tuple[int, Batch | HistoryLost | None]]") -> None:
        batches = self.ranks[number].log.subscribe(start)
        try:
            async for batch in batches:
                await queue.put((number, batch))
        except HistoryLost as lost:
            await queue.put((number, lost))
        finally:
            await batches.aclose()  # type: ignore[attr-defined]

    async def _beat(self, queue: "asyncio.Queue[tuple[int, Batch | HistoryLost | None]]") -> None:
        """Tells that the engine lives, with the last number of each rank again, as vLLM's servicer does."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            for number in range(len(self.ranks)):
                await queue.put((number, None))
