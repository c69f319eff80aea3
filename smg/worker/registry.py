"""The engines that are registered: kept by the control process, published to the data workers whenever a record changes."""

import time
import uuid
from array import array
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from smg.errors import ConfigError
from smg.obs.shm import Shm
from smg.worker.record import DEPARTED_S, Edit, EngineRecord, EngineSpec, EngineState, Snapshot, spec_of
from smg.worker.snapshot import publish

__all__ = ["Registry"]

# Models without engines that are remembered: their clients are told to come again, and not that there is no such model.
MOST_DEPARTED = 256


class Registry:
    """Engines by address, each with one record, or one a data-parallel rank; a record has a slot of shared memory.

    `earlier` is what a control process before this one published, if it died. `edits` is published with the records, and kept by
    `smg.worker.fleet`.
    """

    def __init__(self, shm: Shm, *, folder: Path, earlier: Snapshot | None = None) -> None:
        self._shm = shm
        self._folder = folder
        self._engines: dict[str, list[EngineRecord]] = {}
        self._departed = dict(earlier.departed) if earlier else {}
        self.edits: dict[str, Edit] = dict(earlier.edits) if earlier else {}
        for record in earlier.engines if earlier else ():
            if record.slot < shm.engines and shm.engine_epoch(record.slot) == record.epoch:
                self._engines.setdefault(record.address, []).append(record)

    def add(self, specs: Iterable[EngineSpec]) -> list[EngineRecord]:
        """Registers engines and publishes them; gives their first records. One that was registered before keeps its slots and state.

        Raises ConfigError when there are more engines than slots; those before it are registered.
        """
        wanted = {spec.url: spec for spec in specs}
        try:
            for url, spec in wanted.items():
                known = self._engines.get(url)
                self._engines[url] = [_respoken(record, spec) for record in known] if known else [self._new(spec)]
        finally:
            self.publish()
        return [self._engines[url][0] for url in wanted]

    def drain(self, url: str) -> None:
        """Keeps requests away from an engine from now on; those under way go on."""
        for record in self._engines.get(url, ()):
            self._shm.set_engine_state(record.slot, EngineState.DRAINING)

    def drop(self, urls: Iterable[str]) -> None:
        """Takes engines away and publishes that: they get no new requests, those under way go on, and their slots are free."""
        dropped = [self._drop(url) for url in urls]
        if any(dropped):
            self.publish()

    def retain(self, urls: Iterable[str]) -> None:
        """Takes every other engine away, as `drop` does."""
        wanted = set(urls)
        self.drop([url for url in self._engines if url not in wanted])

    def room(self) -> int:
        """Gives the number of records for which there are slots left."""
        return self._shm.engines - len(self.records())

    def records(self) -> list[EngineRecord]:
        """Gives every record."""
        return [record for records in self._engines.values() for record in records]

    def ranks(self, url: str) -> list[EngineRecord]:
        """Gives the records of an engine, in the order of its ranks; empty when it is not registered."""
        return list(self._engines.get(url, ()))

    def get(self, url: str) -> EngineRecord | None:
        """Gives one record: that of an engine, the first of its ranks."""
        return next(iter(self._engines.get(url, ())), None)

    def find(self, number: str) -> EngineRecord | None:
        """Gives the record with an id; the first rank's for that which the engine had before its ranks were known."""
        known = (record for record in self.records() if number in (record.id, _number(record.address)))
        return next(known, None)

    def state(self, record: EngineRecord) -> EngineState:
        """Gives an engine's state."""
        return EngineState(self._shm.engine_state(record.slot))

    def set_aside(self, record: EngineRecord) -> bool:
        """True for an HTTP engine whose model has engines over gRPC too: these serve it alone (`WorkerView.relayed`)."""
        return record.relayed and any(other.model == record.model and not other.relayed for other in self.records())

    def set_state(self, url: str, state: EngineState) -> bool:
        """Sets the state of an engine, of all its ranks; True when it was another. One that drains stays so."""
        changed = [record for record in self._engines.get(url, ()) if self.state(record) not in (state, EngineState.DRAINING)]
        for record in changed:
            self._shm.set_engine_state(record.slot, state)
        return bool(changed)

    def revive(self, url: str) -> None:
        """Takes an engine back that drains."""
        for record in self._engines.get(url, ()):
            self._shm.set_engine_state(record.slot, EngineState.PENDING)

    def describe(self, record: EngineRecord, *, ranks: int = 1) -> None:
        """Takes what an engine has said of itself and publishes it, if it is new and the engine still registered. What was said of the
        engine stays. `ranks` above 1: the number of its data-parallel ranks, each of which gets a record.
        """
        known = self._engines.get(record.address)
        if not known or known[0].epoch != record.epoch or known[0].slot != record.slot:
            return
        spec = spec_of(known[0])
        described = structs.replace(record, **structs.asdict(spec), rank=None, base_url="")
        places = known[:ranks]
        while len(places) < ranks:
            places.append(self._new(spec, beside=places))
            self._shm.set_engine_state(places[-1].slot, self.state(known[0]))
        after = [_ranked(described, place, rank if ranks > 1 else None) for rank, place in enumerate(places)]
        if after == known:
            return
        for surplus in known[ranks:]:
            self._shm.set_engine_state(surplus.slot, EngineState.DRAINING)
        self._engines[record.address] = after
        self.publish()

    def publish(self) -> None:
        """Tells the data workers."""
        self._departed = {
            model: (names, at_s)
            for model, (names, at_s) in self._departed.items()
            if time.time() - at_s < DEPARTED_S and not self._serves(model)
        }
        snapshot = Snapshot(engines=tuple(self.records()), edits=self.edits, departed=self._departed)
        publish(snapshot, folder=self._folder, shm=self._shm)

    def inflight(self, record: EngineRecord) -> tuple[int, int]:
        """Gives requests and prompt tokens under way at an engine, over all processes."""
        out = array("q", (0, 0))
        self._shm.sums(array("q", (record.slot,)), out)
        return out[0], out[1]

    def _serves(self, model: str) -> bool:
        return any(records[0].model == model for records in self._engines.values())

    def _drop(self, url: str) -> bool:
        records = self._engines.pop(url, [])
        for record in records:
            self._shm.set_engine_state(record.slot, EngineState.DRAINING)
        if records and records[0].model and not self._serves(records[0].model):
            self._departed[records[0].model] = (records[0].aliases, time.time())
            for model in list(self._departed)[:-MOST_DEPARTED]:
                del self._departed[model]
        return bool(records)

    def _new(self, spec: EngineSpec, *, beside: Iterable[EngineRecord] = ()) -> EngineRecord:
        slot = self._free_slot({record.slot for record in (*self.records(), *beside)})
        epoch = self._shm.open_engine(slot, EngineState.PENDING)
        return EngineRecord(slot=slot, epoch=epoch, id=_number(spec.url), **structs.asdict(spec))

    def _free_slot(self, taken: set[int]) -> int:
        """A slot that nobody has, one that was never used before others: requests may still run at an engine that was removed."""
        free = [slot for slot in range(self._shm.engines) if slot not in taken]
        if not free:
            raise ConfigError([f"engines.worker_urls: more than {self._shm.engines} engines"])
        return min(free, key=self._shm.engine_epoch)


def _number(url: str) -> str:
    """The same for an address in every process and on every node."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, url))


def _respoken(record: EngineRecord, spec: EngineSpec) -> EngineRecord:
    """What is said of the engine anew; its names of the model change only when it is described."""
    return structs.replace(record, **structs.asdict(spec) | {"url": record.url})


def _ranked(described: EngineRecord, place: EngineRecord, rank: int | None) -> EngineRecord:
    """What an engine said, in the place of one of its ranks."""
    where = {"slot": place.slot, "epoch": place.epoch, "rank": rank}
    if rank is None:
        return structs.replace(described, **where, id=_number(described.url))
    url = f"{described.url}@{rank}"
    return structs.replace(described, **where, url=url, base_url=described.url, id=_number(url))
