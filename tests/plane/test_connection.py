"""The native connection before a scripted peer: how calls go well, how they end, what is sent."""

import asyncio

import pytest

from tests.plane.conftest import Run
from tests.plane.peer import (
    DATA,
    HEAD,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    block,
    data,
    frame,
    goaway,
    head,
    line,
    message,
    rst,
    settings,
    trailer,
    until,
    window,
)

BODIES = [b"one", b"", b"three" * 50, b"\0" * 7]


def test_a_call(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start(b"the request")
            await until(lambda: it.peer.body(1) == message(b"the request"))
            assert it.peer.of(DATA)[-1].flags == 1
            it.peer.send(head(1), *[data(1, message(body)) for body in BODIES], trailer(1))
            assert await heard.ended() == (0, "")
            assert heard.messages == BODIES
            assert it.connection.active == 0
            assert not it.peer.of(RST_STREAM)

    run(scene())


def test_one_byte_at_a_time(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start()
            await until(lambda: it.peer.streams)
            for byte in head(1) + b"".join(data(1, message(body)) for body in BODIES) + trailer(1):
                it.peer.send(bytes([byte]))
                await asyncio.sleep(0)
            assert await heard.ended() == (0, "")
            assert heard.messages == BODIES

    run(scene())


def test_messages_divided_at_every_byte() -> None:
    async def scene() -> None:
        whole = b"".join(map(message, BODIES[:3]))
        async with line() as it:
            for i, cut in enumerate(range(1, len(whole))):
                stream_id = 2 * i + 1
                heard = it.start()
                await until(lambda stream_id=stream_id: stream_id in it.peer.streams)
                it.peer.send(head(stream_id), data(stream_id, whole[:cut]), data(stream_id, whole[cut:]), trailer(stream_id))
                assert await heard.ended() == (0, "")
                assert heard.messages == BODIES[:3]

    asyncio.run(scene())


def only(status: object, text: str = "") -> bytes:
    """An answer that is nothing but trailers."""
    return head(1, (*HEAD, ("grpc-status", str(status)), ("grpc-message", text)), end=True)


PAGE = ((":status", "503"), ("content-type", "text/html"))


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        pytest.param(
            [head(1, (*HEAD, ("grpc-status", "3"), ("grpc-message", "no%20%C3%A9%zz%")), end=True)], 3, "no é%zz%", id="only trailers"
        ),
        pytest.param([head(1), data(1, message(b"x")), trailer(1, 8, "full")], 8, "full", id="after a message"),
        pytest.param([head(1), trailer(1, 0, "")], 0, "", id="nothing at all"),
        pytest.param([head(1, (*HEAD, ("grpc-status", "99")), end=True)], 99, "", id="unknown status"),
        pytest.param([head(1, (*HEAD, ("grpc-status", "x1")), end=True)], 2, "", id="no number"),
        pytest.param([head(1, (*HEAD, ("grpc-status", "0"))), rst(1, 8)], 1, "code 8", id="status in the head does not count"),
        pytest.param([head(1, (*HEAD, ("grpc-status", "13"), ("grpc-message", "%41" * 2000)), end=True)], 13, "A" * 300, id="long text"),
        pytest.param([head(1, PAGE), data(1, b"<html>go away</html>", end=True)], 14, "HTTP status 503", id="http error with a page"),
        pytest.param([head(1, [(":status", "404")], end=True)], 12, "HTTP status 404", id="http error"),
        pytest.param([head(1, [(":status", "418")], end=True)], 2, "HTTP status 418", id="strange http error"),
        pytest.param([head(1, [(":status", "200"), ("content-type", "text/html")]), data(1, b"hi", end=True)], 2, "not gRPC", id="a page"),
        pytest.param([head(1, [(":status", "100")]), head(1), trailer(1)], 0, "", id="informational"),
        pytest.param([head(1), data(1, message(b"x"), end=True)], 13, "without a status", id="no trailers"),
        pytest.param([head(1), data(1, message(b"abcdef")[:7]), trailer(1)], 13, "malformed", id="half a message"),
        pytest.param([head(1), data(1, message(b"abcdef")[:7]), trailer(1, 4)], 4, "", id="half a message and an error"),
        pytest.param([head(1), data(1, message(b"x", compressed=1)), trailer(1)], 13, "malformed", id="compressed"),
        pytest.param([head(1), data(1, message(b"x" * 1001)), trailer(1)], 8, "larger than max", id="too large"),
        pytest.param([head(1), data(1, b"\0\xff\xff\xff\xff")], 8, "larger than max", id="claims to be huge"),
        pytest.param([rst(1, 7)], 14, "code 7", id="refused"),
        pytest.param([head(1), rst(1, 2)], 13, "code 2", id="reset"),
        pytest.param([head(1), rst(1, 8)], 1, "code 8", id="cancelled"),
        pytest.param([rst(1, 11)], 8, "code 11", id="calm"),
        pytest.param([rst(1, 12)], 7, "code 12", id="security"),
        pytest.param([rst(1, 0)], 13, "without a status", id="reset without an error"),
        pytest.param([head(1, [("x-status", "200")])], 13, "code 1", id="head without a status"),
    ],
)
def test_how_calls_end(run: Run, answer: list[bytes], status: int, text: str) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start(message_limit=1000)
            await until(lambda: it.peer.streams)
            it.peer.send(*answer)
            got = await heard.ended()
            assert got[0] == status
            assert text in got[1]
            assert bool(text) == bool(got[1])
            again = it.start()
            await until(lambda: 3 in it.peer.streams)
            it.peer.send(head(3), trailer(3))
            assert await again.ended() == (0, "")

    run(scene())


def test_an_answer_before_the_request_is_sent(run: Run) -> None:
    async def scene() -> None:
        async with line(give_window=False) as it:
            heard = it.start(b"x" * 1_000_000)
            await until(lambda: len(it.peer.body(1)) == 65535)
            it.peer.send(head(1, (*HEAD, ("grpc-status", "8"), ("grpc-message", "too long")), end=True))
            assert await heard.ended() == (8, "too long")
            await until(lambda: it.peer.of(RST_STREAM))
            assert it.connection.active == 0

    run(scene())


def test_cancel(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard, other = it.start(), it.start()
            await until(lambda: len(it.peer.streams) == 2)
            heard.call.cancel()
            heard.call.cancel()
            await until(lambda: it.peer.of(RST_STREAM) == [Frame(RST_STREAM, 0, 1, b"\0\0\0\x08")])
            assert it.connection.active == 1
            it.peer.send(head(1), data(1, message(b"late")), trailer(1), head(3), data(3, message(b"mine")), trailer(3))
            assert await other.ended() == (0, "")
            assert other.messages == [b"mine"]
            assert (heard.messages, heard.ends) == ([], [])
            heard.call.resume()
            other.call.cancel()

    run(scene())


def test_big_request_through_small_windows(run: Run) -> None:
    async def scene() -> None:
        request = bytes(range(256)) * 32768  # 8 MB
        async with line(first=settings({INITIAL_WINDOW_SIZE: 1000})) as it:
            heard = it.start(request)
            await until(lambda: len(it.peer.body(1)) > 5000)
            it.peer.send(settings({INITIAL_WINDOW_SIZE: 1_000_000}))
            await until(lambda: it.peer.of(DATA)[-1].flags)
            assert it.peer.body(1) == message(request)
            it.peer.send(head(1), trailer(1))
            assert await heard.ended() == (0, "")

    run(scene())


def test_big_request_into_a_blocked_socket(run: Run) -> None:
    async def scene() -> None:
        request = b"abcdefgh" * 1_000_000
        async with line(first=settings({INITIAL_WINDOW_SIZE: 2**31 - 1}) + window(0, 2**31 - 1 - 65535)) as it:
            transport = it.peer.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            heard, small = it.start(request), it.start(b"small")
            await asyncio.sleep(0.02)
            assert len(it.peer.body(1)) < len(request)
            transport.resume_reading()  # type: ignore[attr-defined]
            await until(lambda: it.peer.body(1) == message(request))
            await until(lambda: it.peer.body(3) == message(b"small"))
            it.peer.send(head(1), trailer(1), head(3), trailer(3))
            assert await heard.ended() == await small.ended() == (0, "")

    run(scene())


def test_cancel_in_the_middle_of_a_big_request(run: Run) -> None:
    async def scene() -> None:
        async with line(give_window=False) as it:
            heard = it.start(b"x" * 1_000_000)
            await until(lambda: len(it.peer.body(1)) == 65535)
            heard.call.cancel()
            del heard
            await until(lambda: it.peer.of(RST_STREAM))
            it.peer.send(window(1, 1000), window(0, 100_000))
            other = it.start()
            await until(lambda: 3 in it.peer.streams)
            it.peer.send(head(3), trailer(3))
            assert await other.ended() == (0, "")

    run(scene())


def test_a_paused_call_is_bounded_and_resumes(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard, other = it.start(), it.start()
            await until(lambda: len(it.peer.streams) == 2)
            heard.call.pause()
            it.peer.send(head(1), head(3))
            sent = 0
            while sent + 5005 <= 262144:  # all that the stream's window allows
                it.peer.send(data(1, message(b"x" * 5000)))
                sent += 5005
            it.peer.send(data(3, message(b"passes")))
            await until(lambda: other.messages and sum(map(len, heard.messages)) == sent // 5005 * 5000)
            assert not [got for got in it.peer.of(WINDOW_UPDATE) if got.stream_id == 1]
            heard.call.resume()
            await until(lambda: [got for got in it.peer.of(WINDOW_UPDATE) if got.stream_id == 1])
            given = [int.from_bytes(got.payload, "big") for got in it.peer.of(WINDOW_UPDATE) if got.stream_id == 1]
            assert sum(given) == sent
            it.peer.send(data(1, message(b"end")), trailer(1))
            assert await heard.ended() == (0, "")
            assert heard.messages[-1] == b"end"

    run(scene())


def test_more_than_the_window_breaks_the_call_alone(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard, other = it.start(), it.start()
            await until(lambda: len(it.peer.streams) == 2)
            heard.call.pause()
            it.peer.send(head(1), *[data(1, b"\0\0\1\0\0" + b"x" * 65536) for _ in range(5)])
            status, text = await heard.ended()
            assert status == 13
            assert "code 3" in text
            it.peer.send(head(3), trailer(3))
            assert await other.ended() == (0, "")

    run(scene())


def test_a_thousand_calls(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            calls = [it.start(b"%d" % i) for i in range(1000)]
            await until(lambda: len(it.peer.streams) == 1000)
            for part in range(3):
                for i in range(1000):
                    it.peer.send(*([head(2 * i + 1)] if not part else []), data(2 * i + 1, message(b"%d.%d" % (i, part))))
            it.peer.send(*[trailer(2 * i + 1) for i in range(1000)])
            for i, heard in enumerate(calls):
                assert await heard.ended() == (0, "")
                assert heard.messages == [b"%d.%d" % (i, part) for part in range(3)]
            assert it.connection.active == 0

    run(scene())


def test_goaway_lets_earlier_calls_end(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            first, second = it.start(), it.start()
            await until(lambda: len(it.peer.streams) == 2)
            it.peer.send(head(1), goaway(1))
            assert (await second.ended())[0] == 14
            assert (it.connection.leaving, it.connection.room, it.connection.closed) == (True, False, False)
            with pytest.raises(ConnectionError):
                it.start()
            it.peer.send(data(1, message(b"still here")), trailer(1))
            assert await first.ended() == (0, "")
            assert first.messages == [b"still here"]
            await until(lambda: it.lost == 1 and it.peer.closed)

    run(scene())


def test_goaway_and_the_last_call_is_cancelled(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start()
            await until(lambda: it.peer.streams)
            it.peer.send(goaway(2**31 - 1))
            await until(lambda: it.connection.leaving)
            heard.call.cancel()
            await until(lambda: it.lost == 1 and it.peer.closed)

    run(scene())


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="http/1.1"),
        pytest.param(frame(HEADERS, 4, 2, block(HEAD)), id="even stream"),
        pytest.param(frame(HEADERS, 4, 99, block(HEAD)), id="idle stream"),
        pytest.param(frame(SETTINGS, 1, 0) + frame(5, 4, 1, b"\0\0\0\2" + block(HEAD)), id="push"),
        pytest.param(frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), id="no hpack"),
        pytest.param(frame(SETTINGS, 0, 0, b"12345"), id="odd settings"),
        pytest.param(settings({INITIAL_WINDOW_SIZE: 2**31}), id="window over the limit"),
        pytest.param(window(0, 2**31 - 1), id="window overflow"),
        pytest.param(b"\xff\xff\xff\0\0\0\0\0\1", id="frame over the limit"),
        pytest.param(frame(9, 4, 1, b"x"), id="continuation of nothing"),
        pytest.param(frame(HEADERS, 0, 1, b"") + frame(9, 0, 1, b"") * 100_000, id="endless continuation"),
        pytest.param(frame(PING, 0, 0, b"12345678") * 2000, id="flood of pings"),
        pytest.param(settings({4: 70_000}) * 2000, id="flood of settings"),
    ],
)
def test_noise_ends_the_connection(run: Run, noise: bytes) -> None:
    async def scene() -> None:
        async with line(polite=False) as it:
            heard = it.start()
            await until(lambda: it.peer.streams)
            it.peer.send(noise)
            assert (await heard.ended())[0] == 14
            await until(lambda: it.lost == 1 and it.connection.closed and it.connection.active == 0)
            with pytest.raises(ConnectionError):
                it.start()

    run(scene())


def test_a_lost_connection_ends_its_calls(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            calls = [it.start() for _ in range(3)]
            await until(lambda: len(it.peer.streams) == 3)
            it.peer.send(head(1), data(1, message(b"last words")), trailer(1, 5), head(3), data(3, message(b"half"))[:-2])
            it.peer.writer.close()
            assert await calls[0].ended() == (5, "")
            assert calls[0].messages == [b"last words"]
            assert (await calls[1].ended())[0] == (await calls[2].ended())[0] == 14
            for heard in calls:
                heard.call.resume()
                heard.call.cancel()

    run(scene())


def test_lost_with_a_request_half_sent(run: Run) -> None:
    async def scene() -> None:
        async with line(give_window=False) as it:
            heard = it.start(b"x" * 1_000_000)
            await until(lambda: it.peer.body(1))
            it.peer.writer.transport.abort()  # type: ignore[attr-defined]
            assert (await heard.ended())[0] == 14

    run(scene())
