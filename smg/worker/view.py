"""A data worker's view of the engines: who serves a model, how loaded each is over all processes, and the count of what it sends there.

Records come from the snapshot file, read again when the generation in shared memory has moved; states and loads are read from there on
every call. `smg.pipeline` routes with it.
"""

import os
import time
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path

from smg.obs.shm import Shm
from smg.types.candidate import Candidate
from smg.worker.record import DEPARTED_S, EngineRecord, EngineState, Role
from smg.worker.snapshot import read_snapshot

__all__ = ["Lease", "WorkerView"]

READY = EngineState.READY.value  # comparing with a member itself takes longer than the rest of the look


class Lease:
    """One request counted at one engine, from `WorkerView.acquire` until `release`. Both calls may come again."""

    __slots__ = ("_epoch", "_row", "_shm", "_slot", "_tokens")

    def __init__(self, shm: Shm, *, row: int, slot: int, epoch: int, tokens: int) -> None:
        self._shm: Shm | None = shm
        self._row, self._slot, self._epoch, self._tokens = row, slot, epoch, tokens
        shm.acquire(row, slot, epoch, tokens)

    def answered(self) -> None:
        """Takes the prompt's tokens off the count, once the first token has come: they are computed, only the request goes on.

        Does nothing when the slot counts for another engine since, where `acquire` would wipe out that one's requests.
        """
        if self._shm is not None and self._tokens and self._shm.held(self._row, self._slot, self._epoch):
            tokens, self._tokens = self._tokens, 0
            self._shm.acquire(self._row, self._slot, self._epoch, -tokens)
            self._shm.release(self._row, self._slot, self._epoch, 0)

    def release(self) -> None:
        """Takes the request off the count."""
        shm, self._shm = self._shm, None
        if shm is not None:
            shm.release(self._row, self._slot, self._epoch, self._tokens)


class Group:
    """The engines of one model, with the arrays by which their counts are read in one call."""

    def __init__(self) -> None:
        self.records: list[EngineRecord] = []
        self.slots = array("q")
        self.sums = array("q")

    def add(self, record: EngineRecord) -> None:
        self.records.append(record)
        self.slots.append(record.slot)
        self.sums.extend((0, 0))


class WorkerView:
    """Used from one event loop. `row` is the process's own row in shared memory; `wake_fd`, an eventfd, wakes the control process."""

    def __init__(self, shm: Shm, *, row: int, folder: Path, wake_fd: int | None = None) -> None:
        self.shm = shm
        self._row = row
        self._folder = folder
        self._wake_fd = wake_fd
        self._generation = -1
        self._groups: dict[tuple[str, Role], Group] = {}
        self._models: dict[str, list[EngineRecord]] = {}
        self._epochs: dict[int, int] = {}
        self._departed: Mapping[str, tuple[tuple[str, ...], float]] = {}
        self._listeners: list[Callable[[list[EngineRecord]], None]] = []

    @property
    def generation(self) -> int:
        """The registry's generation that was read last, -1 = none yet."""
        return self._generation

    def models(self) -> Mapping[str, list[EngineRecord]]:
        """Gives the engines of every model that is registered, whatever their state."""
        self.refresh()
        return self._models

    def departed(self, name: str) -> bool:
        """True when engines of a model, by any of its names, were here until lately, and none is."""
        return any(time.time() - at_s < DEPARTED_S and name in (model, *names) for model, (names, at_s) in self._departed.items())

    def engines(self, model: str) -> list[EngineRecord]:
        """Gives the engines of a model, whatever their state."""
        return self.models().get(model, [])

    def state(self, slot: int) -> EngineState:
        """Gives an engine's state. IndexError for a slot that cannot be."""
        return EngineState(self.shm.engine_state(slot))

    def candidates(self, model: str, *, role: Role = "regular") -> list[Candidate]:
        """Gives the engines of a model and role that are ready, with what all processes have under way there."""
        self.refresh()
        group = self._groups.get((model, role))
        if group is None:
            return []
        shm, sums, ready = self.shm, group.sums, READY
        shm.sums(group.slots, sums)
        return [
            Candidate(record.slot, record.url, sums[2 * index], sums[2 * index + 1])
            for index, record in enumerate(group.records)
            if shm.engine_state(record.slot) == ready and shm.engine_epoch(record.slot) == record.epoch
        ]

    def acquire(self, slot: int, tokens: int) -> Lease:
        """Counts a request of `tokens` prompt tokens at an engine; call it before the request is sent there."""
        return Lease(self.shm, row=self._row, slot=slot, epoch=self._epochs.get(slot, 0), tokens=tokens)

    def held(self, record: EngineRecord) -> int:
        """Gives the number of requests that this process has at an engine."""
        return self.shm.held(self._row, record.slot, record.epoch)

    def suspect(self, slot: int) -> None:
        """Says that an engine could not be reached, so that the control process checks it at once."""
        if self.shm.suspect(slot) and self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def on_change(self, listener: Callable[[list[EngineRecord]], None]) -> None:
        """Calls `listener` with all records after each change of the registry, as soon as this view has seen it."""
        self._listeners.append(listener)

    def refresh(self) -> bool:
        """Reads the registry again if it has changed; True when it had."""
        generation = self.shm.generation()
        if generation == self._generation:
            return False
        snapshot = read_snapshot(self._folder)
        records = snapshot.engines
        self._generation = generation
        self._departed = snapshot.departed
        self._epochs = {record.slot: record.epoch for record in records}
        groups: dict[tuple[str, Role], Group] = {}
        models: dict[str, list[EngineRecord]] = {}
        for record in records:
            if record.model:
                groups.setdefault((record.model, record.role), Group()).add(record)
                models.setdefault(record.model, []).append(record)
        self._groups = groups
        self._models = models
        for listener in self._listeners:
            listener(list(records))
        return True
