"""A pipeline over simulated engines, without processes: the registry is filled by hand, everything else is real."""

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from smg.config import Config
from smg.engine import ServerInfo
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.pipeline import ModelDirectory, Pipeline
from smg.sim.server import Sim, start_sim
from smg.types.event import Content, Event, Finished, Reasoning, ToolArguments, ToolCall, Usage
from smg.types.job import ChatInput, Job, Sampling
from smg.worker import EnginePool, EngineRecord, EngineState, Role, Snapshot, WorkerView
from smg.worker.snapshot import publish
from tests.shm.memory import shared_memory

MODEL = Path(__file__).parents[2] / "smg" / "sim" / "data" / "model"
PROTOCOLS = ("vllm", "sglang", "trtllm", "mlx", "tokenspeed")


class Fleet(msgspec.Struct):
    """What a test drives and looks at."""

    pipeline: Pipeline
    models: ModelDirectory
    view: WorkerView
    sims: list[Sim]

    @property
    def load(self) -> int:
        """Requests counted at all engines together."""
        roles: tuple[Role, ...] = ("regular", "prefill", "decode")
        return sum(candidate.requests for role in roles for candidate in self.view.candidates("sim-model", role=role))


@asynccontextmanager
async def fleet(*protocols: str, config: Config | None = None, **options: object) -> AsyncIterator[Fleet]:
    """Starts one engine for each protocol, and a pipeline that routes to all of them. `vllm prefill` and `vllm decode` are parts of one,
    and `prefill`, `decode` the options of each part.
    """
    config = config or Config()
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, model_path=str(MODEL)))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sims = []
        for protocol in protocols or ("vllm",):
            name, _, role = protocol.partition(" ")
            apart = {"role": role, "status_port": 0} if role else {}
            sims.append(await start_sim(protocol=name, **{**apart, **options.get(role, {})} if role else options))
            stack.push_async_callback(sims[-1].close)
        shm = Shm(shared_memory(rows=2))
        records = []
        for slot, sim in enumerate(sims):
            runtime = sim.options.protocol
            epoch = shm.open_engine(slot, EngineState.READY)
            server = ServerInfo(kv_connector="NixlConnector", bootstrap_port=sim.engine.status_port)
            records.append(
                EngineRecord(
                    slot=slot,
                    epoch=epoch,
                    id=f"e{slot}",
                    url=sim.url,
                    runtime=runtime,
                    model="sim-model",
                    context_length=2048,
                    role=sim.options.role,
                    server=server if sim.options.role != "regular" else ServerInfo(),
                )
            )
        publish(Snapshot(engines=tuple(records)), folder=folder, shm=shm)
        view = WorkerView(shm, row=1, folder=folder)
        pool = EnginePool(config)
        models = ModelDirectory(config, view, created=int(time.time()))
        pipeline = Pipeline(config, models=models, view=view, pool=pool, meter=Meter(shm, row=1))
        stack.push_async_callback(pool.close)
        stack.push_async_callback(models.close)
        stack.push_async_callback(pipeline.close)
        yield Fleet(pipeline=pipeline, models=models, view=view, sims=sims)


def chat(text: str = "hello there", *, n: int = 1, max_tokens: int = 64, **fields: object) -> Job:
    """A chat job with one user message."""
    known = {"request_id": f"test-{time.monotonic_ns()}", "surface": "test", "model": "sim-model", "stream": True}
    sampling = fields.pop("sampling", Sampling(n=n, max_tokens=max_tokens))
    source = fields.pop("input", ChatInput(messages=({"role": "user", "content": text},)))
    return Job(**{**known, "input": source, "sampling": sampling, "deadline_s": time.monotonic() + 30, **fields})  # type: ignore[arg-type]


async def collect(fleet: Fleet, job: Job) -> list[Event]:
    """Runs a job to its end."""
    return [event async for events in fleet.pipeline.run(job) for event in events]


def text_of(events: list[Event], choice: int = 0) -> str:
    """Joins the visible text of a choice."""
    return "".join(event.text for event in events if isinstance(event, Content) and event.choice == choice)


def thoughts_of(events: list[Event], choice: int = 0) -> str:
    """Joins the reasoning of a choice."""
    return "".join(event.text for event in events if isinstance(event, Reasoning) and event.choice == choice)


def calls_of(events: list[Event], choice: int = 0) -> list[tuple[str, str]]:
    """Gives (name, arguments) of each call of a choice."""
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCall) and event.choice == choice:
            calls.append([event.name, ""])
        elif isinstance(event, ToolArguments) and event.choice == choice:
            calls[event.index][1] += event.text
    return [(name, arguments) for name, arguments in calls]


def finish_of(events: list[Event], choice: int = 0) -> Finished:
    """Gives the end of a choice; there must be exactly one."""
    (finished,) = [event for event in events if isinstance(event, Finished) and event.choice == choice]
    return finished


def usage_of(events: list[Event]) -> Usage:
    """Gives the usage, which must come once and last."""
    assert isinstance(events[-1], Usage)
    assert sum(isinstance(event, Usage) for event in events) == 1
    return events[-1]
