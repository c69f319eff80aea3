"""`python -m bench.routing [--policies A,B] [--traces shared,chats,mixed] [--load 0.8] [--seconds 40] [--engines 8]`: policies compared.

The route stage as it is (registry, shared memory, leases, policy) before a fleet of simulated engines (`smg.sim`'s scheduler and cache,
with the costs of an 8B model on an H100), on a clock that jumps: no second is waited for, and a run gives the same figures each time.
`cache_aware+events` is cache_aware with each engine's KV events fed into the index, as the control process does it. With `--apart 3`, three
of the engines compute prompts and the others answers; the KV cache goes over at 50 GB/s.
"""

import argparse
import asyncio
import os
import random
import selectors
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from smg.config.tree import Routing as RoutingConfig
from smg.engine import KvBatch, KvBlock, KvCleared, KvRemoved, KvStored
from smg.kvindex import PrefixIndex
from smg.kvindex.feed import Feed
from smg.obs.shm import FIRST_WORKER_ROW, Shm, make_block
from smg.pipeline.route import Router
from smg.sim.kvlog import Batch, Removed, Stored
from smg.sim.model import SimModel, load_model
from smg.sim.options import SimOptions
from smg.sim.request import Call, Submission, Transfer
from smg.sim.scheduler import Scheduler
from smg.sim.script import script_from_options
from smg.types.job import Routing
from smg.worker import EngineSpec, EngineState, Lease, Registry, Role, WorkerView

MODEL = "sim"
TOKEN_US = 33.0 + 77.0  # what a prompt token costs, and an output token in a full batch, of SimOptions' defaults
TRANSFER_S = 131072 / 50e9  # a prompt token's KV cache, of that model, on its way to another engine
EVENTS = "+events"


class JumpingClock(selectors.DefaultSelector):
    """A selector that does not wait: the time that it should have waited has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen")
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on that clock."""

    def __init__(self) -> None:
        self._clock = JumpingClock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class Request(Struct, frozen=True):
    """One request of a trace. `then` are those that follow it in its conversation, each `think_s` after the one before has ended."""

    at_s: float
    ids: list[int]
    output: int
    think_s: float = 0.0
    then: tuple["Request", ...] = ()


class Result(Struct):
    """What a run gave."""

    ttft: list[float] = []
    itl: list[float] = []
    prompt: int = 0
    cached: int = 0
    imbalance: float = 0.0


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(260, 1000) for _ in range(count)]


def zipf(rng: random.Random, count: int) -> Callable[[], int]:
    weights = [1 / (rank + 1) for rank in range(count)]
    return lambda: rng.choices(range(count), weights)[0]


def arrivals(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def shared(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """System prompts of 500-2500 tokens, 50 for each engine, by Zipf's law; questions of 20-200 tokens, answers of 20-100."""
    prompts = [words(rng, rng.randrange(500, 2500)) for _ in range(50 * engines)]
    pick = zipf(rng, len(prompts))
    rate = engines * load / ((4000 + 1610 * 33 + 60 * 77) / 1e6)
    return [
        Request(at, prompts[pick()] + words(rng, rng.randrange(20, 200)), rng.randrange(20, 100)) for at in arrivals(rng, rate, seconds)
    ]


def chats(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """Conversations of 2-8 turns: a common system prompt of 300 tokens, then 50-600 more each turn; 2-6 s of thought between."""
    system = words(rng, 300)
    rate = engines * load / ((4000 + 5 * (1900 * 33 + 60 * 77)) / 1e6)
    trace = []
    for at in arrivals(rng, rate, seconds):
        ids, turns = system + words(rng, 100), []
        for _ in range(rng.randrange(2, 9)):
            ids = ids + words(rng, rng.randrange(50, 600))
            turns.append(Request(0.0, ids, rng.randrange(20, 100), rng.uniform(2, 6)))
        trace.append(msgspec.structs.replace(turns[0], at_s=at, then=tuple(turns[1:])))
    return trace


def mixed(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """Nothing shared: lengths from 20 to 8000 tokens, log-normal."""
    rate = engines * load / ((4000 + 1150 * 33 + 60 * 77) / 1e6)
    lengths = (min(8000, max(20, int(rng.lognormvariate(6.5, 1.0)))) for _ in iter(int, 1))
    return [Request(at, words(rng, next(lengths)), rng.randrange(20, 100)) for at in arrivals(rng, rate, seconds)]


TRACES = {"shared": shared, "chats": chats, "mixed": mixed}


class Fleet:
    """Engines, and a gateway's route stage before them."""

    def __init__(
        self, count: int, *, config: RoutingConfig, model: SimModel, options: SimOptions, events: bool, folder: Path, apart: int
    ) -> None:
        self.block = make_block(rows=FIRST_WORKER_ROW + 1, prefix_blocks=config.max_tree_size // 16, secret=bytes(range(16)))
        shm = Shm(self.block.memory)
        registry = Registry(shm, folder=folder)
        self.engines: dict[str, Scheduler] = {}
        self._feeds: list[tuple[Scheduler, Feed]] = []
        self.apart = apart > 0
        roles: list[Role] = ["prefill" if number < apart else "decode" if apart else "regular" for number in range(count)]
        for record in registry.add(EngineSpec(url=f"grpc://engine-{number}:1", role=role) for number, role in enumerate(roles)):
            registry.describe(msgspec.structs.replace(record, model=MODEL))
            registry.set_state(record.url, EngineState.READY)
            script = msgspec.structs.replace(script_from_options(options, text="", ids=()), eos=False)
            self.engines[record.url] = Scheduler(options, model=model, script=script)
            if events:
                self._feeds.append((self.engines[record.url], Feed(PrefixIndex(shm), slot=record.slot)))
        self.router = Router(WorkerView(shm, row=FIRST_WORKER_ROW, folder=folder), config=config)
        self._tasks = [asyncio.create_task(self._follow(engine, feed)) for engine, feed in self._feeds]
        for engine in self.engines.values():
            engine.start()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines.values():
            await engine.close()
        os.close(self.block.fd)

    async def submit(self, submission: Submission, *, name: str) -> tuple[Call, Lease]:
        """Has the prompt computed elsewhere first, where prefill and decode are apart."""
        ids, routing = submission.prompt_ids, Routing(key=name)
        if not self.apart:
            record, lease = self.router.route(MODEL, prompt_ids=ids, routing=routing, avoid=frozenset())
            return self.engines[record.url].submit(submission), lease
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
        call.cached_tokens = computed.cached_tokens
        return call, lease

    @staticmethod
    async def _follow(engine: Scheduler, feed: Feed) -> None:
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


async def ask(fleet: Fleet, request: Request, *, name: str, result: Result) -> None:
    """Routes a request and reads its answer, then those that follow it."""
    loop = asyncio.get_running_loop()
    for number, turn in enumerate((request, *request.then)):
        await asyncio.sleep(turn.think_s if number else 0)
        begun = loop.time()
        submission = Submission(request_id=f"{name}-{number}", prompt_ids=turn.ids, max_tokens=turn.output, ignore_eos=True)
        call, lease = await fleet.submit(submission, name=name)
        output = await call.read()
        lease.answered()
        first = loop.time()
        while output.finish is None:
            output = await call.read()
        lease.release()
        result.ttft.append(first - begun)
        result.itl.append((loop.time() - first) / max(1, turn.output - 1))
        result.prompt += len(turn.ids)
        result.cached += call.cached_tokens


async def run(
    policy: str, trace: list[Request], *, engines: int, apart: int, settings: dict[str, Any], model: SimModel, options: SimOptions
) -> Result:
    """Runs a trace; the first quarter of it warms the caches and is not counted."""
    random.seed(1)
    name, events = policy.removesuffix(EVENTS), policy.endswith(EVENTS)
    config = msgspec.structs.replace(RoutingConfig(), policy=name, **settings)
    loop, warm, result, tasks = asyncio.get_running_loop(), Result(), Result(), []
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(engines, config=config, model=model, options=options, events=events, folder=Path(folder), apart=apart)
        warm_until = trace[len(trace) // 4].at_s
        for number, request in enumerate(trace):
            await asyncio.sleep(max(0.0, request.at_s - loop.time()))
            into = result if request.at_s > warm_until else warm
            tasks.append(asyncio.create_task(ask(fleet, request, name=f"r{number}", result=into)))
        await asyncio.gather(*tasks)
        sums = [engine.counters.prompt_tokens - engine.counters.cached_tokens for engine in fleet.engines.values()]
        result.imbalance = max(sums) * len(sums) / sum(sums)
        await fleet.close()
    return result


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default=f"round_robin,least_load,power_of_two,prefix_hash,cache_aware,cache_aware{EVENTS}")
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--load", type=float, default=0.8, help="of what the engines could do if nothing were cached")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--apart", type=int, default=0, metavar="N", help="of the engines, those that compute prompts only; 0 = all do all")
    parser.add_argument("--blocks", type=int, default=8192, help="of 16 tokens, in each engine's cache")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="a routing setting")
    options = parser.parse_args()
    settings = {key: int(value) for key, _, value in (pair.partition("=") for pair in options.set)}
    model, engine = load_model("", served_name="", context_length=0), SimOptions(kv_blocks=options.blocks)
    print(f"{'trace':8} {'policy':20} {'requests':>8} {'TTFT mean':>10} {'p50':>8} {'p99':>9} {'ITL':>7} {'cached':>7} {'imbalance':>9}")
    for trace_name in options.traces.split(","):
        trace = TRACES[trace_name](random.Random(options.seed), engines=options.engines, load=options.load, seconds=options.seconds)
        for policy in options.policies.split(","):
            with asyncio.Runner(loop_factory=JumpingLoop) as runner:
                result = runner.run(
                    run(policy, trace, engines=options.engines, apart=options.apart, settings=settings, model=model, options=engine)
                )
            mean = sum(result.ttft) / len(result.ttft)
            times = [mean, percentile(result.ttft, 0.5), percentile(result.ttft, 0.99), sum(result.itl) / len(result.itl)]
            shown = "{:7.1f} ms {:6.1f} {:7.1f} {:8.2f}".format(*(1000 * value for value in times))
            print(
                f"{trace_name:8} {policy:20} {len(result.ttft):8} {shown} {result.cached / result.prompt:7.1%} {result.imbalance:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
