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
from smg.obs.shm import Shm, make_block
from smg.server.app import App
from smg.server.front import Front
from smg.server.services import build, close
from smg.worker import EngineRecord, EngineState, Snapshot, WorkerView
from smg.worker.snapshot import publish
from tests.engine.http.upstream import Script, Upstream, upstream
from tests.server.serving import serving

__all__ = ["Relaying", "config", "relaying"]


class Relaying:
    """`servers`: the engines; `http`: a client of the gateway."""

    def __init__(self, *, port: int, app: App, shm: Shm, servers: list[Upstream], http: httpx.AsyncClient) -> None:
        self.port = port
        self.app = app
        self.shm = shm
        self.servers = servers
        self.http = http

    @property
    def load(self) -> tuple[int, int]:
        """Requests and prompt tokens counted at all engines."""
        slots, sums = array("q", range(len(self.servers))), array("q", [0] * 2 * len(self.servers))
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
    *scripts: Script, front: str = "native", made: Config | None = None, names: tuple[str, ...] = (), served: str = "org/m"
) -> AsyncIterator[Relaying]:
    """One engine a script. They call their model `served` and list `names` besides; the gateway calls it org/m."""
    made = made or config()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [await stack.enter_async_context(upstream(script)) for script in scripts]
        shm = Shm(make_block(rows=2).memory)
        info = ModelInfo(served_name=served, names=names)
        records = [
            EngineRecord(
                slot=slot,
                epoch=shm.open_engine(slot, EngineState.READY),
                id=f"e{slot}",
                url=server.url,
                runtime="vllm",
                model="org/m",
                aliases=names,
                info=info,
            )
            for slot, server in enumerate(servers)
        ]
        publish(Snapshot(engines=tuple(records)), folder=folder, shm=shm)
        services = await build(made, WorkerView(shm, row=1, folder=folder), meter=Meter(shm, row=1), control=None)
        stack.push_async_callback(close, services)
        app = App(services)
        port = await stack.enter_async_context(native(app, made) if front == "native" else serving(app))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False))
        yield Relaying(port=port, app=app, shm=shm, servers=servers, http=http)


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
