"""Sinks that do what they like while they are told something: cancel, start calls, close the connection, raise."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from smg._ext import Call, Inbox, Sink
from tests.plane.conftest import Run
from tests.plane.peer import COMMON, RST_STREAM, Heard, data, head, line, message, trailer, until


def test_cancel_from_inside_a_wake(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            calls: list[Call] = []
            woken: list[int] = []

            def start(i: int) -> None:
                def leave(_: list[bytes]) -> None:
                    woken.append(i)
                    for call in calls:
                        call.cancel()

                calls.append(it.connection.call(COMMON, None, b"", Inbox(leave, lambda *_: woken.append(-1))))

            for i in range(3):
                start(i)
            await until(lambda: len(it.peer.streams) == 3)
            it.peer.send(*[head(i) + data(i, message(b"x")) for i in (1, 3, 5)])
            await until(lambda: len(it.peer.of(RST_STREAM)) == 3 and it.connection.active == 0)
            assert woken == [0]

    run(scene())


def test_a_call_that_nobody_holds_is_cancelled_from_inside_its_wake(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            held: dict[int, Call] = {}

            def start(i: int) -> None:
                held[i] = it.connection.call(COMMON, None, b"", Inbox(lambda _: held.pop(i).cancel(), lambda *_: None))

            for i in range(200):
                start(i)
            await until(lambda: len(it.peer.streams) == 200)
            it.peer.send(*[head(2 * i + 1) + data(2 * i + 1, message(b"x")) for i in range(200)])
            await until(lambda: len(it.peer.of(RST_STREAM)) == 200 and it.connection.active == 0)
            assert not held

    run(scene())


def test_start_from_inside_an_end(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            later: list[Heard] = []
            it.connection.call(COMMON, None, b"", Inbox(lambda _: None, lambda *_: later.append(it.start())))
            await until(lambda: it.peer.streams)
            it.peer.send(head(1), trailer(1))
            await until(lambda: later and len(it.peer.streams) == 2)
            it.peer.send(head(3), trailer(3))
            assert await later[0].ended() == (0, "")

    run(scene())


@pytest.mark.parametrize("at", ["messages", "end"])
def test_close_from_inside_a_sink(run: Run, at: str) -> None:
    async def scene() -> None:
        async with line() as it:

            def close(*_: object) -> None:
                it.connection.close()

            def ignore(*_: object) -> None:
                pass

            it.connection.call(COMMON, None, b"", Inbox(close if at == "messages" else ignore, close if at == "end" else ignore))
            others = [it.start(), it.start()]
            await until(lambda: len(it.peer.streams) == 3)
            it.peer.send(*[head(i) + data(i, message(b"x")) + trailer(i) for i in (1, 3, 5)])
            assert [await other.ended() for other in others] in ([(0, "")] * 2, [(14, "the connection was closed")] * 2)
            assert it.connection.active == 0
            it.connection.close()

    run(scene())


@pytest.mark.parametrize("at", ["messages", "end"])
def test_a_sink_that_raises_harms_no_other(at: str) -> None:
    faults: list[dict[str, Any]] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with line() as it:
            ends: list[tuple[int, str]] = []

            def fail(*_: object) -> None:
                raise KeyError("mine")

            bad = Inbox(fail, lambda *end: ends.append(end)) if at == "messages" else Inbox(lambda _: None, fail)
            it.connection.call(COMMON, None, b"", bad)
            good = it.start()
            await until(lambda: len(it.peer.streams) == 2)
            it.peer.send(head(1), data(1, message(b"x")), head(3), data(3, message(b"y")), trailer(3))
            if at == "end":
                it.peer.send(trailer(1))
            assert await good.ended() == (0, "")
            assert good.messages == [b"y"]
            await until(lambda: it.connection.active == 0)
            assert ends == ([(13, "the reader of the answer failed")] if at == "messages" else [])
            assert len(it.peer.of(RST_STREAM)) == (at == "messages")
        assert [type(fault["exception"]) for fault in faults] == [KeyError]

    asyncio.run(scene())


def test_nothing_is_told_from_inside_call(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            it.peer.writer.transport.abort()  # type: ignore[attr-defined]
            started: list[bool] = []
            told: list[bool] = []
            for _ in range(100):
                sink = Inbox(lambda _: None, lambda *_: told.append(bool(started)))
                started.clear()
                try:
                    it.connection.call(COMMON, None, b"x" * 100_000, sink)
                except ConnectionError:
                    break
                started.append(True)
            await until(lambda: it.connection.closed)
            assert all(told)

    run(scene())


def test_a_bare_sink_is_refused(run: Run) -> None:
    async def scene() -> None:
        async with line() as it:
            with pytest.raises(TypeError):
                it.connection.call(COMMON, None, b"", Sink())
            with pytest.raises(ValueError, match="grpc-timeout"):
                it.connection.call(COMMON, b"1m\r\nb: c", b"", Inbox(print, print))
            assert it.connection.active == 0

    run(scene())


def test_calls_never_started_can_be_used() -> None:
    call = Call()
    call.pause()
    call.resume()
    call.linger()
    call.cancel()


@pytest.mark.parametrize("how", ["end", "cancel", "close"])
def test_nothing_is_kept(how: str) -> None:
    class Owner:
        def __init__(self) -> None:
            self.sink = Inbox(self.take, self.end)

        def take(self, messages: list[bytes]) -> None:
            pass

        def end(self, status: int, text: str) -> None:
            pass

    async def scene() -> None:
        async with line() as it:
            gc.disable()
            try:
                owner = Owner()
                kept = weakref.ref(owner)
                call = it.connection.call(COMMON, None, b"", owner.sink)
                await until(lambda: it.peer.streams)
                if how == "end":
                    it.peer.send(head(1), trailer(1))
                elif how == "cancel":
                    call.cancel()
                else:
                    it.connection.close()
                del owner, call
                await until(lambda: it.connection.active == 0)
                assert kept() is None
            finally:
                gc.enable()

    asyncio.run(scene())
