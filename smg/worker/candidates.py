"""The candidates of one model and role, their loads read from shared memory as they are asked for."""

from array import array
from collections.abc import Sequence

from smg.obs.loads import SURVEY_FIELDS, LoadReader
from smg.obs.shm import now_ms
from smg.types.candidate import Candidate, Candidates, Cost
from smg.worker.breaker import Breaker
from smg.worker.record import EngineRecord, EngineState

__all__ = ["Group", "LiveCandidates"]

READY = EngineState.READY.value  # comparing with a member itself takes longer than the rest of the look
FIELDS = len(SURVEY_FIELDS)


class LiveCandidates(Candidates):
    """Does what `Candidates` does, at some ns an engine. `probes`: slots whose breakers are not closed."""

    def __init__(self, records: Sequence[EngineRecord], *, loads: LoadReader, stale_ms: int, probes: frozenset[int] = frozenset()) -> None:
        self.records = records
        self._loads = loads
        self._stale_ms = stale_ms
        self.probes = probes
        self.slots = array("q", [record.slot for record in records])
        self.urls = [record.url for record in records]
        self._works = array("q", self.slots)

    def __getitem__(self, index: int) -> Candidate:  # type: ignore[override]
        slot, found = self.slots[index], array("q", bytes(8 * FIELDS))
        self._loads.survey(array("q", (slot,)), array("q", (0,)), READY, now_ms() - self._stale_ms, found)
        requests, tokens, _, _, others, others_tokens, untold, usage = found
        return Candidate(slot, self.urls[index], requests, tokens, others, others_tokens, untold, usage / 1000, slot in self.probes)

    def is_probe(self, index: int) -> bool:
        return self.slots[index] in self.probes

    def work(self, index: int, cost: Cost) -> int:
        out = array("q", (0,))
        self._loads.works(array("q", (self.slots[index],)), now_ms() - self._stale_ms, cost.weights, out)
        return out[0]

    def works(self, cost: Cost) -> "array[int]":
        self._loads.works(self.slots, now_ms() - self._stale_ms, cost.weights, self._works)
        return self._works

    def only(self, indices: Sequence[int]) -> Candidates:
        records = [self.records[index] for index in indices]
        return LiveCandidates(records, loads=self._loads, stale_ms=self._stale_ms, probes=self.probes)


class Group:
    """The engines of one model and role. Who of them may have a request is found anew when a state or a breaker has changed.

    While a breaker is open time alone changes that, so that the engines with one are looked at for each request. `records`: the engines,
    whatever their state.
    """

    def __init__(self, records: Sequence[EngineRecord], *, loads: LoadReader, breaker: Breaker, stale_ms: int) -> None:
        self.records = records
        self._slots = array("q", [record.slot for record in records])
        self._epochs = array("q", [record.epoch for record in records])
        self._loads = loads
        self._breaker = breaker
        self._stale_ms = stale_ms
        self._changes = -1
        self._usable: list[EngineRecord] = []
        self._broken: list[int] = []
        self._candidates = LiveCandidates([], loads=loads, stale_ms=stale_ms)

    def candidates(self, changes: int) -> Candidates:
        """Gives the engines that may have a request. `changes`: how often a state or a breaker had changed, read before this call."""
        if changes == self._changes and not self._broken:
            return self._candidates
        fresh = changes != self._changes
        if fresh:
            self._look()
            self._changes = changes
        probes = frozenset(slot for slot in self._broken if not self._breaker.wait_ms(slot))
        if fresh or probes != self._candidates.probes:
            shut = set(self._broken) - probes
            records = [record for record in self._usable if record.slot not in shut]
            if probes != self._candidates.probes or records != self._candidates.records:  # mostly it was an engine of another group
                self._candidates = LiveCandidates(records, loads=self._loads, stale_ms=self._stale_ms, probes=probes)
        return self._candidates

    def _look(self) -> None:
        """Finds the engines that are ready, and those of them whose breakers are not closed."""
        found = array("q", bytes(8 * FIELDS * len(self.records)))
        self._loads.survey(self._slots, self._epochs, READY, 0, found)
        usable, broken = found[SURVEY_FIELDS.index("usable") :: FIELDS], found[SURVEY_FIELDS.index("breaker") :: FIELDS]
        self._usable = [record for record, ready in zip(self.records, usable, strict=True) if ready]
        self._broken = [record.slot for record, ready, state in zip(self.records, usable, broken, strict=True) if ready and state]
