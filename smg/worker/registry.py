"""The engines that are registered: kept by the control process, published to the data workers whenever a record changes."""

import hashlib
from array import array
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from smg.errors import ConfigError
from smg.obs.shm import Shm
from smg.worker.record import EngineRecord, EngineSpec, EngineState, Snapshot
from smg.worker.snapshot import publish

__all__ = ["Registry"]


class Registry:
    """Records by URL, each in a slot of shared memory. `earlier` is what a control process before this one published, if it died."""

    def __init__(self, shm: Shm, *, folder: Path, earlier: Snapshot | None = None) -> None:
        self._shm = shm
        self._folder = folder
        self._records: dict[str, EngineRecord] = {}
        for record in earlier.engines if earlier else ():
            if record.slot < shm.engines and shm.engine_epoch(record.slot) == record.epoch:
                self._records[record.url] = record

    def add(self, specs: Iterable[EngineSpec]) -> list[EngineRecord]:
        """Registers engines and publishes them; gives their records. One that was registered before keeps its slot and state."""
        wanted = {spec.url: spec for spec in specs}
        for url, spec in wanted.items():
            known = self._records.get(url)
            self._records[url] = structs.replace(known, **structs.asdict(spec)) if known else self._new(spec)
        self.publish()
        return [self._records[url] for url in wanted]

    def retain(self, urls: Iterable[str]) -> None:
        """Takes every other engine away and publishes that: it gets no new requests, those under way go on."""
        wanted = set(urls)
        gone = [url for url in self._records if url not in wanted]
        for url in gone:
            self._shm.set_engine_state(self._records.pop(url).slot, EngineState.DRAINING)
        if gone:
            self.publish()

    def records(self) -> list[EngineRecord]:
        """Gives every record."""
        return list(self._records.values())

    def get(self, url: str) -> EngineRecord | None:
        """Gives one record."""
        return self._records.get(url)

    def state(self, record: EngineRecord) -> EngineState:
        """Gives an engine's state."""
        return EngineState(self._shm.engine_state(record.slot))

    def set_state(self, url: str, state: EngineState) -> bool:
        """Sets an engine's state; True when it was another."""
        record = self._records.get(url)
        if record is None or self._shm.engine_state(record.slot) == state:
            return False
        self._shm.set_engine_state(record.slot, state)
        return True

    def describe(self, record: EngineRecord) -> None:
        """Takes what an engine has said of itself and publishes it, if it is new and the engine still registered."""
        known = self._records.get(record.url)
        if known is None or known == record or known.epoch != record.epoch:
            return
        self._records[record.url] = record
        self.publish()

    def publish(self) -> None:
        """Tells the data workers."""
        publish(Snapshot(engines=tuple(self._records.values())), folder=self._folder, shm=self._shm)

    def inflight(self, record: EngineRecord) -> tuple[int, int]:
        """Gives requests and prompt tokens under way at an engine, over all processes."""
        out = array("q", (0, 0))
        self._shm.sums(array("q", (record.slot,)), out)
        return out[0], out[1]

    def _new(self, spec: EngineSpec) -> EngineRecord:
        slot = self._free_slot()
        epoch = self._shm.open_engine(slot, EngineState.PENDING)
        number = hashlib.sha256(spec.url.encode()).hexdigest()[:16]
        return EngineRecord(slot=slot, epoch=epoch, id=number, **structs.asdict(spec))

    def _free_slot(self) -> int:
        """A slot that nobody has, one that was never used before others: requests may still run at an engine that was removed."""
        taken = {record.slot for record in self._records.values()}
        free = [slot for slot in range(self._shm.engines) if slot not in taken]
        if not free:
            raise ConfigError([f"engines.worker_urls: more than {self._shm.engines} engines"])
        return min(free, key=self._shm.engine_epoch)
