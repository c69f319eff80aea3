"""Simulated engines in this process, and before them a gateway's route stage as it is: registry, shared memory, leases, policy.

`replay` submits requests. With `events` each engine's KV events go into the index, as the control process has them go. With `apart`, that
many of the engines, which may have options of their own, compute prompts and the others answers; a prompt's KV cache goes over at 50 GB/s.
"""

import asyncio
import os
from pathlib import Path
from types import TracebackType

import msgspec

from smg.config.tree import Routing as RoutingConfig
from smg.engine import KvBatch, KvBlock, KvCleared, KvRemoved, KvStored
from smg.kvindex import PrefixIndex
from smg.kvindex.feed import Feed
from smg.obs.shm import FIRST_WORKER_ROW, Shm, make_block
from smg.pipeline.route import Router
from smg.sim.kvlog import Batch, Removed, Stored
from smg.sim.model import SimModel
from smg.sim.options import SimOptions
from smg.sim.request import Call, Submission, Transfer
from smg.sim.scheduler import Scheduler
from smg.sim.script import script_from_options
from smg.types.job import Routing
from smg.worker import EngineSpec, EngineState, Lease, Registry, Role, WorkerView

__all__ = ["Fleet"]

MODEL = "sim"
TRANSFER_S = 131072 / 50e9  # a prompt token's KV cache, of an 8B model, on its way to another engine


class Fleet:
    """A context manager; `folder` is for the registry's snapshot."""

    def __init__(
        self, count: int, *, config: RoutingConfig, model: SimModel, options: SimOptions, events: bool, folder: Path, apart: int,
        options_apart: SimOptions,
    ) -> None:  # fmt: skip
        self._block = make_block(rows=FIRST_WORKER_ROW + 1, prefix_blocks=config.max_tree_size // 16, secret=bytes(range(16)))
        shm = Shm(self._block.memory)
        registry = Registry(shm, folder=folder)
        self.engines: dict[str, Scheduler] = {}
        self._apart = apart > 0
        self._feeds: list[tuple[Scheduler, Feed]] = []
        self._tasks: list[asyncio.Task[None]] = []
        roles: list[Role] = ["prefill" if number < apart else "decode" if apart else "regular" for number in range(count)]
        for record in registry.add(EngineSpec(url=f"grpc://engine-{number}:1", role=role) for number, role in enumerate(roles)):
            registry.describe(msgspec.structs.replace(record, model=MODEL))
            registry.set_state(record.url, EngineState.READY)
            own = options_apart if record.role == "prefill" else options
            script = msgspec.structs.replace(script_from_options(own, text="", ids=()), eos=False)
            self.engines[record.url] = Scheduler(own, model=model, script=script)
            if events:
                self._feeds.append((self.engines[record.url], Feed(PrefixIndex(shm), slot=record.slot)))
        self.router = Router(WorkerView(shm, row=FIRST_WORKER_ROW, folder=folder), config=config)

    async def __aenter__(self) -> "Fleet":
        self._tasks = [asyncio.create_task(follow(engine, feed)) for engine, feed in self._feeds]
        for engine in self.engines.values():
            engine.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines.values():
            await engine.close()
        os.close(self._block.fd)

    @property
    def computed(self) -> list[int]:
        """Prompt tokens that each engine had to compute until now."""
        return [engine.counters.prompt_tokens - engine.counters.cached_tokens for engine in self.engines.values()]

    async def submit(self, submission: Submission) -> tuple[Call, Lease, Call]:
        """Routes a request and hands it to its engine; has the prompt computed elsewhere first, where prefill and decode are apart.

        Gives the call that answers, the lease there, and the call that computes the prompt.
        """
        ids, routing = submission.prompt_ids, Routing(key=submission.request_id.partition("-")[0])
        if not self._apart:
            record, lease = self.router.route(MODEL, prompt_ids=ids, routing=routing, avoid=frozenset())
            call = self.engines[record.url].submit(submission)
            return call, lease, call
        prefill, part = self.router.route(MODEL, prompt_ids=ids, routing=routing, avoid=frozenset(), role="prefill")
        computed = self.engines[prefill.url].submit(msgspec.structs.replace(submission, max_tokens=1))
        while (await computed.read()).finish is None:
            pass
        part.release()
        await asyncio.sleep(len(ids) * TRANSFER_S)
        record, lease = self.router.route(MODEL, prompt_ids=ids, routing=routing, avoid=frozenset(), role="decode")
        engine = self.engines[record.url]
        call = engine.submit(msgspec.structs.replace(submission, transfer=Transfer(host="", port=0, name="", required=False)))
        engine.enqueue(call, remote_prompt=True)
        return call, lease, computed


async def follow(engine: Scheduler, feed: Feed) -> None:
    """Feeds an engine's KV events to the index until cancelled."""
    async for batch in engine.log.subscribe(0):
        feed.take(neutral(batch))


def neutral(batch: Batch) -> KvBatch:
    """Gives a simulator's batch as `smg.engine` would."""
    events: list[KvStored | KvRemoved | KvCleared] = []
    for event in batch.events:
        if isinstance(event, Stored):
            events.append(KvStored(tuple(KvBlock(name, ids) for name, ids in event.blocks), event.parent, 16))
        else:
            events.append(KvRemoved(event.hashes) if isinstance(event, Removed) else KvCleared())
    return KvBatch(sequence=batch.sequence, events=tuple(events), at_s=float(batch.sequence))
