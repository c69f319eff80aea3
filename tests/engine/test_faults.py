"""The contract of `Engine` where things go wrong, over every registered driver: leaving, deadlines, engines that break or are not there."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from smg.engine import Engine
from smg.errors import EngineBusy, EngineError, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable
from smg.sim.processes import free_port
from smg.sim.server import Sim, start_sim
from tests.engine.drive import DEADLINE_S, collect, driver, play, request, until
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.usefixtures("data_plane")

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])


@STREAMED
@pytest.mark.parametrize("leave", ["cancel", "aclose"])
def test_leaving_reaches_the_engine(runtime: str, stream: bool, leave: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        deltas = engine.generate(request(stream=stream, max_tokens=2000, ignore_eos=True), timeout_s=30)
        if leave == "aclose" and stream:
            await anext(deltas)
            watch = Stopwatch()
            await deltas.aclose()  # type: ignore[attr-defined]
        else:
            task = asyncio.ensure_future(anext(deltas))
            await until(lambda: sim.counters.started == 1)
            watch = Stopwatch()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: sim.counters.cancelled_calls == 1)
        assert watch.seconds(until_s=sim.counters.aborts[-1].at_s) < 0.1
        await until(lambda: sim.counters.running == sim.counters.waiting == 0)

    play(runtime, scene, itl_ms=20, **({} if leave == "aclose" else {"ttft_ms": 60_000}))


def test_abort_reaches_the_engine(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        async with aclosing(engine.generate(request(max_tokens=2000, ignore_eos=True), timeout_s=30)) as deltas:  # type: ignore[type-var]
            await anext(deltas)
            watch = Stopwatch()
            await engine.abort("r-1")
            await engine.abort("never heard of")
            assert sim.counters.aborts[0].request_id == "r-1"
            assert sim.counters.aborts[0].known
            assert watch.seconds(until_s=sim.counters.aborts[0].at_s) < 0.1

    play(runtime, scene, itl_ms=20)


def test_whole_answer_is_not_cancelled(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        for _ in range(5):
            await collect(engine, request())
        await until(lambda: sim.counters.finished == 5)
        assert sim.counters.cancelled_calls == 0

    play(runtime, scene)


@STREAMED
def test_deadline(runtime: str, stream: bool) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        start = time.monotonic()
        with pytest.raises(EngineTimeout):
            await collect(engine, request(stream=stream), timeout_s=0.3)
        assert 0.25 < time.monotonic() - start < DEADLINE_S  # the engine hangs for ever
        await until(lambda: sim.counters.running == 0)

    play(runtime, scene, fault="hang@2")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("rst@0", EngineError),
        ("rst@3", EngineError),
        ("goaway@3", EngineError),
        ("die@3", EngineUnavailable),
        ("end@3", EngineProtocol),
        ("error:INVALID_ARGUMENT@0", EngineRejected),
        ("error:RESOURCE_EXHAUSTED@0", EngineBusy),
        ("error:UNAVAILABLE@2", EngineUnavailable),
        ("error:CANCELLED@2", EngineUnavailable),
        ("error:DEADLINE_EXCEEDED@2", EngineTimeout),
        ("error:INTERNAL@2", EngineError),
    ],
)
def test_faults(runtime: str, fault: str, error: type[EngineError]) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        with pytest.raises(EngineError) as caught:
            await collect(engine, request())
        assert isinstance(caught.value, error)
        port = sim.url.rpartition(":")[2]
        for secret in ("127.0.0.1", port, "RST_STREAM", "GOAWAY", "ipv4", "socket"):
            assert secret not in caught.value.message

    play(runtime, scene, fault=fault)


def test_faults_in_a_unary_answer(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        with pytest.raises(EngineProtocol):
            await collect(engine, request(stream=False))

    play(runtime, scene, fault="end@3")


def test_engine_down(runtime: str) -> None:
    async def run() -> None:
        async with driver(runtime, f"grpc://127.0.0.1:{free_port()}") as engine:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: collect(engine, request(), timeout_s=30),
                lambda: engine.abort("r-1"),
                engine.health,
                engine.model_info,
                engine.server_info,
                engine.tokenizer_archive,
            ]
            for call in calls:
                watch = Stopwatch()
                with pytest.raises(EngineUnavailable) as caught:
                    await call()
                assert watch.seconds() < 1
                assert "127.0.0.1" in (caught.value.detail or "")
                assert "127.0.0.1" not in caught.value.message

    asyncio.run(run())


def test_engine_that_never_answers(runtime: str) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts, nobody reads
            url = f"grpc://127.0.0.1:{mute.getsockname()[1]}"
            async with driver(runtime, url, connect_timeout_s=0.3, unary_timeout_s=0.3) as engine:
                watch = Stopwatch()
                with pytest.raises(EngineUnavailable):
                    await collect(engine, request(), timeout_s=60)
                with pytest.raises((EngineUnavailable, EngineTimeout)):
                    await engine.health()
                assert watch.seconds() < 3

    asyncio.run(run())


def test_engine_comes_back(runtime: str) -> None:
    async def run() -> None:
        port = free_port()
        async with driver(runtime, f"grpc://127.0.0.1:{port}") as engine:
            with pytest.raises(EngineUnavailable):
                await engine.health()
            sim = await start_sim(protocol=runtime, port=port)
            try:
                await asyncio.wait_for(healthy(engine), DEADLINE_S)
            finally:
                await sim.close()

    async def healthy(engine: Engine) -> None:
        while True:
            try:
                assert await engine.health()
            except EngineUnavailable:
                await asyncio.sleep(0.02)
            else:
                return

    asyncio.run(run())


def test_closed_driver(runtime: str) -> None:
    async def scene(engine: Engine, sim: Sim) -> None:
        waiting = asyncio.ensure_future(collect(engine, request()))
        await until(lambda: sim.counters.started == 1)
        await engine.close()
        with pytest.raises(EngineUnavailable):
            await waiting
        with pytest.raises(EngineUnavailable):
            await engine.health()
        await engine.close()

    play(runtime, scene, fault="hang@0")
