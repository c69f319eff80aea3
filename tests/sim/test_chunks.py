"""Prompts that are cut: a step computes `max_prefill_tokens` of them at most, beside a token of each answer. On a clock that jumps."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bench.policies.clock import JumpingLoop
from smg.sim.kvlog import Stored
from smg.sim.model import load_model
from smg.sim.options import SimOptions
from smg.sim.request import Call, Submission
from smg.sim.scheduler import Scheduler
from smg.sim.script import Fault, script_from_options

MODEL = load_model("")
COSTS = {"prefill_base_ms": 1.0, "prefill_token_us": 10.0, "step_base_ms": 2.0, "step_sequence_us": 0.0}


def play(scene: Callable[[Scheduler], Awaitable[None]], **options: Any) -> None:
    """Runs a scene with one scheduler, which holds no block after it."""

    async def run() -> None:
        made = SimOptions(output="ids", **{**COSTS, **options})
        scheduler = Scheduler(made, model=MODEL, script=script_from_options(made, text="", ids=()))
        scheduler.start()
        await scene(scheduler)
        assert (scheduler.pool.used, len(scheduler.calls)) == (0, 0)
        await scheduler.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(run())


def submission(name: str, *, prompt: int, tokens: int, **fields: Any) -> Submission:
    """A request whose prompt nobody else has."""
    ids = [260 + ord(name)] * prompt
    return Submission(request_id=name, prompt_ids=ids, max_tokens=tokens, ignore_eos=True, **fields)


async def times(call: Call) -> list[float]:
    """When each token came, in milliseconds."""
    found = []
    while True:
        output = await call.read()
        found.append(round(asyncio.get_running_loop().time() * 1e3, 6))
        if output.finish is not None:
            return found


def test_a_prompt_is_cut_and_answers_go_on() -> None:
    async def scene(scheduler: Scheduler) -> None:
        first = asyncio.create_task(times(scheduler.submit(submission("a", prompt=100, tokens=7))))
        await asyncio.sleep(0.0035)
        second = scheduler.submit(submission("b", prompt=1000, tokens=2))
        # a: 1 + 1 + 2 ms, then three steps with 400, 400 and 200 tokens of b beside: 1 + 4 + 2, again, 1 + 2 + 2
        assert await times(second) == [23, 25]
        assert await first == [4, 11, 18, 23, 25, 27, 29]
        assert scheduler.counters.prompt_tokens == 1100

    play(scene, max_prefill_tokens=400)


def test_a_step_without_answers_costs_its_prompts() -> None:
    async def scene(scheduler: Scheduler) -> None:
        assert await times(scheduler.submit(submission("a", prompt=1000, tokens=1))) == [5 + 5 + 5]

    play(scene, max_prefill_tokens=400)


def test_the_rest_of_a_step_is_for_the_next_prompt() -> None:
    async def scene(scheduler: Scheduler) -> None:
        first, second = (scheduler.submit(submission(name, prompt=500, tokens=1)) for name in "ab")
        both = await asyncio.gather(times(first), times(second))
        # 400 of a; 100 of a and 300 of b; 200 of b
        assert both == [[5 + 7], [5 + 7 + 5]]

    play(scene, max_prefill_tokens=400)


def test_blocks_are_told_step_by_step() -> None:
    async def scene(scheduler: Scheduler) -> None:
        await times(scheduler.submit(submission("a", prompt=1000, tokens=1)))
        feed = scheduler.log.subscribe(0)
        for count in (25, 25, 12):  # 400 and 400 tokens, and 192 of the last 200 that fill a block
            (event,) = (await anext(feed)).events
            assert isinstance(event, Stored)
            assert len(event.blocks) == count
        await feed.aclose()  # type: ignore[attr-defined]

    play(scene, max_prefill_tokens=400)


def test_what_was_computed_before_an_abort_can_be_used() -> None:
    async def scene(scheduler: Scheduler) -> None:
        call = scheduler.submit(submission("a", prompt=1000, tokens=1))
        await asyncio.sleep(0.007)
        assert scheduler.abort("a")
        assert (await call.read()).finish == "abort"
        again = scheduler.submit(submission("a", prompt=1000, tokens=1))
        assert await times(again) == [5 + 5 + 5]  # the step that went on, and 200 tokens
        assert again.cached_tokens == 800
        assert scheduler.counters.aborted == 1

    play(scene, max_prefill_tokens=400)


def test_a_prompt_that_must_give_its_blocks_back_goes_on_later() -> None:
    """The answer's fifth block is the one that is missing: the prompt beside it, half computed, waits until the answer has ended."""

    async def scene(scheduler: Scheduler) -> None:
        first = asyncio.create_task(times(scheduler.submit(submission("a", prompt=48, tokens=20))))
        second = scheduler.submit(submission("b", prompt=96, tokens=2))
        assert len(await times(second)) == 2
        assert len(await first) == 20
        assert scheduler.counters.preempted == 1
        assert (scheduler.counters.prompt_tokens, scheduler.counters.cached_tokens) == (144, 0)

    play(scene, max_prefill_tokens=4, kv_blocks=10)


@pytest.mark.parametrize(("remote", "first_ms"), [(True, 2), (False, 2 + 1 + 0.8)])
def test_a_prompt_that_came_from_elsewhere_is_computed_once_its_blocks_are_gone(remote: bool, first_ms: float) -> None:
    """When 15 tokens of its answer are made, the other answer takes its blocks; when that has ended, 80 + 15 tokens are computed."""

    async def scene(scheduler: Scheduler) -> None:
        first = asyncio.create_task(times(scheduler.submit(submission("a", prompt=48, tokens=20))))
        await asyncio.sleep(0.001)
        call = scheduler.submit(submission("b", prompt=80, tokens=20))
        call.remote_prompt = remote
        found = await times(call)
        assert found[0] == pytest.approx(3.48 + first_ms)
        assert found[15] == pytest.approx((await first)[-1] + 2 + 1 + 0.95)
        assert scheduler.counters.preempted == 1

    play(scene, kv_blocks=10, prefix_cache=False)


def test_a_call_that_hangs_computes_no_more() -> None:
    async def scene(scheduler: Scheduler) -> None:
        script = scheduler.script
        scheduler.script = msgspec.structs.replace(script, fault=Fault(kind="hang"))
        hanging = scheduler.submit(submission("a", prompt=500, tokens=1, n=2))
        await asyncio.sleep(0.013)
        assert hanging.frozen
        scheduler.script = script
        assert await times(scheduler.submit(submission("b", prompt=100, tokens=2))) == [13 + 4, 13 + 4 + 2]
        assert [sequence.uncomputed for sequence in hanging.sequences] == [0, 200]
        assert scheduler.abort("a")

    play(scene, max_prefill_tokens=400, prefix_cache=False)
