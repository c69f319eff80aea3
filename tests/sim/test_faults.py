"""Faults, cancellation in every window, and what is left behind: nothing."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from smg.pb import vllm_engine_pb2 as pb
from smg.pb import vllm_engine_pb2_grpc
from smg.sim.server import Sim, start_sim
from tests.sim.client import (
    MODULES,
    PROTOCOLS,
    ask,
    chat_ids,
    complete_of,
    idle,
    ids_of,
    is_complete,
    message,
    play,
    stub,
    until,
    unwrap,
)
from tests.stopwatch import Stopwatch

EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)


async def broken(sim: Sim, text: str) -> tuple[list[Any], grpc.StatusCode]:
    """Sends a request whose call fails: the messages before the failure, and its status."""
    parts: list[Any] = []

    async def read(call: Any) -> None:
        async for reply in call:
            parts.append(unwrap(reply))

    async with stub(sim) as engine:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(engine.Generate(message(sim, chat_ids(sim, text)), timeout=30))
    return parts, caught.value.code()


@EVERY
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("rst", grpc.StatusCode.INTERNAL),
        ("rst:7", grpc.StatusCode.UNAVAILABLE),
        ("rst:8", grpc.StatusCode.CANCELLED),
        ("goaway", grpc.StatusCode.UNAVAILABLE),
        ("error:RESOURCE_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("error", grpc.StatusCode.INTERNAL),
    ],
)
def test_broken_calls(protocol: str, after: int, fault: str, status: grpc.StatusCode) -> None:
    async def scene(sim: Sim) -> None:
        parts, code = await broken(sim, f"Hi [[sim: tokens=50 fault={fault}@{after}]]")
        assert code == status
        assert len(ids_of(parts)) <= after, "messages in flight may be lost with the stream"
        if not fault.startswith(("rst", "goaway")):
            assert len(ids_of(parts)) == after
        await idle(sim)
        assert (sim.counters.faulted, sim.counters.aborted, sim.counters.cancelled_calls) == (1, 0, 0)
        assert complete_of(await ask(sim, "Hi")).finish_reason == "stop", "the engine goes on"

    play(scene, protocol=protocol)


@EVERY
@pytest.mark.parametrize("after", [0, 3])
def test_end_without_complete(protocol: str, after: int) -> None:
    async def scene(sim: Sim) -> None:
        parts = await ask(sim, f"Hi [[sim: tokens=50 fault=end@{after}]]")
        assert len(ids_of(parts)) == after
        assert not [part for part in parts if is_complete(part)]

    play(scene, protocol=protocol)


@EVERY
@pytest.mark.parametrize("after", [0, 3])
def test_die(protocol: str, after: int) -> None:
    async def scene(sim: Sim) -> None:
        _, code = await broken(sim, f"Hi [[sim: tokens=50 fault=die@{after}]]")
        assert code == grpc.StatusCode.UNAVAILABLE
        assert sim.died.is_set()
        async with stub(sim) as engine:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await engine.HealthCheck(MODULES[protocol].HealthCheckRequest(), timeout=30)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

    play(scene, protocol=protocol)


@EVERY
@pytest.mark.parametrize("after", [0, 3])
def test_hang_holds_blocks_until_the_client_leaves(protocol: str, after: int) -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            call = engine.Generate(message(sim, chat_ids(sim, f"Hi [[sim: tokens=50 fault=hang@{after}]]")), timeout=30)
            task = asyncio.ensure_future(call.read())
            await until(lambda: sim.counters.running == 1 and sim.counters.tokens == after)
            assert sim.counters.blocks_used > 0
            assert sim.counters.finished == 0
            watch = Stopwatch()
            call.cancel()
            await idle(sim)
            (abort,) = sim.counters.aborts
            assert (abort.cause, abort.known, abort.request_id) == ("cancel", True, "r-1")
            assert watch.seconds(until_s=abort.at_s) < 1.0
            with contextlib.suppress(asyncio.CancelledError):
                await task

    play(scene, protocol=protocol)


@pytest.mark.parametrize("how", ["abort", "cancel", "deadline"])
@pytest.mark.parametrize("window", ["queue", "prefill", "decode", "pause"])
def test_no_block_leaks(how: str, window: str) -> None:
    """A request that is given up in the queue, in its prefill, between tokens, or while its first token is late."""
    marker = {"queue": "tokens=3", "prefill": "tokens=3", "decode": "tokens=100000 itl_ms=3", "pause": "tokens=3 ttft_ms=60000"}[window]
    options: dict[str, Any] = {"max_running": 1}
    if window == "prefill":
        options.update(speed=1.0, prefill_base_ms=60000.0)

    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            other = None
            if window == "queue":
                other = engine.Generate(message(sim, chat_ids(sim, "[[sim: fault=hang]]"), rid="other"), timeout=30)
                await until(lambda: sim.counters.running == 1)
            timeout = 1.5 if how == "deadline" else 30
            call = engine.Generate(message(sim, chat_ids(sim, f"Hi [[sim: {marker}]]"), n=2), timeout=timeout)
            waiting = 2 if window == "queue" else 1
            await until(lambda: sim.counters.started == 1 + bool(other) and sim.counters.waiting == waiting)
            if window == "decode":
                await until(lambda: sim.counters.tokens > 2)
            if how == "abort":
                await engine.Abort(pb.AbortRequest(request_ids=["r-1"]), timeout=30)
            elif how == "cancel":
                call.cancel()
            await until(lambda: sim.counters.aborted == 1 and sim.counters.waiting == 0)
            assert sim.counters.running == bool(other)
            if other is not None:
                other.cancel()
            await idle(sim)
            call.cancel()

    if window == "prefill":

        async def prefill() -> None:
            sim = await start_sim(**options)
            try:
                await scene(sim)
            finally:
                await sim.close()

        asyncio.run(prefill())
    else:
        play(scene, **options)


def test_a_client_that_does_not_read_stops_the_work() -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            call = engine.Generate(message(sim, chat_ids(sim, "Hi [[sim: tokens=1000000]]"), max_tokens=None), timeout=30)
            await call.read()
            seen = -1

            def settled() -> bool:
                nonlocal seen
                before, seen = seen, sim.counters.tokens
                return before == seen and seen > 1000

            await until(settled)
            assert sim.counters.tokens < 32000
            call.cancel()

    play(scene)


def test_late_and_slow() -> None:
    async def scene(sim: Sim) -> None:
        start = time.monotonic()
        await ask(sim, "Hi [[sim: tokens=1 ttft_ms=150]]")
        assert time.monotonic() - start >= 0.15
        start = time.monotonic()
        await ask(sim, "Hi [[sim: tokens=1 fault=late:120]]")
        assert time.monotonic() - start >= 0.12
        start = time.monotonic()
        await ask(sim, "Hi [[sim: tokens=5 itl_ms=30]]")
        assert time.monotonic() - start >= 0.15

    play(scene)


def test_fault_of_the_engine_in_every_other_request() -> None:
    async def scene(sim: Sim) -> None:
        assert complete_of(await ask(sim, "Hi")).finish_reason == "stop"
        _, code = await broken(sim, "Hi")
        assert code == grpc.StatusCode.UNAVAILABLE
        assert complete_of(await ask(sim, "Hi")).finish_reason == "stop"

    play(scene, fault="error:UNAVAILABLE@1", fault_every=2)


def test_markers_are_text_unless_scripts_are_allowed() -> None:
    async def scene(sim: Sim) -> None:
        text = "Hi [[sim: fault=die]]"
        assert sim.engine.model.decode(ids_of(await ask(sim, text))) == "Hi", "the echo leaves a marker out"
        assert not sim.died.is_set()

    play(scene, allow_scripts=False)


@EVERY
def test_health_flaps(protocol: str) -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            answers = [await engine.HealthCheck(MODULES[protocol].HealthCheckRequest(), timeout=30) for _ in range(6)]
        said = [answer.status == "OK" if protocol == "trtllm" else answer.healthy for answer in answers]
        assert said == [True, True, False, False, True, True]

    play(scene, protocol=protocol, health="flap", health_flap_every=2)


def test_queue_limit() -> None:
    async def scene(sim: Sim) -> None:
        async with stub(sim) as engine:
            calls = [engine.Generate(message(sim, chat_ids(sim, "[[sim: fault=hang]]"), rid="a"), timeout=30)]
            await until(lambda: sim.counters.running == 1)
            calls.append(engine.Generate(message(sim, chat_ids(sim, "Hi"), rid="b"), timeout=30))
            await until(lambda: sim.counters.waiting == 1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [reply async for reply in engine.Generate(message(sim, chat_ids(sim, "Hi"), rid="c"), timeout=30)]
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [reply async for reply in engine.Generate(message(sim, chat_ids(sim, "Hi"), rid="a"), timeout=30)]
            assert caught.value.code() in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.RESOURCE_EXHAUSTED)
            for call in calls:
                call.cancel()

    play(scene, max_running=1, max_waiting=1)


@contextlib.contextmanager
def process(*flags: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`smg sim` as a process of its own, and the words of its ready line."""
    child = subprocess.Popen([sys.executable, "-m", "smg.sim", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child, child.stdout.readline().split()
    finally:
        child.kill()
        child.communicate(timeout=30)


def test_process_serves_and_ends_on_sigterm() -> None:
    with process("--protocol", "openai", "--status-port", "0", "--speed", "0") as (child, words):
        assert words[0] == "ready"
        assert words[2] == "status"
        with httpx.Client(trust_env=False, timeout=30) as client:
            answer = client.post(f"{words[1]}/v1/completions", json={"prompt": "Hello", "max_tokens": 3}).json()
            assert answer["usage"]["completion_tokens"] == 2
            assert client.get(f"{words[3]}/counters").json()["finished"] == 1
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 0


def test_process_dies_as_by_sigkill() -> None:
    with process("--fault", "die@2", "--speed", "0") as (child, words):

        async def scene() -> grpc.StatusCode:
            async with grpc.aio.insecure_channel(words[1].removeprefix("grpc://")) as channel:
                call = vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(
                    pb.GenerateRequest(request_id="r", tokenized=pb.TokenizedInput(input_ids=[300, 301, 302]), stream=True), timeout=30
                )
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    _ = [reply async for reply in call]
                return caught.value.code()

        assert asyncio.run(scene()) == grpc.StatusCode.UNAVAILABLE
        assert child.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.parametrize(
    "flags", [["--port", "-1"], ["--fault", "nonsense"], ["--model", os.devnull], ["--tool-format", "latin", "--output", "tool"]]
)
def test_wrong_flags_end_with_2(flags: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "smg.sim", *flags], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("smg sim: ")
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_an_error() -> None:
    async def scene(sim: Sim) -> None:
        port = int(sim.url.rpartition(":")[2])
        with pytest.raises((OSError, RuntimeError)):
            await start_sim(port=port)

    play(scene)
