"""cache_aware: what caches save against what is queued. And bucket, which is about lengths."""

import collections
import itertools
import random
from collections.abc import Callable

import pytest

from smg.kvindex import PrefixIndex
from smg.obs.shm import Shm
from smg.policy import Candidate, Candidates, Policy, RouteRequest
from smg.types.job import Routing

Make = Callable[..., Policy]


def prompt(seed: int, length: int = 1000) -> list[int]:
    return random.Random(seed).choices(range(100_000), k=length)


def ask(ids: list[int], text: str = "") -> RouteRequest:
    return RouteRequest(prompt_ids=ids, routing=Routing(), text=text)


def engines(*requests: int) -> Candidates:
    """Engines with so many requests of 200 new tokens each in flight."""
    return Candidates([Candidate(slot, f"grpc://engine-{slot}", count, count * 200) for slot, count in enumerate(requests)])


def test_goes_where_the_beginning_is_known(make: Make) -> None:
    policy = make("cache_aware")
    first = policy.select(engines(0, 0, 0, 0), request=ask(prompt(1)))
    assert policy.cached_tokens == 0
    assert {policy.select(engines(0, 0, 0, 0), request=ask(prompt(1) + prompt(9))) for _ in range(20)} == {first}
    assert policy.select(engines(0, 0, 0, 0), request=ask(prompt(1))) == first
    assert policy.cached_tokens == 992, "whole blocks"


def test_every_process_knows_it(make: Make) -> None:
    first = make("cache_aware").select(engines(*[0] * 8), request=ask(prompt(1)))
    assert make("cache_aware").select(engines(*[0] * 8), request=ask(prompt(1))) == first


def test_a_miss_goes_to_the_least_busy(make: Make) -> None:
    """Known bug B111: engine 0 knows little and has a load of 50, engine 1 knows much and has none; the prompt is new."""
    policy = make("cache_aware")
    policy.select(engines(0, 99), request=ask(prompt(1)))
    for seed in range(2, 30):
        policy.select(engines(99, 0), request=ask(prompt(seed)))
    assert policy.select(engines(50, 0), request=ask(prompt(99))) == 1


def test_what_is_held_of_a_text_saves_a_token_for_four_bytes(make: Make) -> None:
    policy, text = make("cache_aware"), random.Random(1).randbytes(2000).hex()
    home = policy.select(engines(0, 0), request=ask([], text))
    assert policy.select(engines(0, 0), request=ask([], text)) == home
    assert 900 <= policy.cached_tokens <= 1000
    busy = engines(*(3 if slot == home else 0 for slot in range(2)))  # 792 tokens
    assert policy.select(busy, request=ask([], text)) == home
    busier = engines(*(8 if slot == home else 0 for slot in range(2)))  # 2112 tokens
    assert policy.select(busier, request=ask([], text)) != home


def test_imbalance_does_not_drop_affinity(make: Make, shm: Shm) -> None:
    """Known bug B114: loads 10, 11 and 90, the beginning is known to the second and third."""
    index = PrefixIndex(shm)
    for slot in (1, 2):
        index.insert(index.prompt(prompt(1)), slot)
    assert make("cache_aware").select(engines(10, 11, 90), request=ask(prompt(1))) == 1


def test_affinity_has_a_price(make: Make, shm: Shm) -> None:
    index = PrefixIndex(shm)
    index.insert(index.prompt(prompt(1)), 0)
    policy = make("cache_aware", request_cost_tokens=50)
    assert policy.select(engines(3, 0), request=ask(prompt(1))) == 0  # 3 * 250 queued against 992 saved
    assert policy.select(engines(5, 0), request=ask(prompt(1, 1000))) == 1


def test_among_many_that_know_it_the_least_busy_is_taken(make: Make, shm: Shm) -> None:
    index = PrefixIndex(shm)
    for slot in range(6):
        index.insert(index.prompt(prompt(1)), slot)
    policy = make("cache_aware")
    counts = collections.Counter(policy.select(engines(2, 1, 1, 2, 1, 2), request=ask(prompt(1))) for _ in range(3000))
    assert set(counts) == {1, 2, 4}
    assert all(850 < count < 1150 for count in counts.values()), counts


def test_text_of_engines_that_tokenize(make: Make) -> None:
    policy = make("cache_aware")
    text = "You are a helpful assistant. " * 40
    first = policy.select(engines(*[0] * 8), request=ask([], text))
    assert {policy.select(engines(*[0] * 8), request=ask([], text + str(turn))) for turn in range(20)} == {first}
    assert policy.cached_tokens == len(text) // 64 * 16


def test_believes_engines_before_predictions(make: Make, shm: Shm) -> None:
    index, policy = PrefixIndex(shm), make("cache_aware")
    first = policy.select(engines(0, 0), request=ask(prompt(1, 64)))
    names = index.names(0, prompt(1, 64), 16)
    index.remove(names, first)
    index.confirm(names, 1 - first)
    assert policy.select(engines(0, 0), request=ask(prompt(1, 64))) == 1 - first


def test_a_removed_engine_has_nothing(make: Make, shm: Shm) -> None:
    """Known bug B116: another engine comes into the slot."""
    policy = make("cache_aware")
    shm.open_engine(0, 1)
    policy.select(engines(0), request=ask(prompt(1)))
    shm.open_engine(0, 1)
    policy.select(engines(0), request=ask(prompt(1)))
    assert policy.cached_tokens == 0


def test_predicts_for_the_rank_that_is_asked(make: Make, shm: Shm) -> None:
    index, policy = PrefixIndex(shm), make("cache_aware")
    index.set_ranks(0, 4)
    index.insert(index.prompt(prompt(1, 64)), 0, 2)
    for _ in range(2):
        policy.select(engines(0), request=ask(prompt(1, 64) + prompt(2, 64)))
        assert policy.rank == 2
    assert policy.cached_tokens == 128


def test_buckets_follow_the_load(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the tokens come in prompts of 100, half in prompts of 3000: each half gets half of the engines."""
    clock = itertools.count(0.0, 0.01)
    monkeypatch.setattr("smg.policy.bucket.time.monotonic", lambda: next(clock))
    policy = make("bucket")
    idle = engines(0, 0, 0, 0)
    seen: dict[int, collections.Counter[int]] = {100: collections.Counter(), 3000: collections.Counter()}
    for turn in range(4000):
        size = 3000 if turn % 31 == 0 else 100
        chosen = policy.select(idle, request=ask([1] * size))
        if turn > 1000:
            seen[size][chosen] += 1
    assert sum(seen[100][index] for index in (0, 1)) > 0.85 * sum(seen[100].values())
    assert sum(seen[3000][index] for index in (2, 3)) > 0.85 * sum(seen[3000].values())


def test_what_came_before_counts_half_in_the_buckets(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("smg.policy.bucket.time.monotonic", lambda: clock[0])
    policy, candidates = make("bucket", bucket_adjust_interval_s=10.0), engines(0, 0, 0)

    def slots(size: int, times: int) -> set[int]:
        return {policy.select(candidates, request=ask([1] * size)) for _ in range(times)}

    for size, times in ((64, 640), (4096, 10)):  # as many tokens
        slots(size, times - 1)
        clock[0] += 10.0
        slots(size, 1)
    assert (slots(64, 100), slots(4096, 100)) == ({0}, {1, 2}), "a third of the load, and two"


def test_buckets_of_one_length_are_even(make: Make) -> None:
    policy = make("bucket", bucket_adjust_interval_s=0.001)
    counts = collections.Counter(policy.select(engines(0, 0, 0, 0), request=ask([1] * 500)) for _ in range(4000))
    assert all(800 < counts[index] < 1200 for index in range(4)), counts


def test_a_bucket_that_is_full_is_passed_over(make: Make) -> None:
    policy = make("bucket", balance_abs_threshold=4, balance_rel_threshold=1.5)
    busy = Candidates([Candidate(0, "a", 50, 5000), Candidate(1, "b", 3, 4000), Candidate(2, "c", 3, 2500)])
    assert policy.select(busy, request=ask([1] * 100)) == 2
    others = Candidates([Candidate(0, "a", 0, 0, foreign_requests=9, foreign_tokens=5000), *busy.only([1, 2])])
    assert policy.select(others, request=ask([1] * 100)) == 2, "what others have there counts too"
    level = Candidates([Candidate(0, "a", 50, 5000), Candidate(1, "b", 3, 4900), Candidate(2, "c", 3, 4800)])
    assert policy.select(level, request=ask([1] * 100)) == 0
