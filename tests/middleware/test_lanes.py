"""Classes and their rules, a request's class, a request's tenant."""

from array import array

import pytest

from smg.config import Config
from smg.config.tree import Admission, PriorityScheduler, Server, Tenants
from smg.errors import Unauthorized
from smg.middleware import SeatGauges
from smg.middleware.auth import load_keys
from smg.middleware.lanes import DEFAULT, PriorityReader, lanes_of
from smg.middleware.tenant import TenantReader
from smg.obs.metrics import Meter
from smg.obs.seats import Seats
from smg.obs.shm import Shm
from tests.shm.memory import shared_memory

FILE = """
classes:
  interactive: {reserved: 10, queue_timeout_secs: 7}
  bulk: {queue_size: 3, can_preempt: true}
tenant_policies:
  auth:acme: {max_class: system}
"""


def config(tmp_path, **priority):
    file = tmp_path / "priority.yaml"
    file.write_text(FILE)
    return Config(priority_scheduler=PriorityScheduler(enabled=True, config=str(file), **priority))


def test_one_queue_without_classes():
    lanes = lanes_of(Config(admission=Admission(max_concurrent_requests=7, queue_size=9)), engines=lambda: 3)
    assert list(lanes.rules()) == [7, 0, 0, 0, 0]
    assert [lane.queue_size for lane in lanes.lanes] == [0, 0, 9, 0]
    assert not lanes.preemptors


def test_the_file_changes_what_it_names(tmp_path):
    lanes = lanes_of(config(tmp_path), engines=lambda: 1)
    _, interactive, default, bulk = lanes.lanes
    assert (interactive.reserved, interactive.share, interactive.queue_timeout_s, interactive.queue_size) == (10, 0.25, 7, 256)
    assert (bulk.queue_size, bulk.queue_timeout_s) == (3, 300)
    assert (default.queue_size, lanes.preemptors) == (512, 0b1011)


def test_seats_follow_the_engines_and_at_most_half_of_them_are_kept():
    engines = 2
    lanes = lanes_of(Config(priority_scheduler=PriorityScheduler(enabled=True)), engines=lambda: engines)
    assert list(lanes.rules()) == [512, 32, 128, 52, 0]
    engines = 1
    seats, *kept = lanes.rules()
    assert (seats, kept) == (256, [22, 88, 17, 0])
    assert sum(kept) <= 128


@pytest.mark.parametrize(
    ("word", "tenant", "name"),
    [
        (None, "a", "default"),
        ("bulk", "a", "bulk"),
        (" Interactive ", "a", "interactive"),
        ("system", "a", "interactive"),
        ("SYSTEM", "auth:acme", "system"),
        ("urgent", "a", "default"),
        ("", "a", "default"),
    ],
)
def test_a_request_has_the_class_it_asks_for_within_its_tenants_highest(tmp_path, word, tenant, name):
    shm = Shm(shared_memory(rows=4))
    reader = PriorityReader(config(tmp_path, default_max_class="interactive"), meter=Meter(shm, row=2))
    rank = reader.rank({} if word is None else {"x-smg-priority": word}, tenant)
    assert ("system", "interactive", "default", "bulk")[rank] == name
    counted = {key.decode() for key, _ in shm.totals()}
    assert ("smg_scheduler_unknown_priority_value_total" in "".join(counted)) is (word in ("urgent", ""))
    assert ("smg_scheduler_clamp_total" in "".join(counted)) is (word == "system")


def test_metrics_name_few_tenants(tmp_path):
    shm = Shm(shared_memory(rows=4))
    reader = PriorityReader(config(tmp_path, tenant_metric_top_n=2), meter=Meter(shm, row=2))
    for number in range(50):
        reader.rank({"x-smg-priority": "?"}, f"tenant {number}")
    assert len(shm.totals()) == 3


def test_processes_and_those_after_them_name_no_more_tenants(tmp_path):
    shm = Shm(shared_memory(rows=8))
    for life in range(6):
        reader = PriorityReader(config(tmp_path, tenant_metric_top_n=2), meter=Meter(shm, row=2 + life))
        for number in range(5):
            reader.rank({"x-smg-priority": "?"}, f'tenant "{life}" {number}')
    assert len(shm.totals()) == 3


@pytest.mark.parametrize(
    ("authorized", "header", "client", "trusted", "name"),
    [
        ("auth:a", "b", "1.2.3.4:5", True, "auth:a"),
        ("", "b", "1.2.3.4:5", True, "header:b"),
        ("", "b", "1.2.3.4:5", False, "ip:1.2.3.4"),
        ("", " ", "[::1]:5", True, "ip:::1"),
        ("", "b\x07", "1.2.3.4:5", True, "ip:1.2.3.4"),
        ("", "b" * 129, "", True, "anonymous"),
    ],
)
def test_whose_a_request_is(authorized, header, client, trusted, name):
    reader = TenantReader(Tenants(trust_header=trusted, header_name="X-Tenant"))
    assert reader.name({"x-tenant": header}, authorized=authorized, client=client) == name


def test_a_key_tells_its_tenant():
    keys = load_keys(Config(tenants=Tenants(api_key=("acme:k:1", "other: k2")), server=Server(api_key=("k3",))))
    assert keys.check({"authorization": "Bearer k:1"}) == "auth:acme"
    assert keys.check({"authorization": "Bearer k2"}) == "auth:other"
    assert keys.check({"authorization": "Bearer k3"}).startswith("auth:")
    with pytest.raises(Unauthorized):
        keys.check({"authorization": "Bearer acme"})


def test_gauges_tell_seats_and_queues():
    shm = Shm(shared_memory(rows=4))
    seats, one = Seats(shm), array("q", [1, 0, 0, 0, 0])
    seats.take(2, DEFAULT, one, 0)
    seats.enter(2, DEFAULT, 5)
    limited = Config(admission=Admission(max_concurrent_requests=2, queue_size=4))
    told = {(sample.name, sample.labels): sample.value for sample in SeatGauges(limited, shm=shm, engines=lambda: 1).samples()}
    assert told["smg_scheduler_inflight", ("default",)] == 1
    assert told["smg_scheduler_queue_depth", ("default",)] == 1
    assert told["smg_scheduler_queue_size_limit", ("default",)] == 4
    assert told["smg_scheduler_class_capacity_pressure", ("default",)] == 0.5
    assert told["smg_scheduler_utilization", ()] == 0.5
    assert list(SeatGauges(Config(), shm=shm, engines=lambda: 1).samples()) == []
