"""Which events of a stream come before its first token, after which alone silence is a fault; and clients that do not read."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from smg.errors import ClientGone
from smg.pipeline import pour
from smg.pipeline.pour import HELD_BYTES, Pour, is_opening
from tests.server.serving import until

CHUNK = b'data: {"id":"1","choices":[{"index":0,"delta":%s}]}\n\n'


@pytest.mark.parametrize(
    "event",
    [
        b": ping\n\n",
        b":\r\n\r\n",
        b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n',
        b'event: response.in_progress\r\ndata: {"type":"response.in_progress"}\r\n\r\n',
        b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n',
        b'event: ping\ndata: {"type": "ping"}\n\n',
        CHUNK % b'{"role": "assistant", "content": ""}',
        CHUNK % b'{"role":"assistant","content":""}',
    ],
)
@pytest.mark.parametrize("before", [b"", b"data: 1\n\n"])
def test_openings(event: bytes, before: bytes) -> None:
    assert is_opening(before + event)
    assert not is_opening(event + CHUNK % b'{"content":"Hi"}')


@pytest.mark.parametrize(
    "event",
    [
        CHUNK % b'{"content":"Hi"}',
        b"data: 1\n\n",
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
    ],
)
def test_events_of_an_engine_at_work(event: bytes) -> None:
    assert not is_opening(event)


class Call:
    """An engine that says one piece, and then nothing until it is held up no more."""

    def __init__(self) -> None:
        self.held = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def pour(self, take: Callable[[bytes], None]) -> None:
        take(b"piece")
        await self.over

    def hold(self) -> None:
        self.held = True

    def go_on(self) -> None:
        self.held = False

    def stop(self, error: Exception) -> None:
        self.over.set_exception(error)


class Client:
    """One that has not read so many bytes; `looks` counts how often that was asked."""

    def __init__(self) -> None:
        self.unread = 4 * HELD_BYTES
        self.looks = 0

    def __call__(self, chunk: bytes) -> bool:
        return True

    def backlog(self) -> int:
        self.looks += 1
        return self.unread


def test_a_client_that_reads_nothing_for_a_minute_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(pour, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(pour, "LAST_LOOK_S", 0.001)

    async def scene() -> None:
        call, client = Call(), Client()
        pouring = asyncio.ensure_future(Pour(call, client, begun=None, events=False).run())  # type: ignore[arg-type]

        async def pass_by(seconds: float) -> None:
            clock[0] += seconds
            seen = client.looks
            await until(lambda: pouring.done() or client.looks > seen + 1)

        await until(lambda: call.held)
        for _ in range(3):
            await pass_by(59.0)
            client.unread -= 1
            await pass_by(0.0)
        await pass_by(59.0)
        assert call.held
        assert not pouring.done()
        await pass_by(2.0)
        with pytest.raises(ClientGone, match="does not read"):
            await asyncio.wait_for(pouring, 20)

    asyncio.run(scene())
