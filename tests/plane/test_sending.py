"""When the native connection sends: calls of one iteration of the loop together, nothing later than its end, window updates rarely."""

import asyncio
import socket

import pytest

from smg._ext import Connection, Headers, Inbox
from tests.plane.conftest import Run
from tests.plane.peer import COMMON, DATA, HEADERS, RST_STREAM, WINDOW_UPDATE, data, head, line, message, trailer, until


class Counting(socket.socket):
    """A socket that tells how often something was there to be read."""

    def packets(self) -> int:
        """Reads what is there; each packet of a SOCK_SEQPACKET pair is one send of the other side."""
        count = 0
        while True:
            try:
                if not self.recv(1 << 20):
                    return count
            except BlockingIOError:
                return count
            count += 1


def pair() -> tuple[socket.socket, Counting]:
    """Two ends on which packets keep their bounds, so that sends can be counted."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    counting = Counting(theirs.family, theirs.type, fileno=theirs.detach())
    ours.setblocking(False)
    counting.setblocking(False)
    return ours, counting


@pytest.mark.parametrize(("calls", "sends"), [(1, 1), (7, 1), (8, 1), (9, 2), (20, 3)])
def test_calls_of_one_iteration_leave_together(run: Run, calls: int, sends: int) -> None:
    async def scene() -> None:
        ours, theirs = pair()
        with theirs:
            connection = Connection(asyncio.get_running_loop(), ours, lambda: None)
            connection.start(lambda: None)
            assert theirs.packets() == 1
            for _ in range(2):
                for _ in range(calls):
                    connection.call(COMMON, b"9S", b"request", Inbox(lambda _: None, lambda *_: None))
                early = theirs.packets()
                assert early == calls // 8
                await asyncio.sleep(0)
                assert early + theirs.packets() == sends
            connection.close()
            await asyncio.sleep(0)

    run(scene())


def test_closed_before_the_iteration_ends(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start()
            it.connection.close()
            assert heard.ends == [(14, "the connection was closed")]
            await until(lambda: it.peer.closed)
            assert not it.peer.streams

    run(scene())


def test_cancelled_before_the_iteration_ends(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            gone, stays = it.start(b"gone"), it.start(b"stays")
            gone.call.cancel()
            await until(lambda: it.peer.body(3) == message(b"stays"))
            it.peer.send(head(3), trailer(3))
            assert await stays.ended() == (0, "")
            assert not gone.ends
            assert it.connection.active == 0
            assert not it.peer.body(1)

    run(scene())


def test_window_updates_are_rare(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start()
            await until(lambda: it.peer.streams)
            before = len(it.peer.of(WINDOW_UPDATE))
            it.peer.send(head(1))
            for i in range(2000):  # token messages: 52 KB, less than half of the stream's window
                it.peer.send(data(1, message(b"%021d" % i)))
            await until(lambda: len(heard.messages) == 2000)
            assert len(it.peer.of(WINDOW_UPDATE)) == before
            for i in range(18_000):  # 520 KB in all: twice the window, at one update each half of it
                it.peer.send(data(1, message(b"%021d" % i)))
            await until(lambda: len(heard.messages) == 20_000)
            it.peer.send(trailer(1))
            assert await heard.ended() == (0, "")
            assert 3 <= len(it.peer.of(WINDOW_UPDATE)) - before <= 4

    run(scene())


def test_a_whole_answer_gets_a_moment_to_end(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            well, slow, other = it.start(), it.start(), it.start()
            await until(lambda: len(it.peer.streams) == 3)
            well.call.linger()
            slow.call.linger()
            slow.call.linger()
            it.peer.send(head(1), trailer(1), head(3), head(5))
            assert await well.ended() == (0, "")
            assert not it.peer.of(RST_STREAM)
            it.connection._sweep()  # type: ignore[attr-defined]  # as its timer does, twice
            assert not it.peer.of(RST_STREAM)
            it.connection._sweep()  # type: ignore[attr-defined]
            await until(lambda: [got.stream_id for got in it.peer.of(RST_STREAM)] == [3])
            assert not slow.ends
            it.peer.send(trailer(5))
            assert await other.ended() == (0, "")
            for heard in (well, slow, other):
                heard.call.linger()

    run(scene())


def test_the_connection_closes_while_a_call_lingers(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            heard = it.start()
            heard.call.linger()
            it.connection.close()
            assert heard.ends == [(14, "the connection was closed")]

    run(scene())


def test_headers(run: Run) -> None:
    async def scene() -> None:
        headers = Headers(b"/a/B", b"host:1", secure=True, metadata=[(b"authorization", b"Bearer k")])
        async with line() as it:
            for timeout in (b"1m", None):
                it.connection.call(headers, timeout, b"", Inbox(lambda _: None, lambda *_: None))
            await until(lambda: len(it.peer.of(DATA)) == 2)
            first, second = [got.payload for got in it.peer.of(HEADERS)]
            assert len(first) > len(second)  # the second has them in the table, and no deadline

    run(scene())


@pytest.mark.parametrize(
    ("path", "metadata"), [(b"/a\n", []), (b"/a", [(b"x", b"a\r\nb: c")]), (b"/a", [(b"x", b"\0")]), (b"/a", [(b"x", b"y")] * 26)]
)
def test_headers_that_cannot_be_sent(path: bytes, metadata: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ValueError, match="header"):
        Headers(path, b"h", secure=False, metadata=metadata)


def test_as_many_headers_as_there_may_be() -> None:
    assert Headers(b"/a", b"h", secure=False, metadata=[(b"x", b"y")] * 25)
