"""Seats and queues of several processes, played by as many admissions in one loop: order, deadlines, leaving, preemption, starving."""

import asyncio
import random
from array import array

import pytest

from smg.config import Config
from smg.config.tree import Admission as AdmissionConfig
from smg.errors import QueueFull, QueueTimeout
from smg.middleware import admission
from smg.middleware.admission import Admission
from smg.middleware.lanes import DEFAULT, Lane, Lanes, lanes_of
from smg.middleware.starts import StartRate
from smg.obs.buckets import Buckets
from smg.obs.metrics import Meter
from smg.obs.seats import Seats
from smg.obs.shm import Shm
from tests.server.serving import until
from tests.shm.memory import shared_memory

SYSTEM, INTERACTIVE, BULK = 0, 1, 3
NAMES = ("system", "interactive", "default", "bulk")


class Bells:
    """Rings by calling; `lost` rings reach nobody."""

    def __init__(self):
        self.admissions = {}
        self.lost = False

    def ring(self, row):
        if not self.lost and row in self.admissions:
            asyncio.get_running_loop().call_soon(self.admissions[row].look)


class Node:
    """The data workers of one gateway."""

    def __init__(self, *, limit=2, room=100, timeout_s=50.0, workers=3, lanes=None, rate=0):
        self.shm = Shm(shared_memory(rows=8))
        self.seats = Seats(self.shm)
        self.bells = Bells()
        config = Config(admission=AdmissionConfig(max_concurrent_requests=limit, queue_size=room, queue_timeout_s=timeout_s))
        lanes = lanes or lanes_of(config, engines=lambda: 1)
        starts = StartRate(Buckets(self.shm), per_second=rate, burst=limit) if rate else None
        for row in range(2, 2 + workers):
            meter = Meter(self.shm, row=row)
            self.bells.admissions[row] = Admission(self.seats, row=row, bell=self.bells, lanes=lanes, meter=meter, starts=starts)
        self.workers = list(self.bells.admissions.values())

    def counts(self):
        out = array("q", [0] * 8)
        self.seats.counts(out)
        return sum(out[:4]), sum(out[4:])

    def metric(self, text):
        return next((values[0] for key, values in self.shm.totals() if key.decode() == text), 0)


def lanes(limit, **changes):
    def lane(name):
        return Lane(name=name, queue_size=10, queue_timeout_s=50, **changes.get(name, {}))

    return Lanes(tuple(map(lane, NAMES)), capacity=lambda: limit)


class Request:
    """A request that runs until it is told to end."""

    def __init__(self, worker, rank=DEFAULT, *, ran=None):
        self.permit = None
        self.error = None
        self.begun = False  # the client has a byte
        self.gone = asyncio.Event()
        self.ran = ran if ran is not None else []
        self.task = asyncio.create_task(self._run(worker, rank))

    async def _run(self, worker, rank):
        try:
            self.permit = await worker.enter(rank)
        except (QueueFull, QueueTimeout) as error:
            self.error = error
            return
        self.ran.append(self)
        self.permit.hold(self)
        try:
            await self.gone.wait()
        finally:
            self.permit.close()
            self.permit.close()

    def answered(self):
        return self.begun

    def give_way(self):
        self.error = "preempted"
        self.gone.set()


def run(scenario):
    asyncio.run(scenario())


@pytest.fixture
def only_rings(monkeypatch):
    """Nobody looks around by themselves."""
    monkeypatch.setattr(admission, "LOOK_S", 3600.0)


@pytest.mark.usefixtures("only_rings")
def test_order_over_processes():
    async def scenario():
        node, ran = Node(limit=1), []
        requests = []
        for number in range(12):
            requests.append(Request(node.workers[number % 3], ran=ran))
            await asyncio.sleep(0)
        assert node.counts() == (1, 11)
        for request in requests:
            await until(lambda request=request: request.permit)
            assert node.counts()[0] == 1
            request.gone.set()
        await until(lambda: node.counts() == (0, 0))
        assert ran == requests
        assert node.metric('smg_http_rate_limit_total{result="allowed"}') == 12

    run(scenario)


def test_full_and_late():
    async def scenario():
        node = Node(limit=1, room=1, timeout_s=0.5)
        first = Request(node.workers[0])
        await until(lambda: first.permit)
        late = Request(node.workers[1])
        await until(lambda: node.counts() == (1, 1))
        full = Request(node.workers[2])
        await until(lambda: full.error and late.error)
        assert (type(full.error), full.error.retry_after_s, full.error.status) == (QueueFull, 1, 429)
        assert (type(late.error), late.error.status) == (QueueTimeout, 408)
        assert node.counts() == (1, 0)
        first.gone.set()
        await until(lambda: node.counts() == (0, 0))
        for outcome in ("admitted", "rejected_queue_full", "rejected_queue_timeout"):
            assert node.metric(f'smg_scheduler_admit_total{{class="default",outcome="{outcome}"}}') == 1

    run(scenario)


@pytest.mark.parametrize("lost", [False, True])
def test_who_leaves_makes_room_for_the_next(lost, monkeypatch):
    """Also one that was given its seat in the same moment; and when rings are lost."""
    if not lost:
        monkeypatch.setattr(admission, "LOOK_S", 3600.0)

    async def scenario():
        node = Node(limit=1)
        node.bells.lost = lost
        first = Request(node.workers[0])
        await until(lambda: first.permit)
        given, left, last = [], [], []
        for worker, group in zip(node.workers, (given, left, last), strict=True):
            group.append(Request(worker))
            await until(lambda: node.counts()[1] == len(given) + len(left) + len(last))
        left[0].task.cancel()
        await until(lambda: node.counts() == (1, 2))
        first.permit.close()
        if not lost:
            await asyncio.sleep(0)  # the ring; the seat is given, and its task has not run yet
        given[0].task.cancel()
        await until(lambda: last[0].permit)
        last[0].gone.set()
        first.gone.set()
        await until(lambda: node.counts() == (0, 0))
        await asyncio.gather(*(group[0].task for group in (given, left)), return_exceptions=True)

    run(scenario)


def test_no_more_than_the_limit_and_nothing_left_whatever_happens():
    async def scenario():
        choose = random.Random(5)
        node, requests, most = Node(limit=3, room=20), [], 0
        for _ in range(2000):
            what = choose.random()
            if what < 0.5:
                requests.append(Request(choose.choice(node.workers)))
            elif requests and what < 0.7:
                choose.choice(requests).task.cancel()
            elif requests:
                choose.choice(requests).gone.set()
            if choose.random() < 0.4:
                await asyncio.sleep(0)
            requests = [request for request in requests if not request.task.done()]
            running, waiting = node.counts()
            most = max(most, running)
            assert running <= 3
            assert waiting <= 20
        assert most == 3
        for request in requests:
            request.task.cancel()
        await until(lambda: node.counts() == (0, 0))

    run(scenario)


def test_a_dead_process_is_forgotten():
    async def scenario():
        node = Node(limit=1)
        dead = Request(node.workers[0])
        await until(lambda: dead.permit)
        behind, waits = Request(node.workers[0]), Request(node.workers[1])
        await until(lambda: node.counts() == (1, 2))
        behind.task.cancel()
        dead.task.cancel()
        node.bells.admissions.pop(2)
        node.seats.clear(2)
        await until(lambda: waits.permit)
        waits.gone.set()
        await until(lambda: node.counts() == (0, 0))

    run(scenario)


def test_preemption():
    """The latest of the lowest class that has not answered; one a waiter; never one that has answered."""

    async def scenario():
        node = Node(limit=3, lanes=lanes(3, interactive={"can_preempt": True}))
        answered, earlier, latest = [Request(node.workers[0], BULK) for _ in range(3)]
        await until(lambda: latest.permit)
        answered.begun = latest.begun = True
        high = Request(node.workers[1], INTERACTIVE)
        await until(lambda: high.permit)
        assert (earlier.error, latest.error) == ("preempted", None)
        assert node.metric('smg_scheduler_preemption_total{by_class="interactive",victim_class="bulk"}') == 1
        low, higher = Request(node.workers[2], DEFAULT), Request(node.workers[2], INTERACTIVE)
        await until(lambda: node.counts() == (3, 2))
        await asyncio.sleep(0.25)  # they look around, and find nobody to ask
        assert node.counts() == (3, 2)
        latest.gone.set()
        await until(lambda: higher.permit)
        for request in (answered, high, higher, low):
            request.gone.set()
        await until(lambda: node.counts() == (0, 0))

    run(scenario)


def test_who_starves_goes_first():
    async def scenario():
        node = Node(limit=1, lanes=lanes(1, bulk={"starvation_s": 0.05}))
        first = Request(node.workers[0])
        await until(lambda: first.permit)
        starving = Request(node.workers[0], BULK)
        high = Request(node.workers[1], SYSTEM)
        await until(lambda: node.metric('smg_scheduler_starvation_promotion_total{class="bulk"}'))
        first.gone.set()
        await until(lambda: starving.permit)
        assert high.permit is None
        starving.gone.set()
        await until(lambda: high.permit)
        high.gone.set()
        await until(lambda: node.counts() == (0, 0))

    run(scenario)


class Counted:
    """Lets every request begin, and counts them."""

    count = 0

    def take(self):
        self.count += 1
        return 0.0

    def give(self):
        self.count -= 1


class LosesOnce:
    """Seats of which the first that is claimed is another process's."""

    def __init__(self, seats):
        self.seats = seats
        self.lost = False

    def __getattr__(self, name):
        return getattr(self.seats, name)

    def claim(self, number, rules):
        if self.lost:
            return self.seats.claim(number, rules)
        self.lost = True
        return -1


def test_who_loses_a_seat_to_another_process_has_not_begun():
    async def scenario():
        node = Node(limit=1)
        starts = Counted()
        for worker in node.workers:
            worker._starts = starts
        first, second = Request(node.workers[0]), Request(node.workers[1])
        await until(lambda: first.permit and node.counts() == (1, 1))
        seats = node.workers[1]._seats = LosesOnce(node.seats)
        first.gone.set()
        await until(lambda: seats.lost)
        node.workers[1].look()
        await until(lambda: second.permit)
        assert starts.count == 2
        second.gone.set()
        await until(lambda: node.counts() == (0, 0))

    run(scenario)


def test_a_start_that_is_given_back_is_anothers(monkeypatch):
    monkeypatch.setattr("smg.middleware.starts.time.monotonic_ns", lambda: 1_000_000_000_000)
    rate = StartRate(Buckets(Shm(shared_memory(rows=3))), per_second=1, burst=2)
    assert [rate.take() for _ in range(3)] == [0, 0, 1]
    rate.give()
    assert [rate.take() for _ in range(2)] == [0, 1]


def test_requests_begin_at_a_rate():
    """A burst of two, then one in a while, though seats are free."""

    async def scenario():
        node = Node(limit=2, rate=1)
        ran = []
        quick = [Request(worker, ran=ran) for worker in (*node.workers, *node.workers)]
        for request in quick:
            request.gone.set()
        await until(lambda: len(ran) == 2 and node.counts() == (0, 4))
        await until(lambda: len(ran) == 3)
        assert ran == quick[:3]
        for request in quick:
            request.task.cancel()
        await until(lambda: node.counts() == (0, 0))

    run(scenario)
