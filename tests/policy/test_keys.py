"""Policies that keep requests of one key, or of one beginning, at one engine."""

import collections
from collections.abc import Callable

import pytest

from smg.obs.shm import Shm
from smg.policy import Candidate, Candidates, Policy, RouteRequest, ring
from smg.types.job import Routing

Make = Callable[..., Policy]
Fleet = Callable[..., Candidates]


def keyed(key: str, *, model: str = "m", ids: list[int] | None = None) -> RouteRequest:
    return RouteRequest(prompt_ids=ids or [1, 2, 3], routing=Routing(key=key), model=model)


def owners(policy: Policy, candidates: Candidates, keys: int = 400) -> list[int]:
    """Slots that each key is given."""
    return [candidates[policy.select(candidates, request=keyed(f"key-{number}"))].slot for number in range(keys)]


@pytest.mark.parametrize("name", ["consistent_hashing", "manual"])
def test_a_key_stays_where_it_is_in_every_process(name: str, make: Make, fleet: Fleet) -> None:
    first = owners(make(name), fleet(8))
    assert owners(make(name), fleet(8)) == first  # another worker process
    assert len(set(first)) == 8


@pytest.mark.parametrize("name", ["consistent_hashing", "manual"])
def test_a_user_is_a_key_too(name: str, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    chosen = {policy.select(fleet(8), request=RouteRequest(prompt_ids=[1], routing=Routing(user="alice"))) for _ in range(50)}
    assert len(chosen) == 1


@pytest.mark.parametrize("name", ["consistent_hashing", "manual"])
def test_the_header_goes_before_the_user(name: str, make: Make, fleet: Fleet) -> None:
    policy = make(name)
    by_key = {policy.select(fleet(16), request=RouteRequest(prompt_ids=[1], routing=Routing(key="k", user=f"u{n}"))) for n in range(40)}
    by_user = {policy.select(fleet(16), request=RouteRequest(prompt_ids=[1], routing=Routing(key=f"k{n}", user="u"))) for n in range(40)}
    assert len(by_key) == 1
    assert len(by_user) > 4


def test_the_ring_moves_only_the_keys_of_an_engine_that_is_away(make: Make, fleet: Fleet) -> None:
    """Known bug B115: the owner's breaker is open, so it is no candidate; its keys go on along the ring, and come back."""
    policy, candidates = make("consistent_hashing"), fleet(8)
    before = owners(policy, candidates)
    gone = candidates[2].slot
    without = candidates.without({gone})
    after = owners(policy, without)
    assert gone not in after
    assert all(one == other for one, other in zip(before, after, strict=True) if one != gone)
    assert len({other for one, other in zip(before, after, strict=True) if one == gone}) > 2, "its keys are spread over the others"
    assert owners(policy, candidates) == before


def test_an_engine_with_far_too_much_to_do_passes_its_keys_on(make: Make, fleet: Fleet) -> None:
    policy, candidates = make("consistent_hashing"), fleet(8)
    before = owners(policy, candidates)
    busy = candidates[2]

    def with_work(tokens: int) -> Candidates:
        return Candidates([Candidate(busy.slot, busy.url, 0, tokens) if one is busy else one for one in candidates])

    assert owners(policy, with_work(2000)) == before, "a key's requests stay together while there is little to do"
    after = owners(policy, with_work(20_000))
    assert busy.slot not in after
    assert all(one == other for one, other in zip(before, after, strict=True) if one != busy.slot)
    assert after == owners(policy, candidates.without({busy.slot})), "a key has one engine that is next"
    assert owners(make("consistent_hashing", consistent_hashing_slack_tokens=0), with_work(20_000)) == before


@pytest.mark.parametrize("name", ["consistent_hashing", "prefix_hash"])
def test_an_engine_may_have_a_quarter_more_than_its_share(name: str, make: Make, fleet: Fleet) -> None:
    policy, candidates = make(name), fleet(8)
    owner = policy.select(candidates, request=keyed("k"))

    def with_work(tokens: int) -> Candidates:
        return Candidates([Candidate(one.slot, one.url, 0, tokens if at == owner else 1_000_000) for at, one in enumerate(candidates)])

    assert policy.select(with_work(1_250_000), request=keyed("k")) == owner  # the mean is then 1,031,250
    assert policy.select(with_work(1_350_000), request=keyed("k")) != owner


@pytest.mark.parametrize("name", ["consistent_hashing", "prefix_hash"])
def test_an_overloaded_engine_is_not_counted_in_the_share_of_the_others(name: str, make: Make, fleet: Fleet) -> None:
    policy, candidates = make(name, overload_token_usage_threshold=0.9), fleet(8)
    owner = policy.select(candidates, request=keyed("k"))

    def with_work(tokens: int, *, over: int, all_over: bool = False) -> Candidates:
        works = [tokens if index == owner else 1_000_000 for index in range(8)]
        usages = [0.95 if all_over or index == over else 0.0 for index in range(8)]
        return Candidates([Candidate(one.slot, one.url, 0, works[at], usage=usages[at]) for at, one in enumerate(candidates)])

    other = (owner + 1) % 8
    assert policy.select(with_work(1_250_000, over=other), request=keyed("k")) == owner  # the mean is then 1,035,714
    assert policy.select(with_work(1_350_000, over=other), request=keyed("k")) not in (owner, other)
    assert policy.select(with_work(0, over=owner), request=keyed("k")) != owner
    assert policy.select(with_work(1_000_000, over=owner, all_over=True), request=keyed("k")) == owner


def test_the_ring_gives_a_new_engine_its_share_only(make: Make, fleet: Fleet) -> None:
    policy = make("consistent_hashing")
    before, after = owners(policy, fleet(8)), owners(policy, fleet(9))
    moved = [other for one, other in zip(before, after, strict=True) if one != other]
    assert set(moved) == {fleet(9)[8].slot}
    assert len(moved) < 100


def test_the_ring_forgets_engines_that_are_gone(make: Make) -> None:
    policy = make("consistent_hashing")
    for turn in range(60):
        policy.select(Candidates([Candidate(turn, f"grpc://engine-{turn}", 0, 0)]), request=keyed("k"))
    assert len(policy._ring._known) < 40  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["consistent_hashing", "prefix_hash"])
def test_the_ring_places_each_engine_once(name: str, make: Make, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of a large fleet come one by one; to place all of them for each would hold up the requests of a worker for seconds."""
    placed: list[str] = []
    places_of = ring.places_of
    monkeypatch.setattr(ring, "places_of", lambda url: placed.append(url) or places_of(url))
    policy = make(name)
    for size in (100, 101, 102, 90, 102):
        policy.select(fleet(size), request=keyed("k"))
    assert sorted(placed) == sorted(candidate.url for candidate in fleet(102))
    fresh = make(name)
    assert owners(policy, fleet(102)) == owners(fresh, fleet(102)), "the order in which they came is no matter"


def test_manual_never_moves_a_key_for_a_new_engine(make: Make, fleet: Fleet) -> None:
    policy = make("manual")
    assert owners(policy, fleet(4)) == owners(policy, fleet(8))


@pytest.mark.parametrize("number", range(8))
def test_manual_goes_back_when_the_engine_is_back(number: int, make: Make, fleet: Fleet) -> None:
    policy, candidates = make("manual"), fleet(4)
    for other in range(number):
        policy.select(candidates, request=keyed(f"other-{other}"))
    home = policy.select(candidates, request=keyed("k"))
    away = candidates.without({candidates.slots[home]})
    second = away[policy.select(away, request=keyed("k"))].slot
    assert {away[policy.select(away, request=keyed("k"))].slot for _ in range(20)} == {second}, "sticky there as well"
    without = candidates.without({second})
    assert {without[policy.select(without, request=keyed("k"))].slot for _ in range(20)} == {candidates[home].slot}, "the first"


def test_manual_takes_long_keys(make: Make, fleet: Fleet) -> None:
    policy = make("manual")
    chosen = [policy.select(fleet(16), request=keyed("x" * 100_000 + str(number % 40))) for number in range(80)]
    assert chosen[:40] == chosen[40:]
    assert len(set(chosen)) > 8


def test_manual_keeps_models_apart(make: Make, fleet: Fleet) -> None:
    policy, one, other = make("manual"), fleet(4).only([0, 1]), fleet(4).only([2, 3])
    first = policy.select(one, request=keyed("k", model="a"))
    policy.select(other, request=keyed("k", model="b"))
    assert {policy.select(one, request=keyed("k", model="a")) for _ in range(20)} == {first}


def test_manual_forgets_the_keys_of_a_removed_engine(make: Make, fleet: Fleet, shm: Shm) -> None:
    policy, candidates = make("manual", assignment_mode="min_group"), fleet(2)
    owners(policy, candidates, 100)
    shm.open_engine(candidates[0].slot, 1)
    counts = collections.Counter(owners(policy, candidates, 100))
    assert set(counts) == {candidate.slot for candidate in candidates}


@pytest.mark.parametrize(("mode", "expected"), [("min_load", {1}), ("min_group", {0, 1, 2})])
def test_manual_assigns_new_keys(mode: str, expected: set[int], make: Make) -> None:
    policy = make("manual", assignment_mode=mode)
    candidates = Candidates([Candidate(0, "a", 5, 500), Candidate(1, "b", 0, 0), Candidate(2, "c", 9, 900)])
    counts = collections.Counter(policy.select(candidates, request=keyed(f"k{number}")) for number in range(90))
    assert set(counts) == expected
    if mode == "min_group":
        assert set(counts.values()) == {30}


def test_manual_key_that_was_idle_is_new_again(make: Make, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, candidates = make("manual", max_idle_s=100.0), fleet(16)
    clock = [1000.0]
    monkeypatch.setattr("smg.policy.manual.time.monotonic", lambda: clock[0])
    first = owners(policy, candidates, 40)
    clock[0] += 90
    assert owners(policy, candidates, 40) == first
    clock[0] += 200
    assert owners(policy, candidates, 40) != first


def test_manual_counts_no_keys_that_were_idle(make: Make, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """min_group: who had many keys long ago gets its share of the new ones."""
    policy, candidates = make("manual", assignment_mode="min_group", max_idle_s=100.0), fleet(2)
    clock = [1000.0]
    monkeypatch.setattr("smg.policy.manual.time.monotonic", lambda: clock[0])
    assert set(owners(policy, candidates.only([0]), 60)) == {candidates[0].slot}
    clock[0] += 300
    counts = collections.Counter(candidates[policy.select(candidates, request=keyed(f"new-{n}"))].slot for n in range(40))
    assert set(counts.values()) == {20}


def test_override_says_what_the_policy_below_says(make: Make, fleet: Fleet) -> None:
    policy, request = make("cache_aware", routing_key_override=True), RouteRequest(prompt_ids=[*range(64)], routing=Routing())
    assert [policy.select(fleet(1), request=request) or policy.cached_tokens for _ in range(2)] == [0, 64]
    policy.select(fleet(1), request=keyed("k", ids=[*range(64)]))
    assert (policy.cached_tokens, policy.rank) == (0, -1)


def test_override_routes_keyed_requests_as_manual_does(make: Make, fleet: Fleet) -> None:
    policy = make("round_robin", routing_key_override=True)
    assert len({policy.select(fleet(8), request=keyed("k")) for _ in range(50)}) == 1
    plain = RouteRequest(prompt_ids=[1], routing=Routing(user="alice"))
    assert len({policy.select(fleet(8), request=plain) for _ in range(50)}) == 8
    assert type(make("consistent_hashing", routing_key_override=True)) is type(make("consistent_hashing"))


def test_prefix_hash_keeps_prompts_that_begin_alike_together(make: Make, fleet: Fleet) -> None:
    policy = make("prefix_hash", prefix_token_count=64)
    chosen = {policy.select(fleet(8), request=keyed("", ids=[*range(64), tail])) for tail in range(50)}
    assert len(chosen) == 1
    text = [RouteRequest(prompt_ids=[], routing=Routing(), text="a" * 256 + str(tail)) for tail in range(50)]
    assert len({policy.select(fleet(8), request=request) for request in text}) == 1


def test_prefix_hash_passes_over_an_engine_with_too_much(make: Make, fleet: Fleet) -> None:
    policy, request = make("prefix_hash"), keyed("", ids=[*range(300)])
    owner = policy.select(fleet(4), request=request)
    loads = Candidates([Candidate(c.slot, c.url, 10 if index == owner else 4 + index, 0) for index, c in enumerate(fleet(4))])
    expected = min((index for index in range(4) if index != owner), key=lambda index: loads[index].requests)
    assert policy.select(loads, request=request) == expected
    alike = Candidates([Candidate(c.slot, c.url, 10 if index == owner else 4, 0) for index, c in enumerate(fleet(4))])
    assert {policy.select(alike, request=request) for _ in range(100)} == {0, 1, 2, 3} - {owner}
    even = Candidates([Candidate(c.slot, c.url, 10, 0) for c in fleet(4)])
    assert policy.select(even, request=request) == owner


@pytest.mark.parametrize(("size", "stays"), [(8_000, False), (10_000, True)])
def test_prefix_hash_counts_the_request_itself_among_the_work(size: int, stays: bool, make: Make, fleet: Fleet) -> None:
    """Of two engines one may have 1.25 halves of all work, that of the request included: here 1.67 times what the request brings."""
    policy, request = make("prefix_hash"), keyed("", ids=[7] * size)
    owner = policy.select(fleet(2), request=request)
    loads = Candidates([Candidate(one.slot, one.url, 0, 15_000 if index == owner else 0) for index, one in enumerate(fleet(2))])
    assert (policy.select(loads, request=request) == owner) is stays
