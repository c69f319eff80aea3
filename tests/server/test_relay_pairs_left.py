"""Clients that leave requests which two engines over HTTP compute together, and engines that die: nobody keeps anything for them. Whole
answers of simulated pairs too."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from smg.engine import HttpRequest
from smg.pipeline import relay_pairs
from smg.pipeline.relay_request import RelayRequest, changed
from smg.sim.server import Sim, start_sim
from tests.engine.http.upstream import answer
from tests.server.relaying import Relaying, over, relaying
from tests.server.serving import until
from tests.server.test_relay import hang, idle, run, saying
from tests.server.test_relay_pairs import HANDED, PAIR, PARAMS, RUNTIMES, asking, helping


def test_what_an_engine_said_while_its_client_left_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had computed the prompt at that moment: the cache is fetched, by which the engine may give it up."""
    monkeypatch.setattr(relay_pairs, "CAUSE_S", 20.0)

    async def scene() -> None:
        async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            began.set()
            await reader.read()  # to the end of the client's side
            writer.write(answer(HANDED))
            await writer.drain()
            writer.close()

        began = asyncio.Event()
        server = await asyncio.start_server(ends, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with relaying(hang, saying(answer()), records=({"role": "prefill", "url": url}, {"role": "decode"})) as gateway:
            asked = asyncio.ensure_future(asking(gateway, max_tokens=50, stream=True))
            await began.wait()
            asked.cancel()
            await until(lambda: gateway.servers[1].asked)
            released = json.loads(gateway.servers[1].asked[0].body)
            assert (released["max_tokens"], released["stream"], released["kv_transfer_params"]) == (1, False, json.loads(PARAMS))
            await idle(gateway)
        server.close()

    run(scene())


def test_an_engine_that_has_nearly_computed_the_prompt_is_let_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told to stop as it ends it would keep the cache, and say to nobody where."""
    monkeypatch.setattr(relay_pairs, "PATIENCE_S", 60.0)

    async def scene() -> None:
        go = asyncio.Event()

        async with relaying(helping(go), saying(answer()), records=PAIR) as gateway:
            asked = asyncio.ensure_future(asking(gateway))
            await until(lambda: gateway.servers[0].asked)
            asked.cancel()
            await until(lambda: gateway.app.inflight == 0)
            assert not gateway.servers[0].left.is_set()
            go.set()
            await until(lambda: gateway.servers[1].asked)
            assert PARAMS in gateway.servers[1].asked[0].body
            await idle(gateway)

    run(scene())


class Opening:
    """A decode engine whose answer begins when it is told to. `sent`: it may see the request; `ended`: how its call did."""

    def __init__(self) -> None:
        self.go, self.answers, self.sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.ended = ""

    async def open(self, message: HttpRequest, *, keyless: bool, sent: Callable[[Any], None]) -> "Opening":
        try:
            await self.go.wait()
            sent(self)
            self.sent.set()
            await self.answers.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        return self

    def close(self) -> None:
        self.ended = "closed"


@pytest.mark.parametrize("heard", ["at once", "in time", "too late"])
def test_a_decode_engine_hears_of_a_cache_also_when_the_client_leaves(heard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can tell the prefill engine that it is not needed (known bug B121)."""
    monkeypatch.setattr(relay_pairs, "CAUSE_S", 0.05 if heard == "too late" else 60.0)

    async def scene() -> None:
        async with relaying(hang, hang, records=PAIR) as gateway:
            request = RelayRequest(
                request_id="1",
                endpoint="chat",
                model="org/m",
                name="",
                canonical="",
                target="/",
                body=b"{}",
                rename=lambda body, name: body,
            )
            pair, engine = gateway.app.services.relay._pairs.of(request), Opening()
            asked = asyncio.create_task(pair._fetched(engine, HttpRequest(target="/")))  # type: ignore[arg-type]
            if heard != "at once":
                engine.go.set()
                await engine.sent.wait()
            await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            assert asked.cancelled()
            assert pair.claimed is (heard != "at once")
            if heard == "in time":
                assert not engine.ended
                engine.answers.set()
            await until(lambda: engine.ended)
            assert engine.ended == ("closed" if heard == "in time" else "cancelled")

    run(scene())


@contextlib.asynccontextmanager
async def simulated(
    runtime: str, *, front: str = "native", kv_lease_s: float = 1e6, **options: Mapping[str, Any]
) -> AsyncIterator[tuple[Relaying, Sim, Sim]]:
    """A gateway in front of a simulated pair, whose blocks are counted. A cache that nobody fetches is kept for
    `kv_lease_s`."""
    async with contextlib.AsyncExitStack() as stack:
        sims = []
        for role in ("prefill", "decode"):
            sim = await start_sim(
                protocol="openai", owned_by=runtime, role=role, status_port=0, kv_lease_s=kv_lease_s, **options.get(role, {})
            )
            stack.push_async_callback(sim.close)
            sims.append(sim)
        engines = [
            {"url": sim.url, "runtime": runtime, "model": "sim-model", "role": sim.options.role, "bootstrap_port": sim.engine.status_port}
            for sim in sims
        ]
        yield await stack.enter_async_context(over(*engines, front=front)), sims[0], sims[1]


async def free(gateway: Relaying, *sims: Sim) -> None:
    """Waits until no engine holds a block and nothing is counted."""
    await idle(gateway)
    held = [
        lambda sim=sim: sim.counters.blocks_used + sim.counters.blocks_pinned + sim.counters.running + sim.counters.waiting for sim in sims
    ]
    await until(lambda: not any(count() for count in held), within_s=20)


TEXT = "Say something. " * 20 + "And no more."
CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": TEXT}]}


@RUNTIMES
@pytest.mark.parametrize(("front", "stream"), [("native", False), ("native", True), ("granian", True)])
def test_the_answer_of_a_pair(runtime: str, front: str, stream: bool) -> None:
    async def scene() -> None:
        async with simulated(runtime, front=front) as (gateway, prefill, decode):
            for number in range(3):
                reply = await gateway.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
                assert reply.status_code == 200, reply.text
                pieces = re.findall(r'"content":"(.*?)"', reply.text)
                assert "".join(pieces) == TEXT
                assert decode.counters.transfers == number + 1
            assert (prefill.counters.finished, prefill.counters.tokens, decode.counters.finished) == (3, 3, 3)
            await free(gateway, prefill, decode)

    run(scene())


@RUNTIMES
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave_at", ["prefill", "between", "decode", "answer"])
def test_a_client_that_leaves_frees_both(runtime: str, stream: bool, leave_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known bugs B119, B121."""
    slow: dict[str, Mapping[str, Any]] = {
        "prefill": {"prefill": {"ttft_ms": 60000}},
        "between": {},
        "decode": {"decode": {"ttft_ms": 60000}},
        "answer": {"decode": {"itl_ms": 50}},
    }

    async def scene() -> None:
        between = asyncio.Event()

        async def held(
            request: RelayRequest, message: HttpRequest, values: Mapping[str, bytes], too: Mapping[str, bytes] = relay_pairs.EMPTY
        ) -> HttpRequest:
            if leave_at == "between" and b"remote_host" in values.get("kv_transfer_params", b"") and not between.is_set():
                between.set()
                await asyncio.Event().wait()
            return await changed(request, message, values, too)

        monkeypatch.setattr(relay_pairs, "changed", held)
        async with simulated(runtime, **slow[leave_at]) as (gateway, prefill, decode):
            reached: dict[str, Callable[[], object]] = {
                "prefill": lambda: prefill.counters.running,
                "between": between.is_set,
                "decode": lambda: decode.counters.transfers,
                "answer": lambda: decode.counters.tokens > 3,
            }
            asked = asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
            await until(reached[leave_at])
            asked.cancel()
            await until(lambda: decode.counters.transfers == (leave_at != "prefill"))
            await free(gateway, prefill, decode)
            if leave_at in ("decode", "answer"):
                assert decode.counters.aborted == 1

    if (runtime, leave_at) != ("sglang", "between"):  # both parts run at once there
        run(scene())


@RUNTIMES
@pytest.mark.parametrize("dies", ["prefill", "decode"])
def test_an_engine_that_dies_leaves_nothing_behind(runtime: str, dies: str) -> None:
    async def scene() -> None:
        lease_s = 5.0 if (runtime, dies) == ("vllm", "decode") else 1e6  # nobody is left who could fetch it
        async with simulated(runtime, kv_lease_s=lease_s, **{dies: {"ttft_ms": 60000}}) as (gateway, prefill, decode):
            many = [asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json=CHAT)) for _ in range(8)]
            await until(lambda: (prefill if dies == "prefill" else decode).counters.running == 8)
            (prefill if dies == "prefill" else decode).kill()
            for reply in await asyncio.gather(*many):
                assert reply.status_code in (502, 503), reply.text
            await free(gateway, decode if dies == "prefill" else prefill)

    run(scene())
