"""What the tests of the native plane share: the loop that they run in."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.engine.certificates import make_certificates

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine in a loop in which no callback may fail."""

    def run(scene: Coroutine[Any, Any, None]) -> None:
        faults: list[dict[str, Any]] = []

        def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if "PollerCompletionQueue" not in context["message"]:  # grpc's own, of a loop that an earlier test closed
                faults.append(context)

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(note)
            await scene

        with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
            runner.run(watched())
        assert not faults

    return run


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and certificates of a server and a client."""
    return make_certificates(tmp_path_factory.mktemp("tls"))
