"""Every response of a Granian worker that is on its way out says that its connection ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from smg.server.closing import ClosingProtocol

GIVEN = [("content-type", "text/plain")]


class Inner:
    """Granian's protocol object: keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def __call__(self) -> bytes:
        return b"whole"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"in "
        yield b"pieces"

    async def client_disconnect(self) -> str:
        return "left"

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append((name, *arguments))


@pytest.mark.parametrize(
    ("name", "body"),
    [("response_empty", ()), ("response_str", ("text",)), ("response_bytes", (b"text",)), ("response_stream", ())],
)
def test_every_kind_of_response_asks_for_the_end(name: str, body: tuple[object, ...]) -> None:
    inner, headers = Inner(), list(GIVEN)
    getattr(ClosingProtocol(inner), name)(200, headers, *body)
    assert inner.told == [(name, 200, [*GIVEN, ("connection", "close")], *body)]
    assert headers == GIVEN, "the caller's own list is left alone"


def test_requests_are_read_as_before() -> None:
    async def run() -> None:
        protocol = ClosingProtocol(Inner())
        assert await protocol() == b"whole"
        assert [piece async for piece in protocol] == [b"in ", b"pieces"]
        assert await protocol.client_disconnect() == "left"

    asyncio.run(run())
