"""A data worker's application with real services, in front of HTTP engines that say what a test wrote down. No processes."""

import asyncio
import contextlib
import socket
import tempfile
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec

from smg.config import Config
from smg.engine import ModelInfo
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.server.app import App
from smg.server.front import Front
from smg.server.services import build, close
from smg.worker import EngineRecord, EngineState, Snapshot, WorkerView
from smg.worker.snapshot import publish
from tests.engine.http.upstream import Script, Upstream, upstream
from tests.server.serving import serving
from tests.shm.memory import shared_memory

__all__ = ["Relaying", "config", "over", "relaying"]


class Relaying:
    """`servers`: the scripted engines; `http`: a client of the gateway."""

    def __init__(self, *, port: int, app: App, shm: Shm, engines: int, http: httpx.AsyncClient) -> None:
        self.port = port
        self.app = app
        self.shm = shm
        self.servers: list[Upstream] = []
        self._engines = engines
        self.http = http

    @property
    def load(self) -> tuple[int, int]:
        """Requests and prompt tokens counted at all engines."""
        slots, sums = array("q", range(self._engines)), array("q", [0] * 2 * self._engines)
        self.shm.sums(slots, sums)
        return sum(sums[::2]), sum(sums[1::2])

    def counted(self, name: str) -> dict[str, int]:
        """Counters of a family: the series' labels -> its value."""
        return {key.decode().removeprefix(name): values[0] for key, values in self.shm.totals() if key.decode().startswith(name)}


def config(**sections: dict[str, object]) -> Config:
    """The defaults but for these fields, and short pauses between attempts."""
    made = Config()
    sections["resilience"] = {"retry_initial_backoff_ms": 1, **sections.get("resilience", {})}
    for name, fields in sections.items():
        made = msgspec.structs.replace(made, **{name: msgspec.structs.replace(getattr(made, name), **fields)})
    return made


@contextlib.asynccontextmanager
async def relaying(
    *scripts: Script,
    front: str = "native",
    made: Config | None = None,
    names: tuple[str, ...] = (),
    served: str = "org/m",
    runtime: str = "vllm",
    records: tuple[dict[str, object], ...] = (),
) -> AsyncIterator[Relaying]:
    """One engine a script. They call their model `served` and list `names` besides; the gateway calls it org/m. `records`: what else is
    known of each.
    """
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(script)) for script in scripts]
        said = {"info": ModelInfo(served_name=served, names=names), "runtime": runtime, "model": "org/m", "aliases": names}
        more = records or ({},) * len(servers)
        engines = [{"url": server.url, **said, **fields} for server, fields in zip(servers, more, strict=True)]
        gateway = await stack.enter_async_context(over(*engines, front=front, made=made))
        gateway.servers = servers
        yield gateway


@contextlib.asynccontextmanager
async def over(*engines: dict[str, object], front: str = "native", made: Config | None = None) -> AsyncIterator[Relaying]:
    """A gateway in front of engines that are there, all of them ready; each by the fields of its record."""
    made = made or config()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shm = Shm(shared_memory(rows=2))
        records = [
            EngineRecord(slot=slot, epoch=shm.open_engine(slot, EngineState.READY), id=f"e{slot}", **fields)  # type: ignore[arg-type]
            for slot, fields in enumerate(engines)
        ]
        publish(Snapshot(engines=tuple(records)), folder=folder, shm=shm)
        services = await build(made, WorkerView(shm, row=1, folder=folder), meter=Meter(shm, row=1), control=None)
        stack.push_async_callback(close, services)
        app = App(services)
        port = await stack.enter_async_context(native(app, made) if front == "native" else serving(app))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False))
        yield Relaying(port=port, app=app, shm=shm, engines=len(engines), http=http)


@contextlib.asynccontextmanager
async def native(app: App, made: Config) -> AsyncIterator[int]:
    """Serves with our own front on a free port, which it gives."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    front = Front(app, config=made, loop=asyncio.get_running_loop())
    await front.serve(sock)
    try:
        yield sock.getsockname()[1]
    finally:
        await front.drain(5)
        front.close()
