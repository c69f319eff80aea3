"""What an engine's own status becomes, before anything of its answer is passed on."""

import asyncio
from typing import cast

import pytest

from smg.engine import Head, HttpCall
from smg.errors import EngineUnavailable
from smg.pipeline.relay_faults import fault_of


class Call:
    """An answer without a body."""

    async def read(self, limit: int) -> bytes | None:
        return b""


@pytest.mark.parametrize("status", [502, 503])
@pytest.mark.parametrize(
    ("said", "told"),
    [("7", 7), ("0", 0), ("99999", 99999), ("100000", 1), ("", 1), ("-7", 1), ("1.5", 1), ("٧", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1)],
)
def test_how_long_an_engine_is_to_be_left_alone(status: int, said: str, told: int) -> None:
    """Seconds of a day or so, in digits of ASCII; a second where it names no such number."""
    head = Head(status=status, headers=[("retry-after", said)])
    error = asyncio.run(fault_of(cast(HttpCall, Call()), head, keyless=False))
    assert isinstance(error, EngineUnavailable)
    assert error.retry_after_s == told
