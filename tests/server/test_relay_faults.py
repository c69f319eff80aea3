"""Engines over HTTP that fail in ways that take time, or in a circle: silence in mid-stream, loss, fullness, a gateway for an engine."""

import asyncio

import pytest

from smg.pipeline.tending import Tender
from smg.worker import EngineState
from smg.worker.breaker import Condition
from tests.engine.http.upstream import STREAM_HEAD, Asked, answer, chunked
from tests.server.relaying import Relaying, config, relaying
from tests.server.serving import until
from tests.server.test_relay import ASKED, FRONTS, hang, idle, run, saying

IDLE_S = 100.0
PART = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n12"
STREAMED = {**ASKED, "stream": True}


class Clock:
    """Seconds as a test sets them, for a gateway's looks."""

    def __init__(self, gateway: Relaying) -> None:
        self.now_s = 1000.0
        self.relay = gateway.app.services.relay
        self.relay._tender = Tender(idle_s=IDLE_S, clock=lambda: self.now_s)

    def after(self, seconds: float) -> None:
        """Lets time pass."""
        for _ in range(20):
            self.now_s += seconds / 20
            self.relay.tend()


def begun(*pieces: bytes) -> object:
    """A stream that says this and falls silent."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(*pieces))
        await asyncio.Event().wait()

    return script


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", b'data: {"error":{"message":"the engine fell silent in the middle of its answer","type":"timeout_error"'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"timeout_error"'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","code":"engine_timeout"'),
    ],
)
def test_silence_in_mid_stream(front: str, path: str, told: bytes) -> None:
    async def scene() -> None:
        async with relaying(begun(b"data: 1\n\n"), front=front) as gateway:
            clock = Clock(gateway)
            asking = asyncio.ensure_future(gateway.http.post(path, json=STREAMED))
            await until(lambda: gateway.load == (1, 0))
            await until(lambda: gateway.servers[0].asked)
            await until(lambda: clock.after(IDLE_S) or asking.done())
            assert (await asking).content.startswith(b"data: 1\n\n" + told)
            await asyncio.wait_for(gateway.servers[0].left.wait(), 30)
            await idle(gateway)
            assert Condition.of(gateway.shm.breaker(0)).count == 1
            assert not gateway.app.services.relay._passing

    run(scene())


@pytest.mark.parametrize("said", [b'data: {"half', b'event: response.created\ndata: {"type":"response.created"}\n\n'])
def test_an_engine_may_think_as_long_as_it_likes_before_the_first_token(said: bytes) -> None:
    async def scene() -> None:
        async with relaying(begun(said)) as gateway:
            clock = Clock(gateway)
            asking = asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json=STREAMED))
            await until(lambda: gateway.servers[0].asked)
            for _ in range(5):
                clock.after(IDLE_S)
                await asyncio.sleep(0.01)
            assert not asking.done()
            asking.cancel()
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bad", [hang, saying(STREAM_HEAD), saying(PART)], ids=["hang", "head", "part"])
def test_a_request_that_waits_for_a_lost_engine_goes_to_another_one(bad: object, stream: bool) -> None:
    whole = STREAM_HEAD + chunked(b"data: 1\n\n") + b"0\r\n\r\n" if stream else answer(b'{"ok":1}')

    async def hanging(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await bad(asked, writer)  # type: ignore[operator]
        await writer.drain()
        await asyncio.Event().wait()

    async def scene() -> None:
        async with relaying(hanging, saying(whole), made=config(routing={"policy": "passthrough"})) as gateway:
            asking = asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json={**ASKED, "stream": stream}))
            await until(lambda: gateway.servers[0].asked)
            gateway.shm.set_engine_state(0, EngineState.NOT_READY)
            gateway.app.services.relay.tend()
            reply = await asking
            assert (reply.status_code, reply.content) == (200, b"data: 1\n\n" if stream else b'{"ok":1}')
            await asyncio.wait_for(gateway.servers[0].left.wait(), 30)
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize(("status", "code"), [("429 Too Many Requests", None), ("503 Service Unavailable", "engine_unavailable")])
@pytest.mark.parametrize(("more", "wait"), [("", "1"), ("retry-after: 7\r\n", "7")])
def test_a_full_engine_is_asked_once_when_there_is_no_other(status: str, code: str | None, more: str, wait: str) -> None:
    async def scene() -> None:
        async with relaying(saying(answer(b'{"mine":1}', status=status, more=more))) as gateway:
            reply = await gateway.http.post("/v1/chat/completions", json=ASKED)
            assert (reply.status_code, reply.headers["retry-after"]) == (int(status[:3]), wait)
            assert reply.json() == {"mine": 1} if code is None else reply.json()["error"]["code"] == code
            assert len(gateway.servers[0].asked) == 1
            assert gateway.counted("smg_worker_retries_total") == {}
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_every_engine_is_asked_once_when_all_are_full(status: str) -> None:
    async def scene() -> None:
        async with relaying(*[saying(answer(b"{}", status=status))] * 3) as gateway:
            reply = await gateway.http.post("/v1/chat/completions", json=ASKED)
            assert reply.status_code == int(status[:3])
            assert [len(server.asked) for server in gateway.servers] == [1, 1, 1]
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", b'"code":"loop_detected"'),
        ("/v1/messages", b'{"type":"error","error":{"type":"api_error"'),
        ("/v1/responses", b'"code":"loop_detected"'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_is_its_own_engine(front: str, path: str, told: bytes, stream: bool) -> None:
    passed: list[str] = []

    async def scene() -> None:
        async def itself(asked: Asked, writer: asyncio.StreamWriter) -> None:
            passed.append(asked.headers["x-smg-hops"])
            reader, again = await asyncio.open_connection("127.0.0.1", gateway.port)
            head = asked.head.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nconnection: close\r\n")
            again.write(head + asked.body)
            writer.write(await reader.read())
            writer.close()
            again.close()

        async with relaying(itself, front=front) as gateway:
            reply = await gateway.http.post(path, json={**ASKED, "stream": stream})
            assert (reply.status_code, reply.headers["x-smg-error-code"]) == (508, "loop_detected")
            assert told in reply.content
            assert passed == ["1", "2", "3", "4"]
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize(("said", "sent"), [("2", "3"), ("x", "1"), ("-1", "1"), ("9999999", "1"), ("\xd9\xa2", "1")])
def test_hops_are_counted_on(said: str, sent: str) -> None:
    async def scene() -> None:
        async with relaying(saying(answer())) as gateway:
            reply = await gateway.http.post("/v1/chat/completions", json=ASKED, headers={b"x-smg-hops": said.encode("latin-1")})
            assert reply.status_code == 200
            assert gateway.servers[0].asked[0].headers["x-smg-hops"] == sent

    run(scene())
