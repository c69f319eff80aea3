"""Circuit breakers, one an engine, shared by all processes: ends of requests in, whether an engine may have a request out.

Closed: all requests go there; `cb_failure_threshold` failures in a row, none a window after the first, open it. Open: none, until a
timeout has passed. Half open: as many at a time as must succeed to close it, over all processes; a failure of one of them opens it again.
What becomes of requests that began before does not count then. A breaker is one word in shared memory, changed by compare-and-swap: state,
a count of failures or successes, probes under way, the engine's epoch, and the time of the last change. Used by `WorkerView` and its
leases, and by the control process, which knows when an engine has come back.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from smg.config.tree import Resilience
from smg.obs.metrics import Sample
from smg.obs.shm import COUNT_FIELDS, Shm, now_ms

__all__ = ["CLOSED", "HALF_OPEN", "OPEN", "OUTCOMES", "Breaker", "Condition", "breaker_samples"]

CLOSED, OPEN, HALF_OPEN = range(3)
NAMES = ("closed", "open", "half_open")
STATE_BITS = 3
COUNT_AT, COUNT_BITS = 2, 1023
PROBES_AT, PROBE_BITS = 12, 63
EPOCH_AT, EPOCH_BITS = 18, 63
SINCE_AT, SINCE_BITS = 24, (1 << 39) - 1
# Changes of state, as counts of an engine.
TRANSITIONS = {
    (before, after): COUNT_FIELDS.index(f"{NAMES[before]}_{NAMES[after]}")
    for before, after in ((CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN))
}
OUTCOMES = {"success": COUNT_FIELDS.index("success"), "failure": COUNT_FIELDS.index("failure")}
# A closed breaker without failures has none of these.
TROUBLE = STATE_BITS | COUNT_BITS << COUNT_AT


class Condition(Struct, frozen=True):
    """What a breaker's word says. `count`: failures while closed, successes while half open; `since_ms`: begin of them, or of the state."""

    state: int = CLOSED
    count: int = 0
    probes: int = 0
    epoch: int = 0
    since_ms: int = 0

    @classmethod
    def of(cls, word: int) -> "Condition":
        """Reads a word."""
        return cls(
            word & STATE_BITS,
            word >> COUNT_AT & COUNT_BITS,
            word >> PROBES_AT & PROBE_BITS,
            word >> EPOCH_AT & EPOCH_BITS,
            word >> SINCE_AT & SINCE_BITS,
        )

    def word(self) -> int:
        """Gives the word again."""
        head = self.state | self.count << COUNT_AT | self.probes << PROBES_AT | self.epoch << EPOCH_AT
        return head | (self.since_ms & SINCE_BITS) << SINCE_AT


# From a condition and the time to the next one; None = nothing changes.
Change = Callable[[Condition, int], Condition | None]


class Breaker:
    """The breakers of all engines, by slot. `epoch` is that of the engine the caller means: a word of another one is left alone."""

    def __init__(self, shm: Shm, *, config: Resilience, clock: Callable[[], int] = now_ms) -> None:
        self._shm = shm
        self._clock = clock
        self._enabled = not config.disable_circuit_breaker
        self._failures = config.cb_failure_threshold
        self._successes = config.cb_success_threshold
        self._timeout_ms = int(config.cb_timeout_s * 1000)
        self._window_ms = int(config.cb_window_s * 1000)

    def condition(self, slot: int) -> Condition:
        """Gives the condition of a slot's breaker."""
        return Condition.of(self._shm.breaker(slot))

    def wait_ms(self, slot: int) -> int:
        """Gives the time until the engine may have a request; 0 = now."""
        now, at = self._clock(), self.condition(slot)
        left_ms = max(0, at.since_ms + self._timeout_ms - now)
        return left_ms if at.state == OPEN or (at.state == HALF_OPEN and at.probes >= self._successes) else 0

    def take_probe(self, slot: int, *, epoch: int) -> bool:
        """Begins a probe; False when the breaker lets nobody through. One that has closed meanwhile lets all through."""
        allowed = False

        def begin(at: Condition, now: int) -> Condition | None:
            nonlocal allowed
            over = now - at.since_ms >= self._timeout_ms  # half open: those who took the probes are dead or hang
            allowed = at.state == CLOSED or over or (at.state == HALF_OPEN and at.probes < self._successes)
            if at.state == CLOSED or not allowed:
                return None
            if at.state == OPEN:
                return structs.replace(at, state=HALF_OPEN, count=0, probes=1, since_ms=now)
            return structs.replace(at, probes=1, since_ms=now) if over else structs.replace(at, probes=at.probes + 1)

        self._change(slot, epoch, begin)
        return allowed

    def give_back(self, slot: int, *, epoch: int) -> None:
        """Ends a probe that has shown nothing."""

        def end(at: Condition, _: int) -> Condition | None:
            return structs.replace(at, probes=at.probes - 1) if at.state == HALF_OPEN and at.probes else None

        self._change(slot, epoch, end)

    def succeed(self, slot: int, *, epoch: int, probe: bool = False) -> None:
        """A request went well. Costs one load where there was no failure."""
        if not (self._enabled and self._shm.breaker(slot) & TROUBLE):
            return

        def better(at: Condition, now: int) -> Condition | None:
            if at.state == CLOSED:
                return structs.replace(at, count=0) if at.count else None
            if at.state == OPEN or not probe:
                return None
            if at.count + 1 >= self._successes:
                return structs.replace(at, state=CLOSED, count=0, probes=0, since_ms=now)
            return structs.replace(at, count=at.count + 1, probes=max(0, at.probes - 1))

        self._change(slot, epoch, better)

    def fail(self, slot: int, *, epoch: int, probe: bool = False) -> None:
        """The engine failed a request."""

        def worse(at: Condition, now: int) -> Condition | None:
            if at.state == HALF_OPEN and probe:
                return structs.replace(at, state=OPEN, count=0, probes=0, since_ms=now)
            if at.state != CLOSED:
                return None
            fresh = not at.count or now - at.since_ms > self._window_ms
            count = 1 if fresh else at.count + 1
            if count >= self._failures:
                return structs.replace(at, state=OPEN, count=0, since_ms=now)
            return structs.replace(at, count=count, since_ms=now if fresh else at.since_ms)

        if self._enabled:
            self._change(slot, epoch, worse)

    def came_back(self, slot: int, *, epoch: int) -> None:
        """The engine is ready anew: probes may begin at once."""

        def half(at: Condition, now: int) -> Condition | None:
            return structs.replace(at, state=HALF_OPEN, count=0, probes=0, since_ms=now) if at.state == OPEN else None

        self._change(slot, epoch, half)

    def _change(self, slot: int, epoch: int, change: Change) -> None:
        """Makes a change on the word as it is, again as long as others are quicker."""
        while True:
            word = self._shm.breaker(slot)
            before = Condition.of(word)
            if before.epoch != epoch & EPOCH_BITS:
                return
            after = change(before, self._clock())
            if after is None:
                return
            if self._shm.swap_breaker(slot, word, after.word()):
                break
        if after.state != before.state:
            self._shm.count(slot, epoch, TRANSITIONS[before.state, after.state])


def breaker_samples(shm: Shm, slot: int, url: str) -> Iterator[Sample]:
    """Gives the metrics of an engine's breaker: how it is, and what was counted since the engine was registered.

    They are read from the engine's slot and not kept as series, so that engines that come and go leave none behind.
    """
    at, counts = Condition.of(shm.breaker(slot)), shm.counts(slot)
    yield Sample("smg_worker_cb_state", (url,), at.state)
    yield Sample("smg_worker_cb_consecutive_failures", (url,), at.count if at.state == CLOSED else 0)
    yield Sample("smg_worker_cb_consecutive_successes", (url,), at.count if at.state == HALF_OPEN else 0)
    for outcome, field in OUTCOMES.items():
        yield Sample("smg_worker_cb_outcomes_total", (url, outcome), counts[field])
    for (before, after), field in TRANSITIONS.items():
        yield Sample("smg_worker_cb_transitions_total", (url, NAMES[before], NAMES[after]), counts[field])
