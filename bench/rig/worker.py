"""A data worker's parts in this process, without supervisor and HTTP: for the micro-benchmarks of `bench.stages`.

In: a model and the addresses of engines. Out: the services that handlers get, the application, and what stands in for a front.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec

from bench.rig.model import BenchModel
from bench.rig.processes import CONTEXT, SERVED
from smg.api.base import Request, Services
from smg.config import Config
from smg.engine import ModelInfo
from smg.obs.metrics import HttpObserver, Meter
from smg.obs.shm import Shm, make_block
from smg.server.admin import call
from smg.server.app import App
from smg.server.front.scope import Headers, Peer, Scope
from smg.server.services import build, close
from smg.worker import EngineRecord, EngineState, Snapshot, WorkerView
from smg.worker.snapshot import publish

__all__ = ["Exchanged", "application", "config_of", "http_request", "open_services", "view_of"]

PEER = Peer("127.0.0.1:1", "127.0.0.1:2", "http")
ROW = 1  # of this process in the shared block; 0 is the control process's


def config_of(model: BenchModel, *, policy: str = "round_robin") -> Config:
    """Gives the configuration of a worker that serves plain text."""
    config = Config()
    parts = msgspec.structs.replace(config.model, model_path=str(model.folder), reasoning_parser="none", tool_call_parser="none")
    return msgspec.structs.replace(config, model=parts, routing=msgspec.structs.replace(config.routing, policy=policy))


def view_of(folder: Path, *, urls: list[str], protocol: str) -> tuple[WorkerView, Shm]:
    """Gives a view of ready engines at these addresses, and the shared block."""
    shm = Shm(make_block(rows=ROW + 1).memory)
    records = tuple(
        EngineRecord(
            slot=slot,
            epoch=shm.open_engine(slot, EngineState.READY),
            id=f"engine-{slot}",
            url=url,
            runtime=protocol,
            model=SERVED,
            context_length=CONTEXT,
            info=ModelInfo(served_name=SERVED),
        )
        for slot, url in enumerate(urls)
    )
    publish(Snapshot(engines=records), folder=folder, shm=shm)
    return WorkerView(shm, row=ROW, folder=folder), shm


@contextlib.asynccontextmanager
async def open_services(config: Config, *, urls: list[str], protocol: str) -> AsyncIterator[tuple[Services, Meter]]:
    """Gives the services of a worker, and closes them."""
    with tempfile.TemporaryDirectory() as folder:
        view, shm = view_of(Path(folder), urls=urls, protocol=protocol)
        meter = Meter(shm, row=ROW)
        services = await build(config, view, meter=meter, control=partial(call, Path(folder) / "none"))
        try:
            yield services, meter
        finally:
            await close(services)


def application(services: Services, meter: Meter) -> App:
    """Gives the RSGI application as a worker has it."""
    return App(services, observer=HttpObserver(meter))


def http_request(body: bytes, number: int = 0) -> Request:
    """Gives what a handler gets of a posted chat."""

    async def read() -> bytes:
        return body

    request_id = f"chatcmpl-{number:032x}"
    return Request(method="POST", path="/v1/chat/completions", headers=headers_of(body), request_id=request_id, received_s=0.0, read=read)


def headers_of(body: bytes) -> Headers:
    """Gives the headers that go with a body."""
    return Headers([("host", "127.0.0.1"), ("content-type", "application/json"), ("content-length", str(len(body)))])


class Exchanged:
    """Stands for a front: gives a body, and drops what it is told. `size` counts the bytes of the answer, `status` is its status."""

    def __init__(self, method: str, path: str, body: bytes = b"") -> None:
        self.scope = Scope(method=method, target=path, http_version="1.1", headers=headers_of(body), peer=PEER)
        self.status = 0
        self.size = 0
        self._body = body
        self._gone: asyncio.Future[None] | None = None

    async def __call__(self) -> bytes:
        return self._body

    def arrived(self) -> bytes:
        """Gives the body, which is here already."""
        return self._body

    def client_disconnect(self) -> "asyncio.Future[None]":
        """Gives a future that is never done: this client stays."""
        self._gone = self._gone or asyncio.get_running_loop().create_future()
        return self._gone

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Takes a whole response."""
        self.status = status
        self.size = len(body)

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Takes a response without body."""
        self.status = status

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> "Exchanged":
        """Takes the head of a stream; the chunks come to `send_bytes`."""
        self.status = status
        return self

    def send_bytes(self, chunk: bytes) -> None:
        """Takes a chunk."""
        self.size += len(chunk)
