"""Requests whose prefill and decode are computed apart, through the whole pipeline: answers, loads, failures, and clients that leave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_switches import Switches
from smg.config import Config
from smg.config.tree import Engines
from smg.engine import EngineDelta, EngineRequest
from smg.errors import EngineError, EngineUnavailable, NoEngine
from smg.pipeline import attempts, pairs
from smg.types.job import Job, Logprobs
from smg.worker import EngineState
from smg.worker.breaker import Condition
from tests.pipeline.fleet import Fleet, chat, collect, finish_of, fleet, text_of, usage_of
from tests.pipeline.test_native import HEAD, config

RUNTIMES = ("vllm", "sglang", "tokenspeed")
PLANES = ("native", "aio")
EVERY = pytest.mark.parametrize(("runtime", "plane"), [(runtime, plane) for runtime in RUNTIMES for plane in PLANES])


def plane_of(plane: str) -> Config:
    return Config(engines=Engines(data_plane=plane))


async def idle(made: Fleet) -> None:
    """Waits until no engine holds a block and nothing is counted."""

    def at_rest() -> bool:
        busy = [sim.counters.blocks_used + sim.counters.blocks_pinned + sim.counters.running + sim.counters.waiting for sim in made.sims]
        return not any(busy) and made.load == 0

    await until(at_rest, lambda: str([sim.counters for sim in made.sims]) + f" load {made.load}")


async def until(happened: Callable[[], bool], told: Callable[[], str] = str) -> None:
    for _ in range(2000):
        if happened():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(told())


@EVERY
@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_is_that_of_one_engine(runtime: str, plane: str, stream: bool) -> None:
    async def main() -> None:
        async with fleet(runtime) as one:
            expected = await collect(one, chat('say it [[sim: text="It is said."]]', stream=stream))
        async with fleet(f"{runtime} prefill", f"{runtime} decode", config=plane_of(plane)) as two:
            for _ in range(3):
                found = await collect(two, chat('say it [[sim: text="It is said."]]', stream=stream))
                assert (text_of(found), finish_of(found)) == (text_of(expected), finish_of(expected))
                assert usage_of(found).completion_tokens == usage_of(expected).completion_tokens
            assert [sim.counters.transfers for sim in two.sims] == [0, 3]
            await idle(two)
            assert [two.view.shm.counts(slot)[:2] for slot in (0, 1)] == [(3, 0), (3, 0)], "requests that the breakers have judged"

    asyncio.run(main())


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_log_probabilities_of_prompt_and_answer(runtime: str) -> None:
    async def main() -> None:
        async with fleet(runtime) as one, fleet(f"{runtime} prefill", f"{runtime} decode") as two:
            asked = chat("score this", logprobs=Logprobs(output=1, prompt=1), max_tokens=4)
            expected, found = await collect(one, asked), await collect(two, asked)
            assert found[1:-1] == expected[1:-1]
            await idle(two)

    asyncio.run(main())


@EVERY
@pytest.mark.parametrize("leave_at", ["prefill", "decode", "answer"])
def test_clients_that_leave(runtime: str, plane: str, leave_at: str) -> None:
    slow: dict[str, dict[str, Any]] = {
        "prefill": {"prefill": {"ttft_ms": 5000}},
        "decode": {"decode": {"ttft_ms": 5000}},
        "answer": {"decode": {"itl_ms": 50}},
    }

    async def main() -> None:
        async with fleet(f"{runtime} prefill", f"{runtime} decode", config=plane_of(plane), **slow[leave_at]) as two:
            seen: list[Any] = []

            async def client() -> None:
                async for events in two.pipeline.run(chat("a long answer", max_tokens=200)):
                    seen.append(events)

            task = asyncio.create_task(client())
            prefill, decode = two.sims
            reached = {
                "prefill": lambda: prefill.counters.started == 1,
                "decode": lambda: decode.counters.started == 1 and decode.counters.transfers == 1,
                "answer": lambda: len(seen) > 3,
            }
            await until(reached[leave_at])
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await idle(two)
            if leave_at != "prefill":
                assert decode.counters.aborted == 1

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
def test_a_client_that_leaves_while_the_prefill_engine_says_that_it_is_done(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache is fetched and forgotten: the engine would keep it for minutes (known bug B121)."""
    monkeypatch.setattr("smg.engine.pair.CAUSE_S", 20.0)

    async def main() -> None:
        async with fleet("vllm prefill", "vllm decode", config=plane_of(plane)) as two:
            engine = await two.pipeline._pool.get(two.view.engines("sim-model")[0])
            generate, abort = engine.generate, engine.abort
            computed, aborted = asyncio.Event(), asyncio.Event()

            async def late(request: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
                async for delta in generate(request, timeout_s=timeout_s):
                    if delta.finish:
                        computed.set()
                        await aborted.wait()
                    yield delta

            async def told(request_id: str) -> None:
                await abort(request_id)
                aborted.set()

            engine.generate, engine.abort = late, told  # type: ignore[method-assign, assignment]
            asked = asyncio.create_task(collect(two, chat("hello")))
            await computed.wait()
            assert two.sims[0].counters.blocks_pinned
            asked.cancel()
            await asyncio.wait([asked])
            await until(lambda: (two.sims[1].counters.transfers, two.sims[1].counters.tokens) == (1, 1))
            await idle(two)

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"logprobs": Logprobs(output=1)}], ids=["stream", "whole", "logprobs"])
def test_a_client_that_leaves_as_the_decode_engine_is_asked(plane: str, fields: dict[str, Any]) -> None:
    """That hears of the request all the same: nobody else can tell the prefill engine that its cache is not needed (known bug B121)."""

    async def main() -> None:
        async with fleet("vllm prefill", "vllm decode", config=config(plane), decode={"itl_ms": 100}) as two:
            made: list[pairs.Pair] = []
            make = two.pipeline._pairs.make

            async def kept(*args: Any, **named: Any) -> pairs.Pair:
                made.append(await make(*args, **named))
                return made[-1]

            two.pipeline._pairs.make = kept  # type: ignore[method-assign]
            seen: list[Any] = []
            for number in range(1, 6):
                asked = asyncio.create_task(take(two, chat("hello [[sim: tokens=200]]", max_tokens=200, **fields), seen))
                while not (len(made) == number and made[-1].prefill.claimed):  # noqa: ASYNC110  the very next moment matters
                    await asyncio.sleep(0)
                asked.cancel()
                await asyncio.wait([asked])
            await idle(two)
            prefill, decode = (sim.counters for sim in two.sims)
            assert prefill.finished == 5
            await until(lambda: decode.transfers == decode.aborted == 5, lambda: str(decode))
            assert not seen
            if plane == "native" and not fields.get("logprobs"):
                assert "rpc" in {abort.cause for abort in decode.aborts if abort.known}, "told once it knows the request"

    async def take(two: Fleet, job: Job, seen: list[Any]) -> None:
        if job.stream and job.logprobs.output is None:
            await two.pipeline.stream(job, lambda chunk: seen.append(chunk) or True, renderer=ChatStream(HEAD, Switches(choices=1)))
        else:
            await two.pipeline.whole(job, take=seen.extend)

    asyncio.run(main())


@EVERY
def test_a_prefill_engine_that_refuses_ends_the_request(runtime: str, plane: str) -> None:
    async def main() -> None:
        options = {"prefill": {"fault": "error:INVALID_ARGUMENT"}}
        async with fleet(f"{runtime} prefill", f"{runtime} decode", config=plane_of(plane), **options) as two:
            began = asyncio.get_running_loop().time()
            with pytest.raises(EngineError) as caught:
                await collect(two, chat())
            assert asyncio.get_running_loop().time() - began < 5  # a decode engine alone waits for minutes
            assert caught.value.engine == two.sims[0].url, "who said so, for the log"
            await idle(two)
            assert [two.view.shm.counts(slot)[:2] for slot in (0, 1)] == [(1, 0), (0, 0)], "the decode engine has not served it"

    asyncio.run(main())


def test_a_prefill_engine_whose_end_is_known_late_is_looked_at() -> None:
    """Its part was over by then: the decode engine had told of its own failure first."""

    async def main() -> None:
        async with fleet("sglang prefill", "sglang decode") as two:
            lost, told = EngineUnavailable("gone"), EngineError("no cache came")

            async def cause(error: EngineError) -> EngineError:
                return lost

            pair = SimpleNamespace(cause=cause, prefill=SimpleNamespace(error=lost, engine=SimpleNamespace(url="grpc://h:1")), slot=0)
            attempt = SimpleNamespace(answered=False, blamed=None)
            with pytest.raises(EngineUnavailable, match="gone") as caught:
                await two.pipeline._pairs.judge(told, pair=pair, attempt=attempt)  # type: ignore[arg-type]
            assert (caught.value.engine, attempt.blamed) == ("grpc://h:1", 0)
            assert [two.view.shm.take_suspect(slot) for slot in (0, 1)] == [True, False]

    asyncio.run(main())


@EVERY
def test_a_prefill_engine_without_another_is_asked_again_after_pauses(runtime: str, plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one request that it does not survive is one failure of it."""
    pauses: list[int] = []
    monkeypatch.setattr(attempts.Attempts, "pause_s", lambda self, number: pauses.append(number) or 0.001)

    async def main() -> None:
        options = {"prefill": {"fault": "error:UNAVAILABLE"}}
        async with fleet(f"{runtime} prefill", f"{runtime} decode", config=plane_of(plane), **options) as two:
            with pytest.raises(EngineUnavailable):
                await collect(two, chat())
            assert (two.sims[0].counters.started, pauses) == (5, [1, 2, 3, 4])
            assert [Condition.of(two.view.shm.breaker(slot)).count for slot in (0, 1)] == [1, 0]
            assert [two.view.shm.counts(slot)[:2] for slot in (0, 1)] == [(0, 5), (0, 0)]
            assert [two.view.shm.take_suspect(slot) for slot in (0, 1)] == [True, False]
            await idle(two)

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
def test_a_deadline_in_the_pause_for_a_prefill_engine_is_not_the_decode_engines_fault(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts.Attempts, "pause_s", lambda self, number: 3600.0)

    async def main() -> None:
        options = {"prefill": {"fault": "error:UNAVAILABLE"}}
        async with fleet("vllm prefill", "vllm decode", config=plane_of(plane), **options) as two:
            with pytest.raises(EngineUnavailable):
                await collect(two, chat())
            assert two.sims[0].counters.started == 1
            retries = [values[0] for key, values in two.view.shm.totals() if key.startswith(b"smg_worker_retries_total")]
            assert retries == [1]
            await idle(two)
            assert [two.view.shm.counts(slot)[:2] for slot in (0, 1)] == [(0, 1), (0, 0)]

    asyncio.run(main())


@EVERY
def test_an_engine_of_either_role_that_is_gone_is_passed_over(runtime: str, plane: str) -> None:
    async def main() -> None:
        roles = [f"{runtime} {role}" for role in ("prefill", "prefill", "decode", "decode")]
        async with fleet(*roles, config=plane_of(plane)) as many:
            await many.sims[0].close()
            await many.sims[2].close()
            for _ in range(6):
                assert text_of(await collect(many, chat("hello")))
            many.sims[:] = [many.sims[1], many.sims[3]]
            await idle(many)

    asyncio.run(main())


@EVERY
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_prompt_waits_at_a_lost_engine_goes_to_another(runtime: str, plane: str, stream: bool) -> None:
    async def main() -> None:
        config = plane_of(plane)
        config = msgspec.structs.replace(config, routing=msgspec.structs.replace(config.routing, prefill_policy="passthrough"))
        async with fleet(*(f"{runtime} {role}" for role in ("prefill", "prefill", "decode")), config=config) as many:
            lost, other, _ = many.sims
            asked = asyncio.create_task(collect(many, chat("hello [[sim: ttft_ms=20000]]", stream=stream)))
            await until(lambda: lost.counters.started == 1)
            many.view.shm.set_engine_state(0, EngineState.NOT_READY)
            many.pipeline.tend()
            await until(lambda: other.counters.started == 1)
            assert Condition.of(many.view.shm.breaker(0)).count == 1
            assert Condition.of(many.view.shm.breaker(2)).count == 0
            asked.cancel()
            await asyncio.wait([asked])
            await idle(many)
            assert not many.pipeline._pairs.parts

    asyncio.run(main())


@EVERY
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_deadline_is_the_fault_of_who_was_asked(runtime: str, plane: str, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own task ends then: a decode engine that waits for nothing yet is not blamed."""

    async def main() -> None:
        async with fleet(f"{runtime} prefill", f"{runtime} decode", config=plane_of(plane), **{role: {"ttft_ms": 60000}}) as two:
            asked = asyncio.create_task(collect(two, chat()))
            prefill, decode = two.sims
            told = two.view.shm.counts  # a prompt that is computed counts once the gateway has heard of it
            await until(lambda: decode.counters.transfers == told(0)[0] == 1 if role == "decode" else prefill.counters.started == 1)
            for module in (attempts, pairs):
                monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float("inf")))
            asked.cancel()
            await asyncio.wait([asked])
            await idle(two)
            failures = [Condition.of(two.view.shm.breaker(slot)).count for slot in (0, 1)]
            if role == "decode":
                assert failures == [0, 1]
            else:
                assert failures == ([1, 0] if runtime == "vllm" else [1, 1])  # where both are asked at once either may be to blame

    asyncio.run(main())


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_that_is_missing(role: str) -> None:
    async def main() -> None:
        async with fleet(f"vllm {role}") as one:
            with pytest.raises(NoEngine, match="no prefill" if role == "decode" else "no decode"):
                await collect(one, chat())
            assert one.load == 0

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
def test_engines_that_cannot_be_apart(plane: str) -> None:
    """They are not ready for a part once they were asked; until then, when one is given a part anew, the other computes all of it."""

    async def main() -> None:
        async with fleet("trtllm") as one:
            expected = text_of(await collect(one, chat("hello")))
        async with fleet("trtllm prefill", "trtllm decode", config=plane_of(plane)) as two:
            assert text_of(await collect(two, chat("hello"))) == expected
            await idle(two)

    asyncio.run(main())


def test_each_role_has_its_policy() -> None:
    async def main() -> None:
        config = Config()
        config = msgspec.structs.replace(config, routing=msgspec.structs.replace(config.routing, prefill_policy="round_robin"))
        async with fleet("vllm prefill", "vllm prefill", "vllm decode", config=config) as many:
            for _ in range(4):
                await collect(many, chat())
            assert [sim.counters.started for sim in many.sims] == [2, 2, 4]
            await idle(many)

    asyncio.run(main())
