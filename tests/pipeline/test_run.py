"""The pipeline against simulated engines of every protocol: what comes out, what the engine saw, and that every count returns to 0."""

import asyncio
import time
from contextlib import aclosing

import pytest

from smg.config import Config
from smg.config.tree import Resilience
from smg.errors import (
    ContextExceeded,
    EngineError,
    EngineProtocol,
    EngineTimeout,
    EngineUnavailable,
    InvalidValue,
    ModelNotFound,
    UnsupportedParameter,
)
from smg.kvindex import PrefixIndex
from smg.types.event import Content, Started
from smg.types.job import ChatInput, Constraint, Job, Logprobs, Sampling, Stops, TextInput, TokenInput
from smg.worker import EngineState
from tests.engine.drive import until
from tests.pipeline.fleet import PROTOCOLS, Fleet, chat, collect, finish_of, fleet, text_of, usage_of

# With log probabilities, the answer is read by the stream machine in Python; without, by the native one.
WAYS = pytest.mark.parametrize("logprobs", [Logprobs(), Logprobs(output=0)], ids=["native", "python"])


async def drain(fleet: Fleet, into: list[object], job: Job) -> None:
    """Runs a job, keeping what came before an error."""
    async for events in fleet.pipeline.run(job):
        into += events


def settled(fleet: Fleet) -> bool:
    """True when no engine works and none is counted as working."""
    return fleet.load == 0 and all(
        not sim.counters.running and not sim.counters.waiting and not sim.counters.blocks_used for sim in fleet.sims
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_with_text_finish_and_usage(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol) as engines:
            events = await collect(engines, chat("hello there"))
            assert isinstance(events[0], Started)
            assert text_of(events) == "hello there"
            assert finish_of(events).reason == "stop"
            usage = usage_of(events)
            assert usage.prompt_tokens == len(events[0].prompt_ids)
            assert usage.completion_tokens == engines.sims[0].counters.tokens
            assert settled(engines)

    asyncio.run(run())


@pytest.mark.parametrize(("protocol", "expected"), [("vllm", 1), ("sglang", 1), ("tokenspeed", 1), ("mlx", None)])
def test_the_rank_that_holds_the_prompt_is_asked_for_it(protocol: str, expected: int | None) -> None:
    async def run() -> None:
        async with fleet(protocol, dp_size=2) as engines:
            index, asked = PrefixIndex(engines.view.shm), []
            real = engines.pipeline._asked
            engines.pipeline._asked = lambda *given: asked.append(real(*given)) or asked[-1]  # type: ignore[method-assign, func-returns-value]
            index.set_ranks(0, 2)
            started = (await collect(engines, chat("hello there " * 20)))[0]
            assert isinstance(started, Started)
            index.remove(index.names(0, started.prompt_ids, 16), 0, 65535)  # what was predicted, of which the rank is not known
            index.confirm(index.names(0, started.prompt_ids, 16), 0, 1)
            await collect(engines, chat("hello there " * 20))
            assert [each.request.data_parallel_rank for each in asked] == [None, expected]

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_repeated_prompt_shows_cached_tokens(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol, block_size=4) as engines:
            await collect(engines, chat("the same words again and again and again"))
            usage = usage_of(await collect(engines, chat("the same words again and again and again")))
            if protocol == "mlx":  # whose protocol has the field, and whose server never fills it
                assert usage.cached_tokens == 0
            else:
                assert usage.cached_tokens == engines.sims[0].counters.cached_tokens > 0

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm", "tokenspeed"])
def test_several_choices_each_have_their_end(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol) as engines:
            events = await collect(engines, chat("hello there", n=3))
            assert [text_of(events, choice) for choice in range(3)] == ["hello there", "(1) hello there", "(2) hello there"]
            assert {finish_of(events, choice).reason for choice in range(3)} == {"stop"}
            assert usage_of(events).completion_tokens == engines.sims[0].counters.tokens

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_length_ends_at_max_tokens(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol) as engines:
            events = await collect(engines, chat("hello there, general", max_tokens=2))
            assert finish_of(events).reason == "length"
            assert usage_of(events).completion_tokens == 2

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("include", [False, True])
def test_stop_string_ends_the_answer_and_the_engines_work(protocol: str, include: bool) -> None:
    async def run() -> None:
        async with fleet(protocol, itl_ms=2) as engines:
            stops = Stops(strings=("ee fo",), include_in_output=include)
            job = chat("one two three four" + " and more" * 200, stops=stops, max_tokens=1000)
            events = await collect(engines, job)
            assert text_of(events) == ("one two three fo" if include else "one two thr")
            assert (finish_of(events).reason, finish_of(events).matched_stop) == ("stop", "ee fo")
            await until(lambda: settled(engines))
            counters = engines.sims[0].counters
            assert counters.aborted == 1
            assert usage_of(events).completion_tokens <= counters.tokens < 200

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stop_token_is_hidden_and_reported(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol) as engines:
            tokenizer = (await engines.models.get("sim-model")).tokenizer
            ids = tokenizer.encode("one two three")
            events = await collect(engines, chat("one two three", stops=Stops(token_ids=(ids[-1],))))
            assert text_of(events) == tokenizer.decode(ids[: ids.index(ids[-1])])
            assert finish_of(events).matched_stop == ids[-1]

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_min_tokens_and_ignore_eos(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol) as engines:
            events = await collect(engines, chat("hi", sampling=Sampling(max_tokens=12, ignore_eos=True)))
            assert (finish_of(events).reason, usage_of(events).completion_tokens) == ("length", 12)
            if protocol == "mlx":
                return
            events = await collect(
                engines, chat("a b c d e f", stops=Stops(strings=("b",)), sampling=Sampling(max_tokens=40, min_tokens=8))
            )
            assert "b c d" in text_of(events)

    asyncio.run(run())


@WAYS
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("after", [0, 3])
def test_leaving_aborts_the_engine_within_100_ms(protocol: str, after: int, logprobs: Logprobs) -> None:
    async def run() -> None:
        async with fleet(protocol, itl_ms=5, ttft_ms=0 if after else 5000) as engines:
            job = chat("word " * 200, max_tokens=400, logprobs=logprobs)
            async with aclosing(engines.pipeline.run(job)) as batches:
                seen = 0
                async for _ in batches:
                    if seen == after:
                        break
                    seen += 1
                if not after:
                    waiting = asyncio.ensure_future(anext(batches))
                    await until(lambda: engines.sims[0].counters.started == 1)
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
            assert await until(lambda: engines.sims[0].counters.aborted == 1) < 0.1
            await until(lambda: settled(engines))

    asyncio.run(run())


def test_a_dead_engine_is_passed_over_before_anything_was_sent() -> None:
    async def run() -> None:
        async with fleet("vllm", "sglang") as engines:
            engines.sims[0].kill()
            for _ in range(6):
                events = await collect(engines, chat("hello there"))
                assert text_of(events) == "hello there"
                assert sum(isinstance(event, Started) for event in events) == 1
            assert engines.load == 0

    asyncio.run(run())


def test_no_engine_left_is_unavailable() -> None:
    async def run() -> None:
        async with fleet("vllm", "mlx") as engines:
            for sim in engines.sims:
                sim.kill()
            start = time.monotonic()
            with pytest.raises(EngineUnavailable):
                await collect(engines, chat("hello there"))
            assert time.monotonic() - start < 15  # the deadline is 30 s
            assert engines.load == 0

    asyncio.run(run())


def test_the_one_engine_that_seems_ready_is_not_tried_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The health check has not noticed yet that the one is dead, and knows that the other is not ready."""

    async def run() -> list[int]:
        quick = Config(resilience=Resilience(retry_max_retries=3, retry_initial_backoff_ms=1))
        async with fleet("vllm", "sglang", config=quick) as engines:
            tried: list[int] = []
            monkeypatch.setattr(engines.view, "suspect", tried.append)
            engines.view.shm.set_engine_state(1, EngineState.NOT_READY)
            engines.sims[0].kill()
            with pytest.raises(EngineUnavailable):
                await asyncio.wait_for(collect(engines, chat("hello there")), 5)
            assert engines.load == 0
            return tried

    assert asyncio.run(run()) == [0, 0, 0]


def test_a_request_that_is_refused_for_its_tools_is_not_counted_as_routed() -> None:
    tools = tuple(
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "$defs": {"x": {"type": kind}}}}}
        for name, kind in (("a", "string"), ("b", "number"))
    )

    async def run() -> list[bytes]:
        async with fleet("vllm") as engines:
            source = ChatInput(messages=({"role": "user", "content": "hello"},), tools=tools, tool_choice="required")
            with pytest.raises(InvalidValue):
                await collect(engines, chat(input=source))
            return [key for key, values in engines.view.shm.totals() if b"smg_router_requests" in key and any(values)]

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("way", ["run", "whole"])
def test_a_fault_of_ours_is_counted_as_one(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async def run() -> list[bytes]:
        async with fleet("vllm") as engines:
            monkeypatch.setattr("smg.pipeline.run.engine_request", broken)
            with pytest.raises(ZeroDivisionError):
                await (collect(engines, chat()) if way == "run" else engines.pipeline.whole(chat(), take=broken))
            assert engines.load == 0
            return [key for key, values in engines.view.shm.totals() if b"smg_router_request_errors" in key and values == [1]]

    assert len(asyncio.run(run())) == 1


@WAYS
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("fault", "error"), [("rst@3", EngineError), ("die@3", EngineUnavailable), ("end@3", EngineProtocol)])
def test_a_fault_in_mid_stream_is_an_error_after_the_text_so_far(
    protocol: str, fault: str, error: type[EngineError], logprobs: Logprobs
) -> None:
    async def run() -> None:
        async with fleet(protocol, fault=fault, itl_ms=5) as engines:
            seen: list[object] = []
            with pytest.raises(error):
                await drain(engines, seen, chat("one two three four five six", logprobs=logprobs))
            assert sum(isinstance(event, Content) for event in seen) >= 1
            assert engines.load == 0

    asyncio.run(run())


@WAYS
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_engine_that_hangs_ends_at_the_deadline(protocol: str, logprobs: Logprobs) -> None:
    async def run() -> None:
        async with fleet(protocol, fault="hang@2") as engines:
            with pytest.raises(EngineTimeout):
                await collect(engines, chat("one two three", deadline_s=time.monotonic() + 0.3, logprobs=logprobs))
            await until(lambda: settled(engines))

    asyncio.run(run())


@pytest.mark.parametrize("interval", [1, 3, 50])
def test_the_answer_does_not_depend_on_how_the_engine_cuts_it(interval: int) -> None:
    async def run() -> None:
        async with fleet("vllm", stream_interval=interval) as engines:
            events = await collect(engines, chat("häßlich 北京 👍🏽 naïve", logprobs=Logprobs(output=2)))
            assert text_of(events) == "häßlich 北京 👍🏽 naïve"
            entries = [entry for event in events if isinstance(event, Content) for entry in event.logprobs]
            assert b"".join(entry.token for entry in entries).decode() == text_of(events)
            assert all(len(entry.top) == 2 for entry in entries)
            assert usage_of(events).completion_tokens == len(entries) + 1  # EOS is counted and not shown

    asyncio.run(run())


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with fleet("vllm") as engines:
            model = await engines.models.get("sim-model")

            def never(*args: object, **kwargs: object) -> list[int]:
                raise AssertionError("tokenized")

            monkeypatch.setattr(type(model.tokenizer), "encode", never)
            with pytest.raises(ContextExceeded) as caught:
                await collect(engines, chat("", input=ChatInput(messages=({"role": "user", "content": "x" * 10_000_000},))))
            assert caught.value.param == "messages"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "other"}, ModelNotFound, "model"),
        ({"input": TextInput(text="word " * 3000)}, ContextExceeded, "prompt"),
        ({"input": TextInput(text="")}, InvalidValue, "prompt"),
        ({"input": TokenInput(ids=(1, 2, 10**6))}, InvalidValue, "prompt[2]"),
        ({"sampling": Sampling(max_tokens=5000)}, ContextExceeded, "max_tokens"),
        ({"constraint": Constraint(kind="json_schema", value="{}")}, UnsupportedParameter, "response_format"),
        ({"sampling": Sampling(n=2)}, UnsupportedParameter, "n"),
    ],
)
def test_refusals_name_the_parameter(fields: dict[str, object], error: type[Exception], param: str) -> None:
    async def run() -> None:
        async with fleet("mlx") as engines:
            with pytest.raises(error) as caught:
                await collect(engines, chat("hello", **fields))
            assert caught.value.param == param
            assert engines.load == 0
            assert engines.sims[0].counters.started == 0

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prompts_of_text_and_of_ids_give_the_same(protocol: str) -> None:
    async def run() -> None:
        async with fleet(protocol, output="text", text="fine") as engines:
            tokenizer = (await engines.models.get("sim-model")).tokenizer
            ids = tuple(tokenizer.encode("some prompt", add_special_tokens=True))
            answers = [await collect(engines, chat(input=source)) for source in (TextInput(text="some prompt"), TokenInput(ids=ids))]
            assert [text_of(events) for events in answers] == ["fine", "fine"]
            assert usage_of(answers[0]).prompt_tokens == usage_of(answers[1]).prompt_tokens == len(ids)

    asyncio.run(run())
