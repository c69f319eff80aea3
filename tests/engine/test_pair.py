"""Two engines as one: what each leg is told, what the answer is made of, and what ends both. Over both data planes, where they differ."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from smg.engine import Engine, EngineDelta, EngineOptions, EngineRequest, PairedEngine, Prefill, ResolvedSampling, ServerInfo, open_engine
from smg.engine.pair import CAUSE_S
from smg.engine.transfer import handover_of, rendezvous
from smg.errors import EngineError, EngineUnavailable, UnsupportedParameter
from smg.sim.server import Sim, start_sim

IDS = list(range(100, 180))
PLANES = ("native", "aio")
RUNTIMES = ("vllm", "sglang", "tokenspeed")


class Pair:
    """Two simulated engines and the driver for one request after the other."""

    def __init__(self, sims: list[Sim], engines: list[Engine], server: ServerInfo) -> None:
        self.prefill, self.decode = sims
        self.engines = engines
        self.server = server
        self.aborted: list[str] = []
        self.done = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def engine(self) -> PairedEngine:
        prefill = Prefill(
            self.engines[0],
            server=self.server,
            bootstrap_port=self.prefill.engine.status_port,
            send_abort=self._send_abort,
            done=self._count,
        )
        return PairedEngine(prefill, self.engines[1])

    def _count(self, computed: bool) -> None:
        self.done += 1

    def _send_abort(self, engine: Engine, request_id: str) -> None:
        self.aborted.append(engine.url)
        task = asyncio.get_running_loop().create_task(engine.abort(request_id))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def blocks(self) -> tuple[int, int]:
        """What both engines hold, once nothing changes any more."""
        for _ in range(2000):
            held = [
                (sim.counters.blocks_used, sim.counters.blocks_pinned, sim.counters.running, sim.counters.waiting)
                for sim in (self.prefill, self.decode)
            ]
            if held == [(0, 0, 0, 0)] * 2:
                break
            await asyncio.sleep(0.01)
        return held[0][:2], held[1][:2]  # type: ignore[return-value]


@asynccontextmanager
async def pair(
    runtime: str, *, plane: str = "native", prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        sims, engines = [], []
        for role, options in (("prefill", prefill), ("decode", decode)):
            sims.append(await start_sim(protocol=runtime, role=role, status_port=0, **(options or {})))
            stack.push_async_callback(sims[-1].close)
            engines.append(open_engine(sims[-1].url, runtime=runtime, options=EngineOptions(data_plane=plane)))
            await engines[-1].start()
            stack.push_async_callback(engines[-1].close)
        yield Pair(sims, engines, await engines[0].server_info())


def request(number: int = 1, **changes: Any) -> EngineRequest:
    sampling = ResolvedSampling(**{"max_tokens": 8, "temperature": 0.0, **changes.pop("sampling", {})})
    return EngineRequest(**{"request_id": f"r{number}", "prompt_ids": IDS, "sampling": sampling, **changes})


async def answer(engine: Engine, asked: EngineRequest) -> list[EngineDelta]:
    return [delta async for delta in engine.generate(asked, timeout_s=10)]


def ids_of(deltas: list[EngineDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


EVERY = pytest.mark.parametrize(("runtime", "plane"), [(runtime, plane) for runtime in RUNTIMES for plane in PLANES])


@EVERY
def test_the_prompt_is_computed_by_one_and_the_answer_by_the_other(runtime: str, plane: str) -> None:
    async def main() -> None:
        async with pair(runtime, plane=plane) as two:
            deltas = await answer(two.engine(), request())
            assert ids_of(deltas) == IDS[:8]
            assert deltas[-1].finish == "length"
            assert (two.prefill.counters.tokens, two.decode.counters.tokens) == (1, 8)
            assert (two.decode.counters.transfers, two.decode.counters.transfers_failed) == (1, 0)
            assert await two.blocks() == ((0, 0), (0, 0))
            assert two.done == 1
            assert two.aborted == []

    asyncio.run(main())


@EVERY
@pytest.mark.parametrize("when", ["prefill", "decode"])
def test_who_leaves_leaves_nothing_behind(runtime: str, plane: str, when: str) -> None:
    """While the prompt is computed, and while the answer comes."""

    async def main() -> None:
        slow = {"prefill": {"ttft_ms": 600}, "decode": {"itl_ms": 100}}
        async with pair(runtime, plane=plane, **{when: slow[when]}) as two:
            engine, asked = two.engine(), request(sampling={"max_tokens": 50})
            deltas = engine.generate(asked, timeout_s=10)
            reading = asyncio.ensure_future(anext(deltas))
            if when == "decode":
                await reading
                assert two.decode.counters.running == 1
            else:
                await until(lambda: two.prefill.counters.started == 1)
                reading.cancel()
                await asyncio.wait([reading])
            await deltas.aclose()
            await engine.abort(asked.request_id)
            assert await two.blocks() == ((0, 0), (0, 0))
            assert two.done == 1

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
def test_who_leaves_between_the_legs_lets_the_cache_be_given_up(plane: str) -> None:
    async def main() -> None:
        async with pair("vllm", plane=plane) as two:
            engine, asked = two.engine(), request()
            gone = PairedEngine(engine.prefill, open_engine("grpc://127.0.0.1:1", runtime="vllm"))
            with pytest.raises(EngineUnavailable):
                await answer(gone, asked)
            assert two.prefill.counters.blocks_pinned > 0
            again = PairedEngine(engine.prefill, two.engines[1])
            again._asked = asked
            await again.abort(asked.request_id)
            assert two.prefill.counters.blocks_pinned > 0  # another attempt may follow
            engine.prefill.given_up = True
            await again.abort(asked.request_id)
            assert await two.blocks() == ((0, 0), (0, 0))
            assert two.decode.counters.started == 1

    asyncio.run(main())


def test_an_answer_that_crosses_the_deadline_is_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone tells which cache can be given up: the call goes on for as long as a leg that is left may still say something."""

    async def main() -> None:
        async with pair("vllm", plane="aio") as two:
            timeouts: list[float] = []
            generate = two.engines[0].generate

            def timed(asked: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
                timeouts.append(timeout_s)
                return generate(asked, timeout_s=timeout_s)

            monkeypatch.setattr(two.engines[0], "generate", timed)
            await answer(two.engine(), request())
            assert timeouts == [10 + CAUSE_S]

    asyncio.run(main())


@EVERY
def test_a_prefill_that_fails_ends_the_answer_at_once(runtime: str, plane: str) -> None:
    async def main() -> None:
        async with pair(runtime, plane=plane, prefill={"fault": "error:INVALID_ARGUMENT"}) as two:
            engine, asked = two.engine(), request()
            began = asyncio.get_running_loop().time()
            with pytest.raises(EngineError) as found:
                await answer(engine, asked)
            assert engine.prefill.error is found.value
            await engine.abort(asked.request_id)
            assert asyncio.get_running_loop().time() - began < 5  # and not when the decode engine has waited long enough
            assert await two.blocks() == ((0, 0), (0, 0))

    asyncio.run(main())


@EVERY
def test_a_decode_engine_that_fails_ends_the_prefill(runtime: str, plane: str) -> None:
    async def main() -> None:
        async with pair(runtime, plane=plane, prefill={"ttft_ms": 100}, decode={"fault": "error"}) as two:
            engine, asked = two.engine(), request()
            with pytest.raises(EngineError):
                await answer(engine, asked)
            assert engine.prefill.error is None
            await engine.abort(asked.request_id)
            assert await two.blocks() == ((0, 0), (0, 0))

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
def test_another_attempt_uses_what_was_computed(plane: str) -> None:
    async def main() -> None:
        async with pair("vllm", plane=plane) as two:
            engine, asked = two.engine(), request()
            gone = open_engine("grpc://127.0.0.1:1", runtime="vllm", options=EngineOptions(data_plane=plane))
            await gone.start()
            with pytest.raises(EngineUnavailable):
                await answer(PairedEngine(engine.prefill, gone), asked)
            await gone.close()
            assert ids_of(await answer(engine, asked)) == IDS[:8]
            assert two.prefill.counters.started == 1
            assert await two.blocks() == ((0, 0), (0, 0))

    asyncio.run(main())


@pytest.mark.parametrize("plane", PLANES)
def test_another_attempt_computes_anew_what_a_lost_engine_may_have_fetched(plane: str) -> None:
    async def main() -> None:
        async with pair("vllm", plane=plane, decode={"fault": "error:UNAVAILABLE@0"}) as two:
            engine, asked = two.engine(), request()
            with pytest.raises(EngineUnavailable):
                await answer(engine, asked)
            assert two.decode.counters.transfers == 1
            assert engine.prefill.unclaimed is None
            await engine.abort(asked.request_id)
            assert await two.blocks() == ((0, 0), (0, 0))

    asyncio.run(main())


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_the_scores_of_the_prompt_are_the_prefill_engines(runtime: str) -> None:
    async def main() -> None:
        async with pair(runtime, plane="aio") as two:
            deltas = await answer(two.engine(), request(prompt_logprobs=0, logprobs=0))
            (scored,) = [delta for delta in deltas if delta.prompt_logprobs is not None]
            assert scored.prompt_logprobs is not None
            assert scored.prompt_logprobs.ids == IDS
            assert all(delta.logprobs for delta in deltas if delta.token_ids)

    asyncio.run(main())


def test_several_choices() -> None:
    async def main() -> None:
        async with pair("vllm") as two:
            many = await answer(two.engine(), request(sampling={"n": 2, "temperature": 1.0}))
            assert {delta.choice for delta in many if delta.finish} == {0, 1}
            assert two.prefill.counters.started == 0  # a cache is fetched once
            assert two.done == 1  # and the engine that was chosen is counted out
        async with pair("sglang") as two:
            with pytest.raises(UnsupportedParameter):
                two.engine().check(request(sampling={"n": 2}))

    asyncio.run(main())


class Scripted:
    """An engine whose calls begin when they are told to and say nothing but their end; `asked` is what came."""

    url = "grpc://h:1"

    def __init__(self) -> None:
        self.asked: list[EngineRequest] = []
        self.go = asyncio.Event()

    async def generate(self, asked: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
        self.asked.append(asked)
        await self.go.wait()
        yield EngineDelta(finish="length")

    async def abort(self, request_id: str) -> None:
        """It does not matter."""


def scripted(engine: Scripted) -> Prefill:
    return Prefill(
        engine,  # type: ignore[arg-type]
        server=ServerInfo(),
        bootstrap_port=0,
        send_abort=lambda engine, request_id: None,
        done=lambda computed: None,
    )


def test_an_engine_that_is_lost_once_it_was_left_is_not_the_cause() -> None:
    async def main() -> None:
        prefill = scripted(Scripted())
        computing = asyncio.create_task(prefill.first(request(), timeout_s=10))
        await until(lambda: prefill._wait is not None)
        computing.cancel()
        await asyncio.wait([computing])
        prefill.fail(EngineUnavailable("lost"))
        await prefill.ended()
        assert prefill.error is None

    asyncio.run(main())


def test_a_cache_of_which_nothing_was_said_is_not_fetched_to_be_forgotten() -> None:
    async def main() -> None:
        async with pair("vllm") as two:
            engine, decode = Scripted(), two.engines[1]
            engine.go.set()
            both = PairedEngine(scripted(engine), decode)
            both._asked = request()
            await both.prefill.first(both._asked, timeout_s=10)
            both.prefill.given_up = True
            await both.abort("r1")
            assert len(engine.asked) == 1
            assert two.decode.counters.started == 0

    asyncio.run(main())


def test_the_words_of_the_connectors() -> None:
    nixl = handover_of(ServerInfo(kv_connector="NixlConnector", kv_engine_id="e"), url="grpc://h:1", port=0)
    assert json.loads(nixl.prefill.params) == {"do_remote_decode": True, "do_remote_prefill": False}
    assert nixl.decode('{"any": "thing"}').params == '{"any": "thing"}'
    mooncake = handover_of(ServerInfo(kv_connector="MooncakeConnector", kv_engine_id="e"), url="grpc://[::1]:1", port=7)
    told, other = json.loads(mooncake.prefill.params), json.loads(mooncake.decode("").params)
    assert told["transfer_id"] == other["transfer_id"]
    assert (other["do_remote_prefill"], other["remote_engine_id"], other["remote_bootstrap_addr"]) == (True, "e", "http://[::1]:7")
    assert rendezvous("grpc://h:1", port=0).port == 8998
    assert [rendezvous(url, port=5).host for url in ("grpc://[fd00::1]:1", "unix:/run/engine")] == ["[fd00::1]", "localhost"]
    rooms = {rendezvous("grpc://h:1", port=5).room for _ in range(100)}
    assert len(rooms) == 100
    assert all(0 < room < 1 << 31 for room in rooms)


async def until(happened: Callable[[], bool]) -> None:
    for _ in range(4000):
        if happened():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")
