"""The client side of HTTP/1.1: what engines may send and how, what they may do to a connection, and how many connections there are."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from smg.engine import EngineOptions, HttpCall, HttpEngine, HttpRequest
from smg.engine.http import pool as pool_module
from smg.errors import EngineBusy, EngineProtocol, EngineUnavailable
from tests.engine.certificates import make_certificates
from tests.engine.http.upstream import STREAM_HEAD, Asked, answer, chunked, upstream
from tests.server.serving import until

LIMIT = 1 << 20


def run(scene: Coroutine[None, None, None]) -> None:
    """In uvloop's loop, where no callback may fail."""
    faults: list[dict[str, object]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with asyncio.timeout(60):
            await scene

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    assert not faults


async def opened(url: str, **options: object) -> HttpEngine:
    engine = HttpEngine(url, options=EngineOptions(**options))
    await engine.start()
    return engine


async def asked(engine: HttpEngine, body: bytes = b"x") -> tuple[int, bytes]:
    call = await engine.open(HttpRequest(target="/v1/x", body=body))
    try:
        head = await call.head()
        data = await call.read(LIMIT)
        assert data is not None
        return head.status, data
    finally:
        call.close()


def saying(*pieces: bytes, close: bool = False) -> Callable[[Asked, asyncio.StreamWriter], Coroutine[None, None, None]]:
    """A script that sends the pieces, each by itself."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return script


@pytest.mark.parametrize(
    ("said", "status", "body"),
    [
        (answer(b"whole"), 200, b"whole"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"ab", b"c" * 5000) + b"0\r\n\r\n", 200, b"ab" + b"c" * 5000),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"ab") + b"0\r\nx-trailer: 1\r\n\r\n", 200, b"ab"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer(b"late"), 200, b"late"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (answer(b"", status="404 Not Found"), 404, b""),
    ],
    ids=["length", "chunks", "trailer", "interim", "no content", "empty"],
)
def test_answers_however_they_are_cut_leave_the_connection_usable(said: bytes, status: int, body: bytes) -> None:
    async def scene() -> None:
        for size in (1, 2, 3, 7, len(said)):
            script = saying(*(said[at : at + size] for at in range(0, len(said), size)) if size > 1 or len(said) < 300 else (said,))
            async with upstream(script) as server:
                engine = await opened(server.url)
                for _ in range(3):
                    assert await asked(engine) == (status, body)
                assert server.connections == 1
                await engine.close()

    run(scene())


@pytest.mark.parametrize("at_once", [True, False])
def test_trailers_are_no_headers(at_once: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n"
    rest = chunked(b"ab") + b"0\r\ncontent-type: c/d\r\nretry-after: 9\r\n\r\n"

    async def scene() -> None:
        async with upstream(saying(*([head + rest] if at_once else [head, rest]))) as server:
            engine = await opened(server.url)
            call = await engine.open(HttpRequest(target="/v1/chat/completions"))
            head_seen = await call.head()
            assert await call.read(100) == b"ab"
            assert head_seen.headers == [("content-type", "a/b"), ("transfer-encoding", "chunked")]
            call.close()
            await engine.close()

    run(scene())


def test_what_was_answered_in_part_on_a_used_connection_is_not_sent_again() -> None:
    async def scene() -> None:
        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(answer() if len(server.asked) == 1 else b"HTTP/1.1 200 OK\r\nconte")
            if len(server.asked) > 1:
                writer.close()

        async with upstream(script) as server:
            engine = await opened(server.url)
            await asked(engine)
            with pytest.raises(EngineUnavailable):
                await asked(engine)
            assert (len(server.asked), server.connections) == (2, 1)
            await engine.close()

    run(scene())


def test_a_place_that_comes_as_its_waiter_leaves_is_the_next_ones() -> None:
    async def scene() -> None:
        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(answer() if len(server.asked) > 1 else b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n12")
            if len(server.asked) == 1:
                await asyncio.Event().wait()

        async with upstream(script) as server:
            engine = HttpEngine(server.url, options=EngineOptions(max_connections=1))
            await engine.start()
            call = await engine.open(HttpRequest(target="/v1/x"))
            waiting = asyncio.ensure_future(asked(engine))
            await asyncio.sleep(0)
            assert engine._pool is not None
            assert engine._pool._waiting
            call.close()
            waiting.cancel()  # in the same turn of the loop
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert await asked(engine) == (200, b"{}")
            assert engine._pool._used == 0
            await engine.close()

    run(scene())


def test_an_answer_before_the_request_was_read_spoils_the_connection() -> None:
    """The rest of the body would be taken for the next request."""

    async def scene() -> None:
        connections = 0
        done = asyncio.Event()

        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(b"early"))
            await done.wait()
            writer.close()

        server = await asyncio.start_server(early, "127.0.0.1", 0, limit=1024)
        engine = await opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for number in (1, 2):
            call = await engine.open(HttpRequest(target="/v1/x", body=b"x" * (16 << 20)))
            assert await call.read(100) == b"early"
            call.close()
            assert connections == number
        done.set()
        await engine.close()
        server.close()

    run(scene())


@pytest.mark.parametrize("header", [b"", b"transfer-encoding: identity\r\n", b"Transfer-Encoding: Identity\r\n"])
def test_an_answer_that_ends_with_its_connection(header: bytes) -> None:
    async def scene() -> None:
        async with upstream(saying(b"HTTP/1.1 200 OK\r\n" + header + b"\r\nabc", b"def", close=True)) as server:
            engine = await opened(server.url)
            assert [await asked(engine), await asked(engine)] == [(200, b"abcdef")] * 2
            assert server.connections == 2
            await engine.close()

    run(scene())


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"ab"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"ab") + b"0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"ab"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nab",
    ],
    ids=["nothing", "half a head", "short of its length", "no last chunk", "half an end", "two codings", "unknown coding"],
)
def test_an_answer_that_breaks_off(said: bytes) -> None:
    async def scene() -> None:
        async with upstream(saying(said, close=True)) as server:
            engine = await opened(server.url)
            with pytest.raises(EngineUnavailable):
                await asked(engine)
            assert server.connections == 1, "what was answered in part, or on a new connection, is not sent again"
            await engine.close()

    run(scene())


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %b\r\n" % (i, b"y" * 1000) for i in range(1000)),
        b"HTTP/1.1 102 Processing\r\n\r\n" * 10000,
    ],
    ids=["no HTTP", "two lengths", "no chunk size", "upgrade", "endless head", "endless interim answers"],
)
def test_what_is_no_answer(said: bytes) -> None:
    async def scene() -> None:
        async with upstream(saying(said)) as server:
            engine = await opened(server.url)
            with pytest.raises(EngineProtocol):
                await asked(engine)
            await engine.close()

    run(scene())


def test_bytes_after_an_answer_spoil_the_connection() -> None:
    async def scene() -> None:
        async with upstream(saying(answer(b"mine") + answer(b"nobody's"))) as server:
            engine = await opened(server.url)
            assert [await asked(engine), await asked(engine)] == [(200, b"mine")] * 2
            assert server.connections == 2
            await engine.close()

    run(scene())


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    """The close crosses the second request on its way: the engine has read it and says nothing."""

    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        if request.body == b"first":
            writer.write(answer(b"1"))
        elif server.connections == 1:
            writer.transport.abort()
        else:
            writer.write(answer(b"2"))

    async def scene() -> None:
        nonlocal server
        async with upstream(script) as server:
            engine = await opened(server.url)
            assert await asked(engine, b"first") == (200, b"1")
            assert await asked(engine, b"second") == (200, b"2")
            assert server.connections == 2
            await engine.close()

    server = None
    run(scene())


def test_who_has_left_is_not_asked_for_again() -> None:
    """An engine that says nothing and closes, because its client closed its side, has not lost the request."""
    calls: list[HttpCall] = []

    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        if request.body == b"first":
            writer.write(answer(b"1"))
        else:
            calls[0].part()
            await asyncio.Event().wait()  # until its client is seen to leave

    async def scene() -> None:
        async with upstream(script) as server:
            engine = await opened(server.url)
            await asked(engine, b"first")
            with pytest.raises(EngineUnavailable):
                await engine.open(HttpRequest(target="/v1/x", body=b"second"), sent=calls.append)
            assert (len(server.asked), server.connections) == (2, 1)
            await engine.close()

    run(scene())


def test_old_idle_connections_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "IDLE_S", -1.0)

    async def scene() -> None:
        async with upstream(saying(answer())) as server:
            engine = await opened(server.url)
            for _ in range(3):
                await asked(engine)
            assert server.connections == 3
            await engine.close()

    run(scene())


def test_connections_are_bounded_and_their_places_handed_on() -> None:
    go_on: asyncio.Event
    now = most = 0

    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go_on.wait()
        now -= 1
        writer.write(answer(request.body))

    async def scene() -> None:
        nonlocal go_on
        go_on = asyncio.Event()
        async with upstream(script) as server:
            engine = await opened(server.url, max_connections=3)
            calls = [asyncio.ensure_future(asked(engine, b"%d" % i)) for i in range(20)]
            await until(lambda: now == 3)
            for left in calls[10:15]:
                left.cancel()
            go_on.set()
            done = await asyncio.gather(*calls, return_exceptions=True)
            kept = [(200, b"%d" % i) for i in range(20) if not 10 <= i < 15]
            assert [each for each in done if not isinstance(each, asyncio.CancelledError)] == kept
            assert (most, server.connections) == (3, 3)
            await engine.close()

    run(scene())


def test_who_waits_too_long_for_a_connection_is_told() -> None:
    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        async with upstream(script) as server:
            engine = await opened(server.url, max_connections=1, connect_timeout_s=1.0)
            hanging = asyncio.ensure_future(asked(engine))
            await until(lambda: server.asked)
            with pytest.raises(EngineBusy):
                await asked(engine)
            hanging.cancel()
            await asyncio.wait_for(server.left.wait(), 30)  # a call that is given up is seen by the engine
            await engine.close()
            assert len(engine._pool or ()) == 0

    run(scene())


def test_nobody_there() -> None:
    async def scene() -> None:
        async with upstream(saying()) as server:
            url = server.url
        engine = await opened(url)
        with pytest.raises(EngineUnavailable) as caught:
            await asked(engine)
        assert "127.0.0.1" not in caught.value.message
        await engine.close()
        with pytest.raises(EngineUnavailable):
            await asked(engine)

    run(scene())


def test_what_is_sent() -> None:
    async def scene() -> None:
        async with upstream(saying(answer())) as server:
            engine = await opened(f"{server.url}/prefix/", api_key="secret")
            large = b"y" * 100_000
            requests = (
                (HttpRequest(target="/v1/x?a=b", headers="x-one: 1\r\n", body=b"{}"), False),
                (HttpRequest(target="/v1/x", headers="authorization: Bearer own\r\n", body=large), True),
                (HttpRequest(method="GET", target="/health"), False),
                (HttpRequest(target="/v1/empty"), False),
            )
            for request, keyless in requests:
                (await engine.open(request, keyless=keyless)).close()
            first, second, third, fourth = server.asked
            assert first.head == (
                b"POST /prefix/v1/x?a=b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer secret\r\nx-one: 1\r\n"
                b"content-length: 2\r\n\r\n" % server.port
            )
            assert (second.headers["authorization"], second.body == large) == ("Bearer own", True)
            assert (third.line, "content-length" in third.headers) == ("GET /prefix/health HTTP/1.1", False)
            assert fourth.headers["content-length"] == "0"
            await engine.close()

    run(scene())


def test_what_cannot_be_sent_takes_no_place() -> None:
    async def scene() -> None:
        async with upstream(saying(answer())) as server:
            engine = await opened(server.url, max_connections=1, connect_timeout_s=1.0)
            for _ in range(2):
                with pytest.raises(UnicodeEncodeError):
                    await engine.open(HttpRequest(target="/v1/x?a=€"))
            assert (await asked(engine))[0] == 200
            await engine.close()

    run(scene())


async def next_piece(pieces: "asyncio.Queue[bytes]") -> bytes:
    return await asyncio.wait_for(pieces.get(), 30)


def test_pieces_are_poured_as_they_come_and_the_engine_waits_for_its_reader() -> None:
    allowed: asyncio.Semaphore
    sent = 0

    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        for number in range(3):
            await allowed.acquire()
            writer.write(chunked(b"piece %d" % number))
        await allowed.acquire()
        while True:
            writer.write(chunked(b"z" * 65536))
            await writer.drain()
            sent += 1

    async def scene() -> None:
        nonlocal allowed
        allowed = asyncio.Semaphore(0)
        async with upstream(script) as server:
            engine = await opened(server.url)
            call = await engine.open(HttpRequest(target="/v1/x"))
            pieces: asyncio.Queue[bytes] = asyncio.Queue()
            pouring = asyncio.ensure_future(call.pour(pieces.put_nowait))
            for number in range(3):
                allowed.release()
                assert await next_piece(pieces) == b"piece %d" % number
            call.hold()
            allowed.release()
            before, quiet = -1, 0
            while quiet < 50:  # until the sockets' buffers are full
                before, quiet = sent, quiet + 1 if sent == before else 0
                await asyncio.sleep(0.002)
            assert pieces.empty()
            call.go_on()
            assert await next_piece(pieces)
            pouring.cancel()
            await asyncio.gather(pouring, return_exceptions=True)
            call.close()
            await asyncio.wait_for(server.left.wait(), 30)
            await engine.close()

    run(scene())


def test_what_the_taker_raises_comes_out_and_what_nobody_takes_is_bounded() -> None:
    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunked(b"z" * 65536))
            await writer.drain()

    def refuse(data: bytes) -> None:
        raise LookupError("mine")

    async def scene() -> None:
        async with upstream(script) as server:
            engine = await opened(server.url)
            call = await engine.open(HttpRequest(target="/v1/x"))
            assert await call.read(300_000) is None
            pieces: list[bytes] = []
            pouring = asyncio.ensure_future(call.pour(pieces.append))
            await asyncio.sleep(0)
            assert 300_000 < len(pieces[0]) < 1 << 20
            pouring.cancel()
            await asyncio.gather(pouring, return_exceptions=True)
            with pytest.raises(LookupError, match="mine"):
                await call.pour(refuse)
            call.close()
            await engine.close()

    run(scene())


def test_a_connection_is_free_again_after_an_answer_that_had_to_wait() -> None:
    """A reader that holds up the engine in the very piece with which the answer ends must not leave the connection deaf."""
    go_on: asyncio.Semaphore

    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n")
        await go_on.acquire()
        writer.write(b"abc")

    async def scene() -> None:
        nonlocal go_on
        go_on = asyncio.Semaphore(0)
        async with upstream(script) as server:
            engine = await opened(server.url)
            for _ in range(3):
                call = await engine.open(HttpRequest(target="/v1/x"))
                pouring = asyncio.ensure_future(call.pour(lambda data, call=call: call.hold()))
                await asyncio.sleep(0)
                go_on.release()
                await pouring
                call.close()
            assert server.connections == 1
            await engine.close()

    run(scene())


def test_tls(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    async def scene() -> None:
        async with upstream(saying(answer(b"safe")), tls=context) as server:
            engine = await opened(f"https://localhost:{server.port}", ca_cert_path=str(folder / "ca.pem"))
            assert [await asked(engine), await asked(engine)] == [(200, b"safe")] * 2
            assert server.connections == 1
            await engine.close()
            stranger = await opened(f"https://localhost:{server.port}")
            with pytest.raises(EngineUnavailable):
                await asked(stranger)
            await stranger.close()

    run(scene())
