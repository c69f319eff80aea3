"""The classes in which requests wait, with their rules; and which class a request belongs to. Built once a process from the config.

Without the priority scheduler all requests are of class `default` and its rules are those of `[admission]`.
"""

import math
from array import array
from collections.abc import Callable

from msgspec import Struct, structs

from smg.api.base import Headers
from smg.config import Config
from smg.config.classes import CLASSES, ClassName, PriorityClasses, read_priority_classes
from smg.obs.metrics import Meter

__all__ = ["DEFAULT", "ENGINE_SEATS", "Lane", "Lanes", "PriorityReader", "lanes_of"]

HEADER = "x-smg-priority"
UNKNOWN, CLAMPED = "smg_scheduler_unknown_priority_value_total", "smg_scheduler_clamp_total"
OTHERS = "other"
RANKS = {name: rank for rank, name in enumerate(CLASSES)}
DEFAULT = RANKS["default"]
# Requests that an engine runs at once, where nobody says how many: the default of vLLM's `max_num_seqs`.
ENGINE_SEATS = 256
MOST_SEATS = 65535


class Lane(Struct, frozen=True, kw_only=True):
    """One class. Kept for it are `reserved` seats, or `share` of all, whichever is more."""

    name: ClassName
    reserved: int = 0
    share: float = 0.0
    queue_size: int
    queue_timeout_s: float
    starvation_s: float = math.inf
    can_preempt: bool = False


# The original's defaults.
SCHEDULED = (
    Lane(name="system", reserved=32, queue_size=64, queue_timeout_s=30, starvation_s=5, can_preempt=True),
    Lane(name="interactive", reserved=128, share=0.25, queue_size=256, queue_timeout_s=30, starvation_s=5, can_preempt=True),
    Lane(name="default", share=0.1, queue_size=512, queue_timeout_s=60, starvation_s=30),
    Lane(name="bulk", queue_size=1024, queue_timeout_s=300, starvation_s=120),
)


class Lanes:
    """All classes, the highest first. `capacity()` gives the number of seats there are now."""

    def __init__(self, lanes: tuple[Lane, ...], *, capacity: Callable[[], int]) -> None:
        self.lanes = lanes
        self.preemptors = sum(1 << rank for rank, lane in enumerate(lanes) if lane.can_preempt)
        self._capacity = capacity
        self._rules = array("q", [-1] * (1 + len(lanes)))

    def rules(self) -> "array[int]":
        """Gives the number of seats, and how many are kept for each class, as `smg.obs.seats` wants them."""
        seats = self._capacity()
        if seats != self._rules[0]:
            self._rules = array("q", (seats, *self.kept(seats)))
        return self._rules

    def kept(self, seats: int) -> list[int]:
        """Gives the seats kept for each class: what it wants, but together at most half of all, so that the others are not locked out."""
        wanted = [max(lane.reserved, math.ceil(lane.share * seats)) for lane in self.lanes]
        most = seats // 2
        return wanted if sum(wanted) <= most else [one * most // sum(wanted) for one in wanted]


def lanes_of(config: Config, *, engines: Callable[[], int]) -> Lanes:
    """Gives the classes of a configuration; `engines()` gives the number of engines. Raises ConfigError for a file that is wrong."""
    admission = config.admission
    limit = admission.max_concurrent_requests
    if not config.priority_scheduler.enabled:
        idle = tuple(Lane(name=name, queue_size=0, queue_timeout_s=1) for name in CLASSES)
        only = structs.replace(idle[DEFAULT], queue_size=admission.queue_size, queue_timeout_s=admission.queue_timeout_s)
        return Lanes((*idle[:DEFAULT], only, *idle[DEFAULT + 1 :]), capacity=lambda: limit)
    changes = read_priority_classes(config.priority_scheduler.config).classes
    lanes = []
    for lane in SCHEDULED:
        if change := changes.get(lane.name):
            names = {"reserved_share": "share", "queue_timeout_secs": "queue_timeout_s", "starvation_threshold_secs": "starvation_s"}
            said = {name: value for name, value in structs.asdict(change).items() if value is not None}
            lane = structs.replace(lane, **{names.get(name, name): value for name, value in said.items()})
        lanes.append(lane)
    return Lanes(tuple(lanes), capacity=lambda: limit if limit > 0 else min(ENGINE_SEATS * max(engines(), 1), MOST_SEATS))


class PriorityReader:
    """Tells a request's class: what its header asks for, but no higher than its tenant may."""

    def __init__(self, config: Config, *, meter: Meter) -> None:
        policies: PriorityClasses = read_priority_classes(config.priority_scheduler.config)
        self._highest = {tenant: RANKS[policy.max_class] for tenant, policy in policies.tenant_policies.items()}
        self._default_highest = RANKS[config.priority_scheduler.default_max_class]
        self._meter = meter
        self._named: set[str] = set()
        self._most_named = config.priority_scheduler.tenant_metric_top_n

    def rank(self, headers: Headers, tenant: str) -> int:
        """Gives the rank. A word that is no class is taken for `default`, and counted."""
        word = headers.get(HEADER)
        asked = DEFAULT
        if word is not None:
            known = RANKS.get(word.strip().lower())  # type: ignore[call-overload]
            if known is None:
                self._meter.add(UNKNOWN, (self._label(tenant),))
            else:
                asked = known
        rank = max(asked, self._highest.get(tenant, self._default_highest))
        if rank != asked:
            self._meter.add(CLAMPED, (self._label(tenant), CLASSES[asked], CLASSES[rank]))
        return rank

    def _label(self, tenant: str) -> str:
        """The first tenants that are counted have their names in the metrics, whichever process counts: series are for good."""
        if tenant not in self._named and len(self._named) < self._most_named:
            self._named |= (self._meter.first_labels(UNKNOWN) | self._meter.first_labels(CLAMPED)) - {OTHERS}
            if len(self._named) < self._most_named:
                self._named.add(tenant)
        return tenant if tenant in self._named else OTHERS
