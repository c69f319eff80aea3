"""The control process: everything of which a gateway must have only one. Engines and their health, load polling, metrics, admin calls."""

import asyncio
import logging
import os
import signal
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import msgspec
import uvloop
from msgspec import Struct

from smg.kvindex.follow import Followers, tell_failure
from smg.middleware import SeatGauges
from smg.obs.metrics import Meter, Sample, render
from smg.obs.shm import FIRST_WORKER_ROW, LOAD_FIELDS, now_ms
from smg.server.admin import AdminServer
from smg.server.boot import Boot, Phase, report_ready
from smg.server.probe import Page, ProbeServer
from smg.server.workers import WorkerCalls
from smg.worker import (
    Detector,
    Discovery,
    EngineRecord,
    EngineState,
    Fleet,
    Registry,
    Snapshot,
    Source,
    lacking,
    listed_engines,
    read_snapshot,
)
from smg.worker.breaker import breaker_samples

__all__ = ["Control", "EngineStatus", "run_control"]

log = logging.getLogger(__name__)

BEAT_S = 1.0
FIRST_ROUND_S = 2.0
JSON = "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class EngineStatus(Struct, frozen=True, kw_only=True):
    """What the admin call `engines` says of one engine."""

    id: str
    url: str
    state: str
    runtime: str
    model: str
    requests: int
    tokens: int


def run_control(boot: Boot) -> int:
    """Runs until told to end; gives the exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Control(boot).run())


class Control:
    """One control process's life."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._shm = boot.shm
        self._registry = Registry(boot.shm, folder=boot.runtime_dir, earlier=self._earlier())
        self._followers = Followers(boot.config, shm=boot.shm, registry=self._registry, lost=self._suspect)
        self._seats = SeatGauges(boot.config, shm=boot.shm, engines=lambda: len(self._registry.records()))
        pages = {"/health": self._health, "/liveness": self._health, "/readiness": self._readiness}
        self._probes = ProbeServer(pages)
        self._probe = ProbeServer({"/metrics": self._metrics, **pages})
        self._fleet: Fleet

    def _earlier(self) -> Snapshot:
        """What a control process that died has published; a file that cannot be read is the same as none."""
        try:
            return read_snapshot(self._boot.runtime_dir)
        except (OSError, msgspec.DecodeError):
            log.exception("the last snapshot cannot be read")
            return Snapshot()

    async def run(self) -> int:
        """Starts everything, says that it serves, ends with SIGTERM."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, told.set)
        self._beat(loop)
        meter = Meter(self._shm, row=self._boot.row)
        detector = Detector(self._boot.config, state_dir=self._boot.state_dir, models=self._models)
        fleet = self._fleet = Fleet(self._boot.config, shm=self._shm, registry=self._registry, detector=detector, meter=meter)
        discovery = Discovery(self._boot.config, fleet=fleet, meter=meter)
        calls = WorkerCalls(fleet, self._registry).methods()
        admin = AdminServer({"ping": lambda data: "pong", "engines": lambda data: list(self._engines()), **calls})
        following = asyncio.create_task(self._followers.run())
        following.add_done_callback(tell_failure)
        loop.add_reader(self._boot.wake_fd, self._woken, fleet)
        try:
            await self._probe.start(self._boot.metrics)
            if self._boot.probes is not None:
                await self._probes.start(self._boot.probes)
            await admin.start(self._boot.control)
            await fleet.seen(within_s=FIRST_ROUND_S)
            fleet.replace("config", listed_engines(self._boot.config))  # after a reload the old ones serve until here
            discovery.start()
            report_ready(self._boot)
            await fleet.run_until(told)
        finally:
            loop.remove_reader(self._boot.wake_fd)
            self._probe.close()
            self._probes.close()
            admin.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self._followers.close()
            await discovery.close()
            await fleet.close()
        return 0

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shm.beat(self._boot.row, now_ms())
        loop.call_later(BEAT_S, self._beat, loop)

    def _woken(self, fleet: Fleet) -> None:
        os.eventfd_read(self._boot.wake_fd)
        fleet.hurry()

    def _suspect(self, slot: int) -> None:
        """Has an engine checked whose KV events broke off: no request need fail for it to be known."""
        self._shm.suspect(slot)
        self._fleet.hurry()

    def _models(self) -> set[str]:
        return {record.model for record in self._registry.records()}

    def _engines(self) -> Iterator[EngineStatus]:
        for record in self._registry.records():
            requests, tokens = self._registry.inflight(record)
            yield EngineStatus(
                id=record.id,
                url=record.url,
                state=self._registry.state(record).name.lower(),
                runtime=record.runtime,
                model=record.model,
                requests=requests,
                tokens=tokens,
            )

    def _health(self) -> Page:
        return 200, JSON, b'{"status":"ok"}'

    def _readiness(self) -> Page:
        """As the data workers say it: the engines that are ready can answer, and a worker serves."""
        ready = not lacking(record for record in self._registry.records() if self._registry.state(record) is EngineState.READY)
        serving = any(self._shm.row(row)[1] == Phase.READY for row in range(FIRST_WORKER_ROW, self._shm.rows))
        if ready and serving:
            return 200, JSON, b'{"status":"ready"}'
        return 503, JSON, b'{"status":"not_ready"}'

    def _metrics(self) -> Page:
        return 200, PROMETHEUS, render(self._shm, gauges=self._gauges())

    def _gauges(self) -> Iterator[Sample]:
        for source in get_args(Source):
            yield Sample("smg_discovery_workers_discovered", (source,), self._fleet.roster.count(source))
        records = self._registry.records()
        pools = Counter((record.role, "http" if record.relayed else "grpc", record.model) for record in records)
        for pool, size in pools.items():
            yield Sample("smg_worker_pool_size", pool, size)
        for record in records:
            requests, _ = self._registry.inflight(record)
            yield Sample("smg_worker_requests_active", (record.url,), requests)
            yield Sample("smg_worker_health", (record.url,), self._registry.state(record) is EngineState.READY)
            yield from breaker_samples(self._shm, record.slot, record.url)
            yield from self._load(record)
        yield from self._followers.gauges()
        yield from self._seats.samples()
        yield Sample("smg_metric_series_dropped_total", (), self._shm.dropped())

    def _load(self, record: EngineRecord) -> Iterator[Sample]:
        fields = array("q", [0] * len(LOAD_FIELDS))
        self._shm.load(record.slot, fields)
        load = dict(zip(LOAD_FIELDS, fields, strict=True))
        if not load["polled_ms"]:
            return
        yield Sample("smg_engine_running_requests", (record.url,), load["running"])
        yield Sample("smg_engine_waiting_requests", (record.url,), load["waiting"])
        if load["max_tokens"]:
            yield Sample("smg_engine_token_usage", (record.url,), load["used_tokens"] / load["max_tokens"])
        yield Sample("smg_engine_gen_throughput", (record.url,), load["generated_milli_per_s"] / 1000)
