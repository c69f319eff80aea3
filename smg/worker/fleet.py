"""All engines of a gateway: what sources say comes in (`Roster`), each engine is registered, watched, drained and let go.

Used by the control process only, from its event loop. An engine that nobody names any more gets no new request; it stays listed as
draining until the requests that it has have ended, or `engines.drain_settle_s` has passed.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from smg.config import Config
from smg.errors import InvalidValue
from smg.obs.metrics import Meter
from smg.obs.shm import Shm
from smg.worker.detect import Detector
from smg.worker.listed import listed_engines
from smg.worker.record import Edit, EngineRecord, EngineSpec, EngineState, Source, spec_of
from smg.worker.registry import Registry
from smg.worker.roster import Roster
from smg.worker.watch import Watcher

__all__ = ["Fleet"]

log = logging.getLogger(__name__)

LOOK_S = 0.1
# A watch begins anew when one of these changes; the others are only told on.
WATCHED = ("backend", "role", "api_key", "health", "served_as", "served_aliases")
IDLE_LOOKS = 2
# After this time all that had to do with an engine that was let go is closed.
TIDY_S = 2.0


class Fleet:
    """Registers what the configuration names, and what an earlier control process had from other sources."""

    def __init__(self, config: Config, *, shm: Shm, registry: Registry, detector: Detector, meter: Meter) -> None:
        self.roster = Roster(registry.edits)
        self._config = config
        self._shm = shm
        self._registry = registry
        self._meter = meter
        self._watch: Callable[[EngineRecord], Watcher] = lambda record: Watcher(
            record,
            config=config,
            shm=shm,
            registry=registry,
            detector=detector,
            meter=meter,
            failed=self._failed,
            described=self._described,
        )
        self._watchers: dict[str, tuple[Watcher, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._draining: dict[str, Drain] = {}
        self._reasons: dict[str, str] = {}
        self._tidying: asyncio.TimerHandle | None = None
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._work = asyncio.Event()
        for record in registry.records():
            if registry.state(record) is not EngineState.DRAINING:
                self.roster.say(spec_of(record))
            elif record.address not in self._draining:
                self._drain(record.address)
        listed = listed_engines(config)
        if len({spec.url for spec in listed}.union(record.address for record in registry.records())) > shm.engines:
            registry.add(listed)  # which raises
        self.say(listed)
        self._settle({record.address for record in registry.records()})
        self._sweeper = self._guarded(self._sweep())

    def watcher(self, url: str) -> Watcher | None:
        """Gives the watch over an engine; None when it drains."""
        return self._watchers[url][0] if url in self._watchers else None

    def say(self, specs: Iterable[EngineSpec]) -> None:
        """Takes what their sources say of engines, besides what they said before."""
        known = {spec.url: spec for spec in specs}
        for spec in known.values():
            self.roster.say(spec)
        self._settle(known)

    def unsay(self, url: str, source: Source) -> None:
        """A source says no more that there is an engine."""
        self.roster.unsay(url, source)
        self._settle((url,))

    def replace(self, source: Source, specs: Iterable[EngineSpec]) -> None:
        """Takes all that a source says. What it said before and says no more is drained, unless another source names it too."""
        self._settle(self.roster.replace(source, specs))

    def add(self, spec: EngineSpec) -> None:
        """Adds an engine for the workers API, also one that it took away. Raises InvalidValue when there is no room for it."""
        if not self._registry.ranks(spec.url) and self._registry.room() < 1:
            raise InvalidValue(f"there is room for {self._shm.engines} engines, and all of it is taken")
        self.roster.unedit(spec.url)
        self.say((spec,))

    def edit(self, url: str, edit: Edit) -> None:
        """Changes an engine for the workers API."""
        self.roster.edit(url, edit)
        self._settle((url,))

    def remove(self, url: str, *, reason: str = "removed") -> None:
        """Takes an engine away for the workers API, or because it is ill. One that others name stays away until they name it no more."""
        self.roster.unsay(url, "api")
        if self.roster.sources(url):
            self.roster.edit(url, Edit(removed=True))
        self._reasons[url] = reason
        self._settle((url,))
        self._reasons.clear()
        self._registry.publish()

    def _failed(self, url: str) -> None:
        if self._config.health.remove_unhealthy:
            log.warning("engine has failed and is taken away", extra={"engine": url})
            self.remove(url, reason="unhealthy")

    def _described(self, record: EngineRecord) -> None:
        """Checks the HTTP engines of the model at once when one over gRPC is known to serve it: requests leave them in this moment."""
        if record.relayed:
            return
        for other in self._registry.records():
            watcher = self.watcher(other.address) if other.relayed and other.model == record.model else None
            if watcher is not None:
                watcher.hurry()

    def _settle(self, urls: Iterable[str]) -> None:
        """Makes of engines what is wanted of them."""
        fresh: list[EngineSpec] = []
        for url in urls:
            record, spec = self._registry.get(url), self.roster.wanted(url)
            if spec is None:
                if record is not None and url not in self._draining:
                    self._drain(url)
                continue
            if url in self._draining:
                del self._draining[url]
                self._registry.revive(url)
            before = spec_of(record) if record is not None else None
            if before != spec:
                fresh.append(spec)
            if url in self._watchers and before is not None and any(getattr(before, name) != getattr(spec, name) for name in WATCHED):
                self._end_watch(url)
        self._register(fresh)
        for record in self._registry.records():
            if record.address not in self._watchers and record.address not in self._draining:
                self._begin_watch(record)

    def _register(self, specs: list[EngineSpec]) -> None:
        new = [spec for spec in specs if self._registry.get(spec.url) is None]
        surplus = new[self._registry.room() :]
        for spec in surplus:
            log.error("no room for an engine", extra={"engine": spec.url, "source": spec.source, "room": self._shm.engines})
            self._meter.add("smg_discovery_registrations_total", (spec.source, "failed"))
        if specs:
            self._registry.add(spec for spec in specs if spec not in surplus)
        for spec in new[: len(new) - len(surplus)]:
            log.info("engine registered", extra={"engine": spec.url, "source": spec.source})
            self._meter.add("smg_discovery_registrations_total", (spec.source, "success"))

    def _begin_watch(self, record: EngineRecord) -> None:
        watcher = self._watch(record)
        self._watchers[record.address] = watcher, self._guarded(watcher.run())

    def _end_watch(self, url: str) -> None:
        task = self._watchers.pop(url)[1]
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _drain(self, url: str) -> None:
        if url in self._watchers:
            self._end_watch(url)
        self._registry.drain(url)
        self._draining[url] = Drain(until_s=time.monotonic() + self._config.engines.drain_settle_s)
        self._work.set()
        record = self._registry.get(url)
        source = record.source if record is not None else "config"
        reason = self._reasons.get(url, "gone")
        log.info("engine drains", extra={"engine": url, "source": source})
        self._meter.add("smg_discovery_deregistrations_total", (source, reason))

    async def _sweep(self) -> None:
        """Lets go of engines that drain, once their requests have ended."""
        while True:
            await self._work.wait()
            done = [url for url, drain in self._draining.items() if drain.over(self._requests(url))]
            self._let_go(done)
            if not self._draining:
                self._work.clear()
            elif not any(drain.due() for drain in self._draining.values()):
                await asyncio.sleep(LOOK_S)

    def _let_go(self, urls: list[str]) -> None:
        for url in urls:
            left = self._requests(url)
            log.info("engine is gone", extra={"engine": url, "requests": left})
            del self._draining[url]
        self._registry.drop(urls)
        if urls and self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    def _tidy(self) -> None:
        """Has closed channels of gRPC collected: they lie in cycles of references, and their sockets stay open for as long."""
        self._tidying = None
        gc.collect()

    def _requests(self, url: str) -> int:
        return sum(self._registry.inflight(record)[0] for record in self._registry.ranks(url))

    def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure, which only a fault of ours can be, ends the process."""
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._fault.done():
            self._fault.set_exception(error)

    async def seen(self, *, within_s: float) -> None:
        """Returns when every engine was asked once, or after `within_s`."""
        waiting = [asyncio.ensure_future(watcher.seen.wait()) for watcher, _ in self._watchers.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=within_s)
            for task in late:
                task.cancel()

    async def run_until(self, told: asyncio.Event) -> None:
        """Returns when `told` is set. Raises when the sweep ends, which only a fault of ours can do."""
        stop = asyncio.create_task(told.wait())
        waits: list[asyncio.Future[Any]] = [stop, self._fault]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._fault.done():
                self._fault.result()
        finally:
            stop.cancel()

    def hurry(self) -> None:
        """Checks the engines that data workers suspect."""
        for url, (watcher, _) in self._watchers.items():
            suspected = [self._shm.take_suspect(record.slot) for record in self._registry.ranks(url)]
            if any(suspected):
                watcher.hurry()

    async def close(self) -> None:
        """Ends the watch."""
        if self._tidying is not None:
            self._tidying.cancel()
        tasks = [self._sweeper, *(task for _, task in self._watchers.values()), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fault.cancel()


class Drain:
    """When an engine that drains is let go: at `until_s` on the monotonic clock, or once it was without requests in looks that follow
    each other, since a worker may have chosen it just before it was told.
    """

    def __init__(self, *, until_s: float) -> None:
        self._until_s = until_s
        self._idle_looks = 0

    def due(self) -> bool:
        """True when its time is up."""
        return time.monotonic() >= self._until_s

    def over(self, requests: int) -> bool:
        """Takes what a look has found; True when the engine can go."""
        self._idle_looks = 0 if requests else self._idle_looks + 1
        return self.due() or self._idle_looks >= IDLE_LOOKS
