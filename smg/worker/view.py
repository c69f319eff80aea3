"""A data worker's view of the engines: who serves a model, how loaded each is over all processes, and the count of what it sends there.

Records come from the snapshot file, read again when the generation in shared memory has moved. Who may have a request is found again when
a state or a breaker there has changed, and loads are read as a policy asks for them. `smg.pipeline` routes with it.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from smg.config.tree import Resilience
from smg.obs.loads import loads_of
from smg.obs.shm import Shm
from smg.types.candidate import Candidates
from smg.worker.breaker import OUTCOMES, Breaker
from smg.worker.candidates import Group
from smg.worker.record import DEPARTED_S, EngineRecord, EngineState, Role
from smg.worker.snapshot import read_snapshot

__all__ = ["Lease", "WorkerView"]

LOST = frozenset((EngineState.NOT_READY.value, EngineState.FAILED.value))
NOBODY = Candidates(())
STALE_MS = 30_000


class Lease:
    """One request counted at one engine, from `WorkerView.acquire` until `release`; `succeed` or `fail` tells its end to the breaker.

    Calls may come again. With `probe`, the breaker waits for the request: the first token is enough of an answer. `rank`: which of the
    engine's data-parallel ranks should have it, -1 when that is for the engine to choose.
    """

    __slots__ = ("_breaker", "_epoch", "_row", "_shm", "_slot", "_tokens", "probe", "rank")

    def __init__(self, view: "WorkerView", *, slot: int, epoch: int, tokens: int, probe: bool) -> None:
        self._breaker, self.probe, self.rank = view.breaker, probe, -1
        self._shm: Shm | None = view.shm
        self._row, self._slot, self._epoch, self._tokens = view.row, slot, epoch, tokens
        view.shm.acquire(view.row, slot, epoch, tokens)

    def answered(self) -> None:
        """Takes the prompt's tokens off the count, once the first token has come: they are computed, only the request goes on.

        Does nothing when the slot counts for another engine since, where `acquire` would wipe out that one's requests.
        """
        if self._shm is not None and self._tokens and self._shm.held(self._row, self._slot, self._epoch):
            tokens, self._tokens = self._tokens, 0
            self._shm.acquire(self._row, self._slot, self._epoch, -tokens)
            self._shm.release(self._row, self._slot, self._epoch, 0)
        if self.probe:
            self.succeed()

    def succeed(self) -> None:
        """The engine has served the request, or refused it with good reason."""
        probe, self.probe = self.probe, False
        if self._shm is not None:
            self._breaker.succeed(self._slot, epoch=self._epoch, probe=probe)

    def fail(self) -> None:
        """The engine has failed the request."""
        probe, self.probe = self.probe, False
        if self._shm is not None:
            self._breaker.fail(self._slot, epoch=self._epoch, probe=probe)

    def count(self, outcome: Literal["success", "failure"]) -> None:
        """Counts for the metrics how the request ended at the engine."""
        if self._shm is not None:
            self._shm.count(self._slot, self._epoch, OUTCOMES[outcome])

    def release(self) -> None:
        """Takes the request off the count."""
        shm, self._shm = self._shm, None
        if shm is not None:
            shm.release(self._row, self._slot, self._epoch, self._tokens)
            if self.probe:
                self._breaker.give_back(self._slot, epoch=self._epoch)


class WorkerView:
    """Used from one event loop. `row` is the process's own row in shared memory; `wake_fd`, an eventfd, wakes the control process.

    `stale_ms`: age at which what an engine reports of its load says nothing any more. `generation`: that of the registry which was read
    last, -1 = none yet.
    """

    def __init__(
        self,
        shm: Shm,
        *,
        row: int,
        folder: Path,
        wake_fd: int | None = None,
        breaker: Breaker | None = None,
        stale_ms: int = STALE_MS,
    ) -> None:
        self.shm = shm
        self.row = row
        self.breaker = breaker or Breaker(shm, config=Resilience())
        self._loads = loads_of(shm)
        self._stale_ms = stale_ms
        self._folder = folder
        self._wake_fd = wake_fd
        self.generation = -1
        self._groups: dict[tuple[str, Role, str], Group] = {}
        self._models: dict[str, list[EngineRecord]] = {}
        self._records: dict[int, EngineRecord] = {}
        self._paired: set[str] = set()
        self._relayed: frozenset[str] = frozenset()
        self._departed: Mapping[str, tuple[tuple[str, ...], float]] = {}
        self._listeners: list[Callable[[list[EngineRecord]], None]] = []

    def models(self) -> Mapping[str, list[EngineRecord]]:
        """Gives the engines of every model that is registered, whatever their state."""
        if self.shm.generation() != self.generation:  # here and below: each request looks several times, and mostly nothing has changed
            self.refresh()
        return self._models

    def departed(self, name: str) -> bool:
        """True when engines of a model, by any of its names, were here until lately, and none is."""
        return any(time.time() - at_s < DEPARTED_S and name in (model, *names) for model, (names, at_s) in self._departed.items())

    def relayed(self) -> frozenset[str]:
        """Gives the models whose engines are asked over HTTP: a model that has engines of both kinds is served by those over gRPC."""
        if self.shm.generation() != self.generation:
            self.refresh()
        return self._relayed

    def registered(self) -> list[EngineRecord]:
        """Gives every engine that is registered, also those that get no request: they have not said what they serve, or are set aside."""
        if self.shm.generation() != self.generation:
            self.refresh()
        return list(self._records.values())

    def record(self, slot: int) -> EngineRecord | None:
        """Gives the engine of a slot; None when it has none."""
        if self.shm.generation() != self.generation:
            self.refresh()
        return self._records.get(slot)

    def engines(self, model: str) -> list[EngineRecord]:
        """Gives the engines of a model, whatever their state."""
        return self.models().get(model, [])

    def state(self, slot: int) -> EngineState:
        """Gives an engine's state. IndexError for a slot that cannot be."""
        return EngineState(self.shm.engine_state(slot))

    def is_paired(self, model: str) -> bool:
        """True when prefill and decode of a model are computed by different engines, be they ready or not."""
        if self.shm.generation() != self.generation:
            self.refresh()
        return model in self._paired

    def lost(self) -> frozenset[str]:
        """Gives the addresses of engines that served and do not answer checks any more."""
        return frozenset(record.address for record in self._records.values() if self.shm.engine_state(record.slot) in LOST)

    def candidates(self, model: str, *, role: Role = "regular", runtime: str = "") -> Candidates:
        """Gives the engines of a model and role that may have a request, with what is under way there. `runtime`: only those of it."""
        if self.shm.generation() != self.generation:
            self.refresh()
        group = self._groups.get((model, role, runtime))
        return group.candidates(self.shm.changes()) if group else NOBODY

    def has_other(self, model: str, *, role: Role, failed: frozenset[int]) -> bool:
        """True when an engine of a model and role may have a request that is not at one of these slots."""
        return any(slot not in failed for slot in self.candidates(model, role=role).slots)

    def wait_s(self, model: str, *, role: Role = "regular") -> int:
        """Gives the whole seconds until an engine that is ready may have a request, 1 at least: what a client is told when none may."""
        group = self._groups.get((model, role, ""))
        ready = [record.slot for record in group.records if self.state(record.slot) is EngineState.READY] if group else []
        waits = [self.breaker.wait_ms(slot) for slot in ready]
        return max(1, -(-min(waits, default=0) // 1000))

    def take_probe(self, slot: int) -> bool:
        """Begins a probe at an engine whose breaker is not closed; `acquire` must follow. False when others were quicker."""
        record = self._records.get(slot)
        return record is not None and self.breaker.take_probe(slot, epoch=record.epoch)

    def acquire(self, slot: int, tokens: int, *, probe: bool = False) -> Lease:
        """Counts a request of `tokens` prompt tokens at an engine; call it before the request is sent there."""
        record = self._records.get(slot)
        return Lease(self, slot=slot, epoch=record.epoch if record else 0, tokens=tokens, probe=probe)

    def held(self, record: EngineRecord) -> int:
        """Gives the number of requests that this process has at an engine."""
        return self.shm.held(self.row, record.slot, record.epoch)

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
        if generation == self.generation:
            return False
        snapshot = read_snapshot(self._folder)
        records = snapshot.engines
        self.generation = generation
        self._departed = snapshot.departed
        self._records = {record.slot: record for record in records}
        grouped: dict[tuple[str, Role, str], list[EngineRecord]] = {}
        models: dict[str, list[EngineRecord]] = {}
        in_tokens = {record.model for record in records if not record.relayed}
        for record in records:
            if record.model and not (record.relayed and record.model in in_tokens):
                for runtime in {"", record.runtime}:
                    grouped.setdefault((record.model, record.role, runtime), []).append(record)
                models.setdefault(record.model, []).append(record)
        self._groups = {
            key: Group(members, loads=self._loads, breaker=self.breaker, stale_ms=self._stale_ms) for key, members in grouped.items()
        }
        self._models = models
        self._paired = {model for model in models if (model, "regular", "") not in grouped}
        self._relayed = frozenset(models.keys() - in_tokens)
        for listener in self._listeners:
            listener(list(records))
        return True
