"""What every registered routing policy must do."""

import collections
import tracemalloc

import pytest

from smg.policy import POLICIES, Candidate, RouteRequest
from smg.types.job import Routing

REQUEST = RouteRequest(prompt_ids=[1, 2, 3], routing=Routing())
FAIR = ["round_robin", "random", "least_load", "power_of_two"]


def fleet(size: int, *, load: int = 0) -> list[Candidate]:
    """Candidates with slots 3, 5, 7, … as after removals."""
    return [Candidate(3 + 2 * i, f"grpc://engine-{i}", load, load * 100) for i in range(size)]


@pytest.mark.parametrize("name", POLICIES.names())
@pytest.mark.parametrize("size", [1, 2, 256])
def test_gives_an_index_of_the_candidates(name: str, size: int) -> None:
    policy = POLICIES.get(name)()
    candidates = fleet(size)
    assert all(0 <= policy.select(candidates, request=REQUEST) < size for _ in range(2000))


@pytest.mark.parametrize("name", FAIR)
def test_is_fair_on_ties(name: str) -> None:
    policy = POLICIES.get(name)()
    counts = collections.Counter(policy.select(fleet(4), request=REQUEST) for _ in range(4000))
    assert all(850 < counts[i] < 1150 for i in range(4)), counts


@pytest.mark.parametrize("name", POLICIES.names())
def test_survives_a_changing_fleet(name: str) -> None:
    policy = POLICIES.get(name)()
    for size in (5, 1, 3, 256, 2):
        assert 0 <= policy.select(fleet(size), request=REQUEST) < size


@pytest.mark.parametrize("name", POLICIES.names())
def test_keeps_nothing_that_grows(name: str) -> None:
    policy = POLICIES.get(name)()
    candidates = fleet(16)
    for _ in range(100):
        policy.select(candidates, request=REQUEST)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(5000):
        policy.select(candidates, request=REQUEST)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000


@pytest.mark.parametrize("name", ["least_load", "power_of_two"])
def test_prefers_the_idle_engine(name: str) -> None:
    policy = POLICIES.get(name)()
    candidates = [Candidate(0, "a", 5, 500), Candidate(1, "b", 0, 0)]
    assert {policy.select(candidates, request=REQUEST) for _ in range(50)} == {1}


def test_round_robin_walks_the_slots_in_order() -> None:
    policy = POLICIES.get("round_robin")()
    chosen = [policy.select(fleet(3), request=REQUEST) for _ in range(6)]
    assert chosen[:3] == chosen[3:]
    assert sorted(chosen[:3]) == [0, 1, 2]


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(KeyError, match="round_robin"):
        POLICIES.get("round_robbin")
