"""Requests that wait for an engine in vain: silence in mid-stream ends them, a lost engine sends them to another one; on both planes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_switches import Switches
from smg.errors import EngineTimeout, EngineUnavailable, SmgError
from smg.pipeline.tending import Tended, Tender, Wait
from smg.types.job import Job, Logprobs
from smg.worker import EngineState
from smg.worker.breaker import Condition
from tests.engine.drive import until
from tests.pipeline.fleet import Fleet, chat, collect, fleet, text_of
from tests.pipeline.test_native import HEAD, config, told, whole
from tests.pipeline.test_run import settled

PLANES = pytest.mark.parametrize("plane", ["aio", "native"])
IDLE_S = 100.0
Ask = Callable[[Fleet, Job], Awaitable[object]]


class Clock:
    """Seconds as a test sets them."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Call(Tended):
    """Has come as far as a test says."""

    def __init__(self, come: int = 0, *, address: str = "") -> None:
        self.come = come
        self.address = address
        self.error: SmgError | None = None

    def waits_for(self) -> str:
        return self.address

    def progress(self) -> int:
        return self.come

    def fail(self, error: SmgError) -> None:
        self.error = error


def after(clock: Clock, engines: Fleet, seconds: float) -> None:
    """Lets time pass, and looks as often as a data worker does in that time."""
    for _ in range(20):
        clock.now_s += seconds / 20
        engines.pipeline.tend()


def held_back(engines: Fleet) -> bool:
    """True when no engine owes anything, for its client is slow."""
    return all(call.progress() == 0 for call in engines.pipeline._deadlines.calls() if isinstance(call, Tended))


async def streamed(engines: Fleet, job: Job) -> None:
    """As a chat whose chunks are written natively where they can be."""
    await engines.pipeline.stream(job, renderer=ChatStream(HEAD, Switches(choices=1)), write=lambda chunk: True)


def test_who_stands_still_for_the_whole_time_is_given_up() -> None:
    clock, moving, still, unbegun = Clock(), Call(1), Call(1), Call()
    tender = Tender(idle_s=IDLE_S, clock=clock)
    for _ in range(12):  # a look each quarter of the time
        tender.look(lambda: [moving, still, unbegun, object()], lost=frozenset())
        assert still.error is None or clock.now_s - 1000 >= IDLE_S
        moving.come += 1
        clock.now_s += IDLE_S / 4
    assert isinstance(still.error, EngineTimeout)
    assert moving.error is unbegun.error is None


def test_looks_are_not_made_for_nothing() -> None:
    clock, looks = Clock(), []
    tender, off = Tender(idle_s=IDLE_S, clock=clock), Tender(idle_s=0, clock=clock)
    for _ in range(100):
        tender.look(lambda: looks.append(1) or [], lost=frozenset())
        off.look(lambda: looks.append(1) or [], lost=frozenset())
        clock.now_s += IDLE_S / 100
    assert len(looks) == 4
    off.look(lambda: looks.append(1) or [], lost=frozenset(("grpc://a:1",)))
    assert len(looks) == 5


def test_a_lost_engine_is_left_by_who_has_heard_nothing() -> None:
    waiting, other, answered = Call(address="grpc://a:1"), Call(address="grpc://b:1"), Call(5)
    Tender(idle_s=IDLE_S).look(lambda: [waiting, other, answered], lost=frozenset(("grpc://a:1",)))
    assert isinstance(waiting.error, EngineUnavailable)
    assert other.error is answered.error is None


def test_a_wait_ends_with_the_first_error_and_only_by_it() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        wait = Wait()
        assert await wait.of(asyncio.sleep(0, 7)) == 7
        assert not wait.open
        waiting = asyncio.create_task(wait.of(never()))
        await until(lambda: wait.open)
        wait.fail(EngineTimeout("first"))
        wait.fail(EngineUnavailable("second"))
        with pytest.raises(EngineTimeout, match="first"):
            await waiting
        with pytest.raises(EngineTimeout, match="first"):
            await wait.of(never())
        with pytest.raises(TimeoutError, match="its own"):
            await Wait().of(raising(TimeoutError("its own")))
        wait = Wait()
        cancelled = asyncio.create_task(wait.of(never()))
        await until(lambda: wait.open)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(run())


async def raising(error: Exception) -> None:
    raise error


@PLANES
@pytest.mark.parametrize("ask", [streamed, collect], ids=["stream", "run"])
@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_silence_in_mid_stream_is_a_failure_of_the_engine(protocol: str, plane: str, ask: Ask) -> None:
    async def run() -> None:
        async with fleet(protocol, config=config(plane), fault="hang@3") as engines:
            clock = Clock()
            engines.pipeline._tender = Tender(idle_s=IDLE_S, clock=clock)
            asking = asyncio.create_task(ask(engines, chat("one two three four five")))  # type: ignore[arg-type]
            await until(lambda: engines.sims[0].counters.tokens == 3)
            await until(lambda: engines.view.candidates("sim-model")[0].tokens == 0)  # the first token is here
            after(clock, engines, IDLE_S * 0.9)
            await asyncio.sleep(0)
            assert not asking.done()
            await until(lambda: after(clock, engines, IDLE_S) or asking.done())  # a token may still be on its way
            with pytest.raises(EngineTimeout, match="fell silent"):
                await asking
            await until(lambda: settled(engines) and engines.sims[0].counters.aborted == 1)
            assert Condition.of(engines.view.shm.breaker(0)).count == 1
            assert engines.sims[0].counters.started == 1, "what has been answered is not sent again"

    asyncio.run(run())


def test_both_planes_tell_silence_alike() -> None:
    async def run(plane: str) -> bytes:
        async with fleet("vllm", config=config(plane), fault="hang@3") as engines:
            clock = Clock()
            engines.pipeline._tender = Tender(idle_s=IDLE_S, clock=clock)
            asking = asyncio.create_task(told(engines, chat("one two three four five")))
            await until(lambda: engines.sims[0].counters.tokens == 3)
            await until(lambda: engines.view.candidates("sim-model")[0].tokens == 0)
            await until(lambda: after(clock, engines, IDLE_S) or asking.done())
            return await asking

    aio, native = asyncio.run(run("aio")), asyncio.run(run("native"))
    assert aio == native
    assert aio.endswith(b"EngineTimeout 504 engine_timeout the engine fell silent in the middle of its answer")


@PLANES
@pytest.mark.parametrize("stream", [True, False])
def test_nobody_is_given_up_before_the_first_token_or_in_an_answer_that_comes_whole(plane: str, stream: bool) -> None:
    async def run() -> None:
        async with fleet("vllm", config=config(plane), fault="hang@0" if stream else "hang@3") as engines:
            clock = Clock()
            engines.pipeline._tender = Tender(idle_s=IDLE_S, clock=clock)
            asking = asyncio.create_task(collect(engines, chat("one two three four five", stream=stream)))
            await until(lambda: engines.sims[0].counters.started == 1 and engines.sims[0].counters.tokens == (0 if stream else 3))
            after(clock, engines, 10 * IDLE_S)
            await asyncio.sleep(0.01)
            assert not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: settled(engines))

    asyncio.run(run())


@PLANES
def test_a_client_that_reads_slowly_is_not_the_engines_fault(plane: str) -> None:
    async def run() -> None:
        async with fleet("vllm", config=config(plane), itl_ms=1) as engines:
            clock = Clock()
            engines.pipeline._tender = Tender(idle_s=IDLE_S, clock=clock)
            words = " ".join(f"word{number}" for number in range(90))
            events = []
            async with aclosing(engines.pipeline.run(chat(words, max_tokens=600))) as batches:  # type: ignore[type-var]
                async for batch in batches:
                    events += batch
                    if len(events) == 5:
                        await until(lambda: engines.sims[0].counters.tokens > 100)  # so much waits to be read
                        await until(lambda: held_back(engines))
                        after(clock, engines, 3 * IDLE_S)
            assert text_of(events) == words
            await until(lambda: settled(engines))

    asyncio.run(run())


@PLANES
@pytest.mark.parametrize(
    ("ask", "fields"),
    [(streamed, {}), (collect, {}), (collect, {"logprobs": Logprobs(output=0)}), (whole, {"stream": False})],
    ids=["stream", "run", "logprobs", "whole"],
)
def test_a_request_that_waits_for_a_lost_engine_goes_to_another_one(plane: str, ask: Ask, fields: dict[str, object]) -> None:
    async def run() -> None:
        async with fleet("vllm", "vllm", config=config(plane), ttft_ms=60_000) as engines:
            asking = [asyncio.create_task(ask(engines, chat("hello there", **fields))) for _ in range(2)]  # type: ignore[arg-type]
            await until(lambda: all(sim.counters.started == 1 for sim in engines.sims))
            engines.view.shm.set_engine_state(0, EngineState.NOT_READY)
            engines.pipeline.tend()
            await until(lambda: engines.sims[1].counters.started == 2)
            await until(lambda: engines.sims[0].counters.aborted == 1)
            assert engines.sims[1].counters.aborted == 0
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await until(lambda: settled(engines))

    asyncio.run(run())


@PLANES
def test_the_deadline_ends_a_request_that_the_engine_does_not(plane: str) -> None:
    async def run() -> None:
        async with fleet("vllm", config=config(plane), fault="hang@0") as engines:
            with pytest.raises(EngineTimeout):
                await collect(engines, chat("hello there", deadline_s=time.monotonic() + 0.3))
            await until(lambda: settled(engines))

    asyncio.run(run())
