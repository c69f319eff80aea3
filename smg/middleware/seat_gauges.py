"""What the control process tells of seats and queues at a scrape. Called by `smg.server.control`."""

from array import array
from collections.abc import Callable, Iterator

from smg.config import Config
from smg.config.classes import CLASSES
from smg.middleware.gate import is_seated
from smg.middleware.lanes import lanes_of
from smg.obs.metrics import Sample
from smg.obs.seats import Seats
from smg.obs.shm import Shm

__all__ = ["SeatGauges"]


class SeatGauges:
    """Nothing where nobody needs a seat. `engines()` gives the number of engines there are."""

    def __init__(self, config: Config, *, shm: Shm, engines: Callable[[], int]) -> None:
        self._seats = Seats(shm) if is_seated(config) else None
        self._lanes = lanes_of(config, engines=engines)

    def samples(self) -> Iterator[Sample]:
        """Gives the gauges."""
        if self._seats is None:
            return
        counts = array("q", [0] * (2 * len(CLASSES)))
        self._seats.counts(counts)
        running, waiting = counts[: len(CLASSES)], counts[len(CLASSES) :]
        limit = max(self._lanes.rules()[0], 1)
        for rank, lane in enumerate(self._lanes.lanes):
            yield Sample("smg_scheduler_inflight", (lane.name,), running[rank])
            yield Sample("smg_scheduler_queue_depth", (lane.name,), waiting[rank])
            yield Sample("smg_scheduler_queue_size_limit", (lane.name,), lane.queue_size)
            pressure = max(waiting[rank] / max(lane.queue_size, 1), running[rank] / limit)
            yield Sample("smg_scheduler_class_capacity_pressure", (lane.name,), min(pressure, 1.0))
        yield Sample("smg_scheduler_utilization", (), sum(running) / limit)
