"""One run on the clock that jumps: a trace and a policy's name come in, what was measured goes out. `run` has several run at once."""

import asyncio
import random
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.policies.clock import JumpingLoop
from bench.policies.figures import Figures, Sample
from bench.policies.fleet import Fleet
from bench.policies.traces import TRACES, WARM, Request
from smg.config.tree import Routing as RoutingConfig
from smg.sim.model import load_model
from smg.sim.options import SimOptions
from smg.sim.request import Submission

__all__ = ["EVENTS", "Run", "measure"]

EVENTS = "+events"  # after a policy's name: KV events are fed into the index


class Run(Struct, frozen=True, kw_only=True):
    """What is to be run: `policy` among `engines`, of which `apart` compute prompts only (0 = all do all).

    `settings` are the gateway's, `engine` those of all engines, `engine_apart` those that differ in the ones that compute prompts only.
    """

    trace: str
    policy: str
    engines: int
    load: float
    seconds: float
    seed: int = 1
    apart: int = 0
    settings: dict[str, int | float] = {}
    engine: dict[str, int | float] = {}
    engine_apart: dict[str, int | float] = {}


def measure(run: Run) -> Figures:
    """Runs it. Takes a second for about 500 requests."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(replay(run)).figures()


async def replay(run: Run) -> Sample:
    """Sends the trace's requests when they are due and waits for all answers."""
    random.seed(run.seed)
    trace = TRACES[run.trace](random.Random(run.seed), engines=run.engines, load=run.load, seconds=run.seconds)
    config = msgspec.structs.replace(RoutingConfig(), policy=run.policy.removesuffix(EVENTS), **run.settings)
    options = msgspec.convert({"output": "ids", **run.engine}, SimOptions)
    options_apart = msgspec.convert({"output": "ids", **run.engine, **run.engine_apart}, SimOptions)
    loop, warm, sample, tasks = asyncio.get_running_loop(), Sample(), Sample(), []
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(
            run.engines, config=config, model=load_model(""), options=options, events=run.policy.endswith(EVENTS), folder=Path(folder),
            apart=run.apart, options_apart=options_apart,
        )  # fmt: skip
        async with made as fleet:
            for number, request in enumerate(trace):
                await asyncio.sleep(max(0.0, request.at_s - loop.time()))
                into = sample if request.at_s > run.seconds * WARM else warm
                tasks.append(asyncio.create_task(ask(fleet, request, name=f"r{number}", into=into)))
            await asyncio.gather(*tasks)
            sample.computed = fleet.computed
    return sample


async def ask(fleet: Fleet, request: Request, *, name: str, into: Sample) -> None:
    """Has a request answered, then those that follow it."""
    loop = asyncio.get_running_loop()
    for number, turn in enumerate((request, *request.then)):
        await asyncio.sleep(turn.think_s if number else 0)
        begun = loop.time()
        submission = Submission(request_id=f"{name}-{number}", prompt_ids=turn.ids, max_tokens=turn.output, ignore_eos=True)
        call, lease, computed = await fleet.submit(submission)
        output = await call.read()
        lease.answered()
        times = [loop.time()]
        while output.finish is None:
            output = await call.read()
            times.append(loop.time())
        lease.release()
        into.add(begun, times, tokens=turn.output)
        into.prompt += len(turn.ids)
        into.cached += computed.cached_tokens
