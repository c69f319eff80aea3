"""What every registered routing policy must do."""

import collections
import random
import tracemalloc
from array import array
from collections.abc import Callable

import pytest

from smg.policy import POLICIES, Candidate, Candidates, Policy, RouteRequest
from smg.types.candidate import Cost
from smg.types.job import Routing

REQUEST = RouteRequest(prompt_ids=[1, 2, 3], routing=Routing())
FAIR = ["round_robin", "random", "least_load", "power_of_two", "cache_aware", "consistent_hashing", "manual"]
# What these do with requests that are alike is their purpose: the same engine for the same beginning, for like lengths, or always.
UNEVEN = ["prefix_hash", "bucket", "passthrough"]
Make = Callable[..., Policy]
Fleet = Callable[..., Candidates]


def request_of(seed: int, *, length: int = 100) -> RouteRequest:
    """A request unlike others in prompt and key."""
    ids = random.Random(seed).choices(range(100_000), k=length)
    return RouteRequest(prompt_ids=ids, routing=Routing(key=f"session-{seed}"), model="m")


@pytest.mark.parametrize("name", POLICIES.names())
@pytest.mark.parametrize("size", [1, 2, 256])
def test_gives_an_index_of_the_candidates(name: str, size: int, make: Make, fleet: Fleet) -> None:
    policy, candidates = make(name), fleet(size)
    assert all(0 <= policy.select(candidates, request=REQUEST) < size for _ in range(300))
    assert all(0 <= policy.select(candidates, request=request_of(seed)) < size for seed in range(300))


@pytest.mark.parametrize("name", POLICIES.names())
@pytest.mark.parametrize("routing", [Routing(), Routing(key="k"), Routing(user="u"), Routing(key="\ud800", user="")])
@pytest.mark.parametrize("length", [0, 1, 5000])
def test_takes_any_request(name: str, routing: Routing, length: int, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    for text in ("", "Grüße\ud800" * length):
        request = RouteRequest(prompt_ids=[] if text else [7] * length, routing=routing, text=text)
        assert 0 <= policy.select(fleet(3), request=request) < 3
        assert 0 <= policy.cached_tokens <= request.size + 4


def test_every_policy_is_fair_or_says_why_not() -> None:
    assert sorted(POLICIES.names()) == sorted([*FAIR, *UNEVEN])


@pytest.mark.parametrize("name", POLICIES.names())
def test_chooses_what_it_is_given_and_nothing_else(name: str, make: Make, fleet: Fleet) -> None:
    """Engines that are not Ready or whose breaker is open are not among the candidates; no policy may remember and take them."""
    policy, everyone = make(name), fleet(8)
    for seed in range(40):
        policy.select(everyone, request=request_of(seed))
    for seed in range(40):
        left = everyone.without({everyone[seed % 8].slot})
        chosen = left[policy.select(left, request=request_of(seed))]
        assert chosen.slot != everyone[seed % 8].slot


@pytest.mark.parametrize("name", POLICIES.names())
def test_says_nothing_of_a_request_before(name: str, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    policy.select(fleet(1), request=request_of(1, length=1000))
    policy.select(fleet(1), request=request_of(1, length=1000))
    policy.select(fleet(1), request=request_of(2, length=1000))
    assert (policy.cached_tokens, policy.rank) == (0, -1)


@pytest.mark.parametrize("name", FAIR)
def test_is_fair_on_ties(name: str, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    counts = collections.Counter(policy.select(fleet(4), request=REQUEST) for _ in range(4000))
    assert all(850 < counts[i] < 1150 for i in range(4)), counts


@pytest.mark.parametrize("name", ["consistent_hashing", "prefix_hash", "manual", "cache_aware"])
def test_spreads_what_is_unlike(name: str, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    counts = collections.Counter(policy.select(fleet(4), request=request_of(seed)) for seed in range(1600))
    assert all(300 < counts[i] < 500 for i in range(4)), counts


@pytest.mark.parametrize("name", POLICIES.names())
def test_survives_a_changing_fleet(name: str, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    for size in (5, 1, 3, 256, 2, 4):
        for seed in range(5):
            assert 0 <= policy.select(fleet(size).only(range(seed % size, size)), request=request_of(seed)) < size - seed % size


@pytest.mark.parametrize("name", POLICIES.names())
def test_keeps_nothing_that_grows(name: str, make: Make, fleet: Fleet) -> None:
    policy, candidates = make(name), fleet(16)
    requests = [request_of(seed) for seed in range(3000)]
    for request in requests[:100]:
        policy.select(candidates, request=request)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for request in requests:
        policy.select(candidates, request=request)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000


class Watched(Candidates):
    """Counts how many engines were looked at one by one, in Python."""

    looks = 0

    def __getitem__(self, index: int) -> Candidate:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(index)

    def works(self, cost: Cost) -> "array[int]":
        return array("q", bytes(8 * len(self)))  # one call for all of them, as that of the view is


@pytest.mark.parametrize("name", POLICIES.names())
def test_does_not_look_at_each_engine(name: str, make: Make, fleet: Fleet) -> None:
    policy, engines = make(name), Watched(list(fleet(256)))
    policy.select(engines, request=REQUEST)
    for seed in range(100):
        engines.looks = 0
        policy.select(engines, request=request_of(seed))
        assert engines.looks <= 2


@pytest.mark.parametrize("name", ["least_load", "power_of_two", "cache_aware"])
def test_prefers_the_idle_engine(name: str, make: Make) -> None:
    policy = make(name)
    candidates = Candidates([Candidate(0, "a", 5, 500), Candidate(1, "b", 0, 0)])
    assert {policy.select(candidates, request=REQUEST) for _ in range(50)} == {1}


@pytest.mark.parametrize("name", ["least_load", "power_of_two", "cache_aware"])
def test_few_long_prompts_are_more_work_than_many_short_ones(name: str, make: Make) -> None:
    policy = make(name)
    candidates = Candidates([Candidate(0, "a", 2, 5000), Candidate(1, "b", 6, 300)])
    assert {policy.select(candidates, request=REQUEST) for _ in range(50)} == {1}
    assert {make(name, request_cost_tokens=2000).select(candidates, request=REQUEST) for _ in range(50)} == {0}


def test_round_robin_walks_the_slots_in_order(make: Make, fleet: Fleet) -> None:
    """Whichever data worker has the request: both policies are on one block."""
    one, other = make("round_robin"), make("round_robin")
    chosen = [policy.select(fleet(3), request=REQUEST) for policy in (one, one, other, one, other, other)]
    assert chosen == [0, 1, 2, 0, 1, 2]
    small = [policy.select(fleet(3).only([2, 1]), request=REQUEST) for policy in (one, other)]
    assert small == [1, 0], "another set has a turn of its own, by slots"


def test_random_deals_each_engine_once_a_round_in_changing_order(make: Make, fleet: Fleet) -> None:
    policy = make("random")
    rounds = [tuple(policy.select(fleet(5), request=REQUEST) for _ in range(5)) for _ in range(200)]
    assert all(sorted(dealt) == [0, 1, 2, 3, 4] for dealt in rounds)
    assert len(set(rounds)) > 25  # of 120
    assert len({dealt[0] for dealt in rounds}) == 5


def test_random_follows_a_changing_fleet(make: Make, fleet: Fleet) -> None:
    policy, eight = make("random"), fleet(8)
    for _ in range(11):
        policy.select(eight, request=REQUEST)
    without = eight.without({eight[3].slot})
    counts = collections.Counter(policy.select(without, request=REQUEST) for _ in range(700))
    assert all(98 <= counts[index] <= 102 for index in range(7)), counts
    counts = collections.Counter(policy.select(eight, request=REQUEST) for _ in range(800))
    assert all(97 <= counts[index] <= 103 for index in range(8)), counts


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(KeyError, match="round_robin"):
        POLICIES.get("round_robbin")
