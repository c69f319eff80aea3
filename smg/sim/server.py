"""One simulated engine from start to end: options come in, a listening `Sim` goes out. Called by tests (`start_sim`) and by `command`."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import grpc
import msgspec

from smg.sim.counters import Counters
from smg.sim.http import HttpServer
from smg.sim.kvlog import KvLog
from smg.sim.model import load_model
from smg.sim.options import SimOptions
from smg.sim.output import plan_output
from smg.sim.protocol import mlx, openai, sglang, tokenspeed, trtllm, vllm
from smg.sim.protocol.base import Engine
from smg.sim.ranks import Ranks
from smg.sim.script import parse_fault, script_from_options
from smg.sim.status import Status
from smg.sim.wire import Wire

__all__ = ["Sim", "open_sim", "start_sim"]

CHANNEL_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a silent second server
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
GRPC_PROTOCOLS = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm, "mlx": mlx, "tokenspeed": tokenspeed}
# Where a gateway has the legs meet that was told of no other port, as SGLang's own engines do.
BOOTSTRAP_PORT = 8998
WIRE_FAULTS = ("rst", "goaway", "die")


class Sim:
    """A running engine. `counters` are live; `url` is how a gateway addresses it; `status_url` is "" without a status port."""

    def __init__(self, options: SimOptions, *, own_process: bool) -> None:
        self.options = options
        self.url = ""
        self.status_url = ""
        self.died = asyncio.Event()
        self._own_process = own_process
        self._wire: Wire | None = None
        self._http: HttpServer | None = None
        self._status: HttpServer | None = None
        self._server: grpc.aio.Server | None = None
        self._folder = ""
        model = load_model(options.model, served_name=options.served_name, context_length=options.context_length)
        script = script_from_options(options, text=_text(options.text), ids=_ids(options.ids_file))
        plan_output(script, prompt_ids=[model.eos_ids[0]], choice=0, model=model)  # a wrong script ends the start, not the first request
        fault = parse_fault(options.fault) if options.fault else None
        self.scheduler = Ranks(options, model=model, script=script, fault=fault)
        self.engine = Engine(options, scheduler=self.scheduler, die=self.kill)
        self._closing: asyncio.Task[None] | None = None

    @property
    def counters(self) -> Counters:
        """What the engine counted so far."""
        return self.scheduler.counters

    @property
    def events(self) -> KvLog:
        """The KV event feed of the first rank."""
        return self.scheduler.ranks[0].log

    async def start(self) -> None:
        """Listens and serves."""
        self.scheduler.start()
        host, port, status_port = self.options.host, self.options.port, self.options.status_port
        if status_port >= 0 or self.options.role != "regular":
            self._status = HttpServer(Status(self.scheduler).handle)
            usual = BOOTSTRAP_PORT if self.options.role == "prefill" and self.options.meets else 0
            self.engine.status_port = await self._status.start(host, port=status_port if status_port >= 0 else usual)
            self.status_url = f"http://{host}:{self.engine.status_port}"
        if self.options.protocol == "openai":
            self._http = HttpServer()
            openai.add_to_server(openai.Servicer(self.engine), self._http)
            self.url = f"http://{host}:{await self._http.start(host, port=port)}"
        else:
            self.url = f"grpc://{host}:{await self._start_grpc(host, port)}"

    def kill(self) -> None:
        """Ends the engine as SIGKILL would: connections are reset, nothing is said. In a process of its own it is SIGKILL."""
        if self._own_process:
            os.kill(os.getpid(), signal.SIGKILL)
        self.died.set()
        for part in (self._wire, self._http, self._status):
            if part is not None:
                part.kill()

    async def close(self) -> None:
        """Ends the engine. May be called twice, and after `kill`."""
        for part in (self._wire, self._http, self._status):
            if part is not None:
                await part.close()
        if self._server is not None:
            await self._server.stop(None)
        await self.scheduler.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _start_grpc(self, host: str, port: int) -> int:
        protocol = GRPC_PROTOCOLS[self.options.protocol]
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS)
        protocol.add_to_server(protocol.Servicer(self.engine), self._server)
        if not self._needs_wire():
            port = self._server.add_insecure_port(f"{host}:{port}")
            await self._server.start()
            return port
        self._folder = tempfile.mkdtemp(prefix="smg-sim-")
        path = str(Path(self._folder) / "grpc.sock")
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()
        self._wire = Wire(path, die=self.kill)
        return await self._wire.start(host, port=port)

    def _needs_wire(self) -> bool:
        """In a process of its own, only scripts and some faults need the front before the server; it costs time for each token."""
        faults = self.options.fault.startswith(WIRE_FAULTS)
        return not self._own_process or self.options.allow_scripts or faults


async def open_sim(options: SimOptions, *, own_process: bool) -> Sim:
    """Starts an engine. `own_process`: the whole process is this engine. OSError, ValueError or FileNotFoundError when it cannot start."""
    sim = Sim(options, own_process=own_process)
    try:
        await sim.start()
    except BaseException:
        await sim.close()
        raise
    return sim


async def start_sim(*, protocol: str = "vllm", **options: Any) -> Sim:
    """Starts an engine inside this process, for tests: as fast as possible and obeying markers, unless the options say otherwise.

    `options` are the fields of SimOptions; msgspec.ValidationError when one is wrong.
    """
    if options.get("model") is None:
        options.pop("model", None)
    values = {"speed": 0.0, "allow_scripts": True, **options, "protocol": protocol}
    values["model"] = str(values.get("model", ""))
    return await open_sim(msgspec.convert(values, SimOptions), own_process=False)


def _text(value: str) -> str:
    """`@FILE` gives the file's text."""
    return Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value


def _ids(path: str) -> tuple[int, ...]:
    if not path:
        return ()
    return tuple(int(part) for part in Path(path).read_text(encoding="utf-8").replace(",", " ").split())
