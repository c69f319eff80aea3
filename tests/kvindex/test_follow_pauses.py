"""When an engine whose KV events cannot be had is asked for them again."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smg.engine import Engine
from smg.errors import EngineUnavailable
from smg.kvindex import follow
from smg.worker import EngineRecord, EngineState
from tests.kvindex.test_follow import Stage, stage, until

URL = "grpc://127.0.0.1:1"


class Asked:
    """What is asked for events and has none to give. `pauses`: what the pause was at each time; `looks`: how often it was looked at."""

    def __init__(self, made: Stage) -> None:
        self.pauses: list[float] = []
        self.looks = 0
        self._made = made
        self._state = made.registry.state
        made.followers._pool.get = self._get  # type: ignore[method-assign]
        made.registry.state = self._looked  # type: ignore[method-assign]

    async def _get(self, record: EngineRecord) -> Engine:
        self.pauses.append(self._made.follower()._pause_s)
        raise EngineUnavailable("gone", detail="UNAVAILABLE: gone")

    def _looked(self, record: EngineRecord) -> EngineState:
        self.looks += 1
        return self._state(record)

    async def looked(self) -> None:
        """Waits until it was looked at some times more."""
        enough = self.looks + 20
        await until(lambda: self.looks >= enough)

    async def back(self) -> None:
        """Lets the engine be away and come back."""
        for state in (EngineState.NOT_READY, EngineState.READY):
            self._made.registry.set_state(URL, state)
            await self.looked()


def play(scene: Callable[[Stage, Asked], Awaitable[None]], folder: Path, monkeypatch: pytest.MonkeyPatch, *, first_s: float) -> None:
    async def run() -> None:
        async with stage(folder) as made:
            asked = Asked(made)
            made.add(URL, "vllm")
            await scene(made, asked)

    monkeypatch.setattr(follow, "LOOK_S", 0.002)
    monkeypatch.setattr(follow, "FIRST_PAUSE_S", first_s)
    monkeypatch.setattr(follow, "LONGEST_PAUSE_S", 3600.0)
    asyncio.run(run())


def test_once_each_time_that_it_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not because it goes on to be ready. Each time it is told once that the engine cannot be reached."""

    async def scene(made: Stage, asked: Asked) -> None:
        await until(lambda: len(asked.pauses) == 1)
        for times in (1, 2, 3):
            await asked.looked()
            assert len(asked.pauses) == len(made.lost) == times
            await asked.back()

    play(scene, tmp_path, monkeypatch, first_s=3600.0)


def test_soon_again_after_it_has_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(made: Stage, asked: Asked) -> None:
        await until(lambda: len(asked.pauses) > 0 and made.follower()._pause_s > 0.5)
        await asked.back()
        await until(lambda: 0.01 in asked.pauses[1:])

    play(scene, tmp_path, monkeypatch, first_s=0.01)
