"""Clients that leave, stall, flood or dawdle: they cost what the limits say, and the application learns of it."""

import asyncio
import contextlib
import pathlib
import socket
import time

import pytest

from smg.server.front import Limits
from tests.server.front.support import BOUND_S, contexts, place, request, responses, run, until
from tests.stopwatch import Stopwatch

QUICK = Limits(tick_s=0.02, head_s=0.2, idle_s=0.2, linger_s=0.2, flush_s=0.2)


def rss_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_leaves_is_noticed_at_once(how):
    async def main():
        async with place() as served, served.client() as (_, writer):
            writer.write(request("/hang"))
            await until(lambda: served.front._tasks)
            watch = Stopwatch()
            if how == "half":
                writer.write_eof()
            elif how == "reset":
                writer.transport.abort()
            else:
                writer.close()
            await until(lambda: served.app.left)
            assert watch.seconds() < 0.5

    run(main())


def test_a_client_that_only_shut_its_sending_side_gets_what_is_answered_at_once():
    async def main():
        async with place() as served:
            return responses(
                await served.send(request("/echo", b"a", close=False) + request("/echo", b"b", close=False), half_close=True)
            ), responses(await served.send(request("/hang", close=False), half_close=True))

    two, hang = run(main())
    assert [body[-1:] for _, _, body in two] == [b"a", b"b"]
    assert [body for _, _, body in hang] == [b"done"]


def test_a_client_that_leaves_in_its_body():
    async def main():
        async with place() as served:
            return await served.send(request("/pieces", b"abc")[:-1], half_close=True), served.app

    raw, app = run(main())
    assert app.seen == []
    assert [status for status, _, _ in responses(raw)] == [500]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_client_that_stops_reading_is_given_up(encrypted, certificate):
    """The kernel's own buffers are no part of the process; this test's client shares it, and reads nothing."""
    tls = contexts(certificate) if encrypted else (None, None)

    async def main():
        async with place(tls=tls[0]) as served:
            await served.send(request()) if not encrypted else None
            async with served.client(ssl=tls[1]) as (_, writer):
                writer.transport.pause_reading()
                before = rss_bytes()
                writer.write(request("/flow"))
                peak = before
                deadline = time.monotonic() + BOUND_S
                while not served.app.left and time.monotonic() < deadline:
                    peak = max(peak, rss_bytes())
                    await asyncio.sleep(0.001)
                await until(lambda: not served.front._connections)
                return max(peak, rss_bytes()) - before, served.app.left

    growth, left = run(main())
    assert left
    assert left[0] < 64 << 20
    assert growth < 16 << 20  # of 200 MB; alone it is under 4, but a process that has run other tests moves by some more


def test_a_client_that_reads_slowly_gets_everything():
    async def main():
        async with place(Limits(client_buffer_bytes=100_000)) as served, served.client() as (reader, writer):
            writer.write(request("/large", close=False) + request("/echo", b"next"))
            raw = bytearray()
            while part := await asyncio.wait_for(reader.read(100_000), BOUND_S):
                raw += part
                await asyncio.sleep(0.001)
            return responses(bytes(raw))

    large, after = run(main())
    assert large[2] == bytes(4 << 20)
    assert after[2].endswith(b"next")


def test_requests_wait_until_earlier_responses_are_sent():
    async def main():
        limits = Limits(client_buffer_bytes=100_000, tick_s=0.02, flush_s=0.3)
        async with place(limits) as served, served.client() as (_, writer):
            writer.transport.pause_reading()
            writer.write(request("/large", close=False) * 50)
            await until(lambda: served.front._connections)
            before = rss_bytes()
            peak = before
            while served.front._connections:
                peak = max(peak, rss_bytes())
                await asyncio.sleep(0.01)
            return peak - before

    assert run(main()) < 10 << 20


def test_a_body_that_nobody_reads_is_held_up():
    async def main():
        async with place() as served:
            sock = socket.create_connection(("127.0.0.1", served.address))
            sock.setblocking(False)
            with contextlib.closing(sock):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(sock, b"POST /hang HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n")
                await until(lambda: served.front._tasks)
                before = rss_bytes()
                sent = 0
                with contextlib.suppress(TimeoutError):
                    while sent < 100 << 20:
                        await asyncio.wait_for(loop.sock_sendall(sock, bytes(1 << 20)), 0.3)
                        sent += 1 << 20
                return sent, rss_bytes() - before

    sent, growth = run(main())
    assert sent < 32 << 20
    assert growth < 4 << 20


def test_pipelined_requests_are_held_up():
    async def main():
        async with place() as served, served.client() as (_, writer):
            writer.write(request("/hang", close=False))
            writer.write(request("/echo", b"x", close=False) * 200_000)
            await until(lambda: served.front._tasks)
            await asyncio.sleep(0.1)
            [connection] = served.front._connections
            assert len(connection._pending) < 1 << 20

    run(main())


def test_an_early_answer_reaches_a_client_that_is_still_sending():
    """Without lingering, the unread bytes would reset the connection and take the response with them."""

    async def main():
        async with place() as served, served.client() as (reader, writer):
            writer.write(b"POST /deaf HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
            for _ in range(8):
                writer.write(bytes(65536))
                await asyncio.sleep(0.01)
            return responses(await asyncio.wait_for(reader.read(), BOUND_S))

    assert [(status, headers["connection"]) for status, headers, _ in run(main())] == [(413, "close")]


def test_lingering_is_bounded():
    async def main():
        async with place(QUICK) as served:
            for flood in (b"", bytes(1 << 16)):
                async with served.client() as (reader, writer):
                    writer.write(b"POST /deaf HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
                    await asyncio.wait_for(reader.readuntil(b"too long"), BOUND_S)
                    start = time.monotonic()
                    with contextlib.suppress(OSError):
                        while flood and served.front._connections:
                            writer.write(flood)
                            await writer.drain()
                    await until(lambda: not served.front._connections)
                    assert time.monotonic() - start < BOUND_S

    run(main())


@pytest.mark.parametrize(("data", "status"), [(b"", None), (b"GET /", 408), (b"GET / HTTP/1.1\r\nHost: h\r\nX: ", 408)])
def test_a_head_must_arrive_in_time(data, status):
    """Also one that comes byte by byte: the clock starts once."""

    async def main():
        async with place(QUICK) as served, served.client() as (reader, writer):
            start = time.monotonic()
            writer.write(data)
            reading = asyncio.ensure_future(reader.read())
            while not reading.done() and time.monotonic() - start < BOUND_S:
                await asyncio.wait([reading], timeout=0.02)
                if data and not reading.done():
                    writer.write(b"a")
            assert time.monotonic() - start < Limits().head_s
            return responses(await reading)

    found = run(main())
    assert [each[0] for each in found] == ([status] if status else [])


def test_an_idle_connection_is_closed_and_a_busy_one_is_not():
    async def main():
        async with place(QUICK) as served, served.client() as idle, served.client() as busy:
            idle[1].write(request(close=False))
            busy[1].write(request("/hang", close=False))
            start = time.monotonic()
            assert await asyncio.wait_for(idle[0].read(), BOUND_S)
            assert 0.1 < time.monotonic() - start < BOUND_S  # usually it would take 75 s
            served.app.release.set()
            assert await asyncio.wait_for(busy[0].readuntil(b"done"), BOUND_S)

    run(main())


def test_a_closing_connection_whose_client_reads_nothing_ends():
    async def main():
        async with place(QUICK) as served, served.client() as (_, writer):
            writer.transport.pause_reading()
            writer.write(request("/large") * 3)
            await until(lambda: served.front._connections)
            await until(lambda: not served.front._connections)

    run(main())
