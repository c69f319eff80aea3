"""Who may run, who waits and for how long, who has to give way. One a data worker; the seats are those of all processes.

In: the class of a request. Out: a permit, to be closed when the request has ended; or QueueFull, QueueTimeout. Where a seat becomes free,
its process looks who is next and rings that one's process; the next takes the seat by itself. Called by `smg.middleware.gate`.
"""

import asyncio
from typing import Protocol

from smg.config.classes import CLASSES
from smg.errors import QueueFull, QueueTimeout
from smg.middleware.lanes import Lanes
from smg.obs.metrics import Counter, Histogram, Meter
from smg.obs.seats import Seats
from smg.obs.shm import now_ms

__all__ = ["Admission", "Holder", "Permit", "Ringer", "Starts"]

# Who waits looks around this often, in case that a ring was lost with the process that was to be rung, or to ring.
LOOK_S = 0.1
RETRY_AFTER_S = 1


class Ringer(Protocol):
    """See `Bell`."""

    def ring(self, row: int) -> None:
        """Tells another process to look who is next."""


class Starts(Protocol):
    """How many requests may begin; see `smg.middleware.starts`."""

    def take(self) -> float:
        """Gives 0 when one more may begin, else the seconds to wait."""

    def give(self) -> None:
        """One did not begin."""


class Holder(Protocol):
    """Who has a seat."""

    def answered(self) -> bool:
        """True once the client has a byte of the answer."""

    def give_way(self) -> None:
        """Ends the request for one of a higher class."""


class Permit:
    """A seat, until it is closed."""

    __slots__ = ("_admission", "asked", "holder", "rank", "seat")

    def __init__(self, admission: "Admission", *, seat: int, rank: int) -> None:
        self._admission = admission
        self.seat = seat
        self.rank = rank
        self.holder: Holder | None = None
        self.asked = False

    def hold(self, holder: Holder) -> None:
        """Says who can give the seat up. It may have been asked for already."""
        self.holder = holder
        self._admission.answer()

    def close(self) -> None:
        """Gives the seat back; may be called again."""
        seat, self.seat, self.holder = self.seat, -1, None
        if seat >= 0:
            self._admission.give_back(seat)


class Waiter:
    """A request that waits. `seat` is done with the number of its seat."""

    __slots__ = ("number", "rank", "seat", "since_s", "starving")

    def __init__(self, number: int, *, rank: int, since_s: float, seat: "asyncio.Future[int]") -> None:
        self.number = number
        self.rank = rank
        self.since_s = since_s
        self.seat = seat
        self.starving = False


class LaneSeries:
    """What is counted of one class."""

    def __init__(self, meter: Meter, name: str) -> None:
        def outcome(word: str) -> Counter:
            return meter.counter("smg_scheduler_admit_total", (name, word))

        self.admitted = outcome("admitted")
        self.full = outcome("rejected_queue_full")
        self.late = outcome("rejected_queue_timeout")
        self.left = outcome("client_cancelled")
        self.preempted = outcome("preempted")
        self.waits: Histogram = meter.histogram("smg_scheduler_queue_wait_seconds", (name,))


class Admission:
    """Gives seats to the requests of one process, `row`."""

    def __init__(self, seats: Seats, *, row: int, bell: Ringer, lanes: Lanes, meter: Meter, starts: Starts | None = None) -> None:
        self._seats = seats
        self._row = row
        self._bell = bell
        self._lanes = lanes
        self._meter = meter
        self._starts = starts
        self._series = [LaneSeries(meter, name) for name in CLASSES]
        self._allowed = meter.counter("smg_http_rate_limit_total", ("allowed",))
        self._rejected = meter.counter("smg_http_rate_limit_total", ("rejected",))
        self._waiting: dict[int, Waiter] = {}
        self._held: dict[int, Permit] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None

    async def enter(self, rank: int) -> Permit:
        """Gives a permit as soon as there is a seat. Raises QueueFull at once, QueueTimeout when its time to wait is over."""
        seat = self._newcomer(rank)
        if seat >= 0:
            return self._permit(seat, rank)
        lane, series = self._lanes.lanes[rank], self._series[rank]
        number = self._seats.enter(self._row, rank, lane.queue_size)
        if number < 0:
            series.full.add()
            self._rejected.add()
            raise QueueFull(f"the queue is full: requests that wait: {lane.queue_size}", retry_after_s=RETRY_AFTER_S)
        waiter = self._waiting[number] = Waiter(number, rank=rank, since_s=self._loop.time(), seat=self._loop.create_future())
        self._admit_waiting()
        if self._lanes.preemptors >> rank & 1:
            self._ask(rank)
        self._watch()
        try:
            seat = await waiter.seat
        except BaseException as error:
            self._left(waiter)
            if isinstance(error, QueueTimeout):
                series.late.add()
                self._rejected.add()
            else:
                series.left.add()
            raise
        finally:
            series.waits.observe(self._loop.time() - waiter.since_s)
        return self._permit(seat, rank)

    def look(self) -> None:
        """Gives up the seats that were asked for, and lets in who may come. Called when somebody rang."""
        self.answer()
        self._admit_waiting()

    def answer(self) -> None:
        """Ends requests whose seats were asked for, unless their clients have a part of the answer: all such seats are made safe."""
        if not self._lanes.preemptors or not any(self._seats.asked(permit.seat) >= 0 for permit in self._held.values()):
            return
        for permit in list(self._held.values()):
            if permit.holder is None or permit.asked:
                continue
            by = self._seats.asked(permit.seat)
            if permit.holder.answered():
                self._seats.protect(permit.seat)
            elif by >= 0:
                permit.asked = True
                self._series[permit.rank].preempted.add()
                self._meter.add("smg_scheduler_preemption_total", (CLASSES[by], CLASSES[permit.rank]))
                permit.holder.give_way()

    def give_back(self, seat: int) -> None:
        """Takes a seat back."""
        del self._held[seat]
        self._seats.give(seat)
        self._admit_waiting()

    def close(self) -> None:
        """Ends the timers."""
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()

    def _newcomer(self, rank: int) -> int:
        seat = self._seats.take(self._row, rank, self._lanes.rules(), now_ms())
        if seat >= 0 and self._starts is not None and self._starts.take():
            self._seats.give(seat)
            return -1
        return seat

    def _permit(self, seat: int, rank: int) -> Permit:
        self._series[rank].admitted.add()
        self._allowed.add()
        permit = self._held[seat] = Permit(self, seat=seat, rank=rank)
        return permit

    def _admit_waiting(self) -> None:
        """Seats those of this process who are next; rings the process of the next when that is another one."""
        rules = self._lanes.rules()
        while (found := self._seats.next(rules, now_ms())) >= 0:
            number, row = found >> 16, found & 0xFFFF
            if row != self._row:
                self._bell.ring(row)
                return
            waiter = self._waiting.get(number)
            if waiter is None or waiter.seat.done():  # its task was cancelled and has not run since
                self._seats.leave(number)
                continue
            if self._starts is not None and (wait_s := self._starts.take()):
                self._look_later(wait_s)
                return
            seat = self._seats.claim(number, rules)
            if seat < 0:  # another process was quicker, and will look again when it has done
                if self._starts is not None:
                    self._starts.give()
                return
            del self._waiting[number]
            waiter.seat.set_result(seat)

    def _left(self, waiter: Waiter) -> None:
        """A waiter goes without a seat; one that it was given in the same moment goes back."""
        if self._waiting.get(waiter.number) is waiter:
            del self._waiting[waiter.number]
            self._seats.leave(waiter.number)
        elif not waiter.seat.cancelled() and waiter.seat.exception() is None:
            self._seats.give(waiter.seat.result())
        self._admit_waiting()

    def _ask(self, rank: int) -> None:
        row = self._seats.ask(rank, self._lanes.preemptors, self._lanes.rules(), now_ms())
        if row == self._row:
            self._loop.call_soon(self.answer)
        elif row >= 0:
            self._bell.ring(row)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        for waiter in list(self._waiting.values()):
            self._age(waiter, now - waiter.since_s)
        self.look()
        for rank in sorted({waiter.rank for waiter in self._waiting.values() if self._lanes.preemptors >> waiter.rank & 1}):
            self._ask(rank)
        if self._waiting:
            self._watch()

    def _age(self, waiter: Waiter, age_s: float) -> None:
        lane = self._lanes.lanes[waiter.rank]
        if age_s >= lane.queue_timeout_s and not waiter.seat.done():
            del self._waiting[waiter.number]
            self._seats.leave(waiter.number)
            waiter.seat.set_exception(QueueTimeout(f"no seat within {lane.queue_timeout_s:g} s", retry_after_s=RETRY_AFTER_S))
        elif age_s >= lane.starvation_s and not waiter.starving:
            waiter.starving = True
            self._seats.starve(waiter.number)
            self._meter.add("smg_scheduler_starvation_promotion_total", (lane.name,))

    def _look_later(self, wait_s: float) -> None:
        """A request may begin only after a while: no other one of this process before."""
        if self._later is None:
            self._later = self._loop.call_later(wait_s, self._look_again)

    def _look_again(self) -> None:
        self._later = None
        self._admit_waiting()
