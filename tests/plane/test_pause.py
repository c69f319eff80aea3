"""Back-pressure: an engine that keeps to HTTP/2's windows sends 200 MB to a call that is paused, and memory stays within a window."""

import resource

import pytest

from smg._ext import Call, Inbox
from smg.engine import EngineOptions
from smg.engine.native import NativeLink
from tests.engine.fake import serve
from tests.plane.conftest import Run
from tests.plane.peer import until

STREAM_WINDOW = 262_144
PREFIX = 5


class Reader:
    """A call's messages, counted; `pause_after` bytes it pauses itself, from inside its sink."""

    def __init__(self, *, pause_after: int = 0) -> None:
        self.call: Call | None = None
        self.bytes = 0
        self.ends: list[tuple[int, str]] = []
        self._pause_after = pause_after
        self.sink = Inbox(self._take, lambda *end: self.ends.append(end))

    def _take(self, messages: list[bytes]) -> None:
        self.bytes += sum(map(len, messages))
        if self._pause_after and self.bytes >= self._pause_after and self.call is not None:
            self.call.pause()

    async def start(self, link: NativeLink) -> "Reader":
        """Starts the call."""
        self.call = await link.call("/s/Generate", b"", self.sink, timeout_s=60)
        return self


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_a_paused_call_costs_a_window(run: Run, size: int) -> None:
    count = 200_000_000 // size if size > 1000 else 20_000

    async def scene() -> None:
        async with serve({"Generate": [b"x" * size] * count, "Other": [b"y"]}) as fake:
            link = NativeLink(fake.url, options=EngineOptions())
            try:
                slow = Reader()
                call = await slow.start(link)
                assert call.call is not None
                call.call.pause()
                full = (STREAM_WINDOW // (size + PREFIX) - 1) * size  # the last message may be there in part
                await until(lambda: slow.bytes >= full)
                for _ in range(20):  # what else the connection carries goes on
                    other = Reader()
                    other.call = await link.call("/s/Other", b"", other.sink, timeout_s=60)
                    await until(lambda other=other: other.ends)
                    assert (other.bytes, other.ends) == (1, [(0, "")])
                before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                assert slow.bytes <= STREAM_WINDOW
                call.call.resume()
                await until(lambda: slow.ends)
                assert slow.ends == [(0, "")]
                assert slow.bytes == size * count
                assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 * 1024
            finally:
                link.close()

    run(scene())


def test_paused_again_and_again(run: Run) -> None:
    """Each pause lets at most one window through, counted from its start."""

    async def scene() -> None:
        async with serve({"Generate": [b"x" * 10_000] * 500, "Other": [b"y"]}) as fake:
            link = NativeLink(fake.url, options=EngineOptions())
            try:
                slow = await Reader(pause_after=1).start(link)
                assert slow.call is not None
                while not slow.ends:
                    before = slow.bytes
                    await until(lambda before=before: slow.bytes > before or slow.ends)
                    other = Reader()
                    other.call = await link.call("/s/Other", b"", other.sink, timeout_s=60)
                    await until(lambda other=other: other.ends)
                    assert slow.bytes - before <= 2 * STREAM_WINDOW  # one that was open before the pause, and one more
                    slow.call.resume()
                assert (slow.bytes, slow.ends) == (5_000_000, [(0, "")])
            finally:
                link.close()

    run(scene())


def test_a_paused_call_is_cancelled(run: Run) -> None:
    async def scene() -> None:
        async with serve({"Generate": [b"x" * 10_000] * 1000}) as fake:
            link = NativeLink(fake.url, options=EngineOptions())
            try:
                for _ in range(300):  # their bytes must not stay out of the connection's window of 64 MB
                    slow = await Reader(pause_after=1).start(link)
                    await until(lambda slow=slow: slow.bytes)
                    assert slow.call is not None
                    slow.call.cancel()
                whole = await Reader().start(link)
                await until(lambda: whole.ends)
                assert (whole.bytes, whole.ends) == (10_000_000, [(0, "")])
            finally:
                link.close()

    run(scene())
