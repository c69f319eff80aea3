"""The one score: what is queued at an engine, by our own count and by what it reports."""

from collections.abc import Callable

import msgspec
import pytest

from smg.config.tree import Routing as RoutingConfig
from smg.policy import Candidate, Candidates, Policy, RouteRequest
from smg.types.candidate import OVERLOADED
from smg.types.job import Routing

Make = Callable[..., Policy]
REQUEST = RouteRequest(prompt_ids=[1, 2, 3], routing=Routing())
SCORED = ["least_load", "power_of_two", "cache_aware"]
# The most that may be set of what the score is made of.
MOST_SET = {
    "request_cost_tokens": 1 << 24,
    "least_load_mean_prefill_tokens": 1 << 24,
    "least_load_kv_pressure_weight": 3600.0,
    "least_load_default_throughput": 1e8,
}


def chosen(policy: Policy, *candidates: Candidate) -> set[int]:
    return {policy.select(Candidates(candidates), request=REQUEST) for _ in range(40)}


@pytest.mark.parametrize("name", SCORED)
def test_work_of_others_is_work(name: str, make: Make) -> None:
    others = Candidate(0, "a", 0, 0, foreign_requests=8, foreign_tokens=900)
    assert chosen(make(name), others, Candidate(1, "b", 3, 600)) == {1}
    assert chosen(make(name), others, Candidate(1, "b", 9, 4000)) == {0}


@pytest.mark.parametrize("name", SCORED)
def test_requests_that_wait_with_an_untold_number_of_tokens_are_taken_for_long_ones(name: str, make: Make) -> None:
    others, ours = Candidate(0, "a", 0, 0, foreign_requests=2, foreign_untold=2), Candidate(1, "b", 3, 1000)
    assert chosen(make(name), others, ours) == {1}
    assert chosen(make(name, least_load_mean_prefill_tokens=100), others, ours) == {0}


@pytest.mark.parametrize("name", SCORED)
def test_a_full_cache_weighs(name: str, make: Make) -> None:
    full, busy = Candidate(0, "a", 0, 0, usage=0.9), Candidate(1, "b", 4, 1000)
    assert chosen(make(name), full, busy) == {1}
    assert chosen(make(name, least_load_kv_pressure_weight=0), full, busy) == {0}
    assert Candidate(0, "a", 0, 0, usage=0.5).work(make(name).cost) == 300
    assert Candidate(0, "a", 0, 0, usage=7.0).work(make(name).cost) < 1_000_000


@pytest.mark.parametrize("name", [*SCORED, "prefix_hash"])
def test_an_overloaded_engine_comes_last(name: str, make: Make) -> None:
    over, busy = Candidate(0, "a", 0, 0, usage=0.96), Candidate(1, "b", 500, 500_000, usage=0.9)
    assert chosen(make(name, overload_token_usage_threshold=0.95), over, busy) == {1}
    if name != "prefix_hash":
        assert chosen(make(name), over, busy) == {0}
    both = Candidates([Candidate(slot, str(slot), slot, 0, usage=0.99) for slot in (0, 1)])
    assert chosen(make(name, overload_token_usage_threshold=0.95), *both) <= {0, 1}


@pytest.mark.parametrize("name", [*MOST_SET, "load_monitor_interval_s"])
@pytest.mark.parametrize("value", [1 << 63, 1e19, float("inf"), float("nan")])
def test_settings_that_the_score_has_no_room_for_are_refused(name: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert({name: value}, RoutingConfig)


def test_whatever_is_set_and_reported_an_overloaded_engine_comes_last(make: Make) -> None:
    assert msgspec.convert(MOST_SET, RoutingConfig)
    cost = make("least_load", **MOST_SET).cost
    most = Candidate(0, "a", 1 << 20, 1 << 40, 1 << 60, 1 << 60, 1 << 60, usage=1.0)
    assert most.work(cost) < OVERLOADED


def test_affinity_is_not_dropped_for_a_little_load_nor_kept_against_a_lot(make: Make) -> None:
    """Known bugs B111 and B114, with the load of other gateways in place of our own."""
    ids = list(range(2000))
    request = RouteRequest(prompt_ids=ids, routing=Routing())
    policy = make("cache_aware")
    home = policy.select(Candidates([Candidate(slot, str(slot), 0, 0) for slot in range(3)]), request=request)

    def loads(at_home: int) -> Candidates:
        counts = [at_home if slot == home else 10 for slot in range(3)]
        return Candidates([Candidate(slot, str(slot), 0, 0, foreign_requests=count, foreign_tokens=0) for slot, count in enumerate(counts)])

    assert policy.select(loads(30), request=request) == home
    assert policy.select(loads(90), request=request) != home
