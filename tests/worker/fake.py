"""A fake engine driver: what it says and how it fails is set by the test."""

import asyncio
import io
import pathlib
import zipfile
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

from smg.config import Config
from smg.config.tree import Engines, Health
from smg.engine import Engine, EngineDelta, EngineOptions, EngineRequest, Features, Load, ModelInfo, ServerInfo
from smg.errors import EngineUnavailable, SmgError
from smg.obs.metrics import Meter
from smg.obs.shm import CONTROL_ROW, Shm
from smg.worker import Detector, Fleet, Registry
from tests.shm.memory import shared_memory

__all__ = ["FakeEngine", "Rig", "archive", "until"]


def archive(files: dict[str, bytes]) -> bytes:
    """A zip with these files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return data.getvalue()


async def until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Returns when the condition holds; fails the test when that takes too long."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  what is waited for is in shared memory
            await asyncio.sleep(0.002)


class FakeEngine(Engine):
    """Answers from class attributes of a subclass made by `Rig`, so that the test can change them while it runs."""

    runtime: ClassVar[str] = "fake"
    features: ClassVar[Features] = Features(data_parallel_rank=True, disaggregation="sequential")
    rig: ClassVar["Rig"]

    async def start(self) -> None:
        self.rig.started.append(self)

    async def close(self) -> None:
        self.rig.closed.append(self)

    def check(self, request: EngineRequest) -> None:
        pass

    async def generate(self, request: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
        yield EngineDelta()

    async def abort(self, request_id: str) -> None:
        pass

    async def health(self) -> bool:
        self.rig.checks += 1
        self.rig.fail()
        return self.rig.healthy

    async def model_info(self) -> ModelInfo:
        self.rig.fail()
        return self.rig.info

    async def server_info(self) -> ServerInfo:
        return self.rig.server

    async def loads(self) -> list[Load]:
        self.rig.polls += 1
        return self.rig.loads

    async def tokenizer_archive(self) -> bytes:
        self.rig.fetched += 1
        if isinstance(self.rig.archive, SmgError):
            raise self.rig.archive
        return self.rig.archive


class Rig:
    """A registry with a watch over fake engines."""

    def __init__(
        self, folder: pathlib.Path, *, urls: tuple[str, ...] = ("grpc://a:1",), health: Health | None = None, shm: Shm | None = None
    ) -> None:
        self.config = Config(engines=Engines(worker_urls=urls), health=health or Health())
        self.folder = folder
        self.shm = shm or Shm(shared_memory(rows=4, engines=8))
        self.up = True
        self.healthy = True
        self.info = ModelInfo(served_name="m", model_path="/nowhere/m", context_length=100)
        self.server = ServerInfo(version="1.2", active_requests=3, data_parallel_size=2)
        self.loads = [Load(running=1, waiting=2, generated_per_s=1.5), Load(running=3, used_tokens=5, max_tokens=10)]
        self.archive: bytes | SmgError = archive({"tokenizer.json": b"{}"})
        self.checks = self.polls = self.fetched = 0
        self.started: list[Engine] = []
        self.closed: list[Engine] = []
        self.registry = Registry(self.shm, folder=folder)

    def fail(self) -> None:
        if not self.up:
            raise EngineUnavailable("down")

    def open_driver(self, url: str, *, runtime: str, options: EngineOptions) -> Engine:
        return type("Driver", (FakeEngine,), {"rig": self})(url, options=options)

    async def detect_runtime(self, url: str, *, options: EngineOptions, timeout_s: float) -> str:
        self.fail()
        return "fake"

    def detector(self) -> Detector:
        return Detector(self.config, state_dir=self.folder, detect_runtime=self.detect_runtime, open_driver=self.open_driver)

    def fleet(self) -> Fleet:
        meter = Meter(self.shm, row=CONTROL_ROW)
        return Fleet(self.config, shm=self.shm, registry=self.registry, detector=self.detector(), meter=meter)
