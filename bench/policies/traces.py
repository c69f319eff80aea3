"""The loads that policies are compared under: a seed comes in, requests with their times of arrival go out. The same seed, the same trace.

The rate is such that `load` 1 would keep every engine busy all the time if nothing were ever found in a cache. An engine is one with the
costs of `smg.sim`'s defaults, an 8B model on an H100.
"""

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Protocol

import msgspec
from msgspec import Struct

__all__ = ["TRACES", "WARM", "WORDS", "Request", "Trace"]

PREFILL_US, PROMPT_TOKEN_US, ANSWER_TOKEN_US = 4000, 33, 77  # an answer's token in a batch of about 250 a second: 7 ms / 256 + 50
WORDS = range(260, 516)  # the ids in use, one for each value of a byte
ANSWER = (20, 100)
WARM = 0.4  # of a trace's time fills the caches and is not counted
JOB = (20, 60)  # requests of a burst


class Request(Struct, frozen=True):
    """One request. `then` are those that follow it in its conversation, each `think_s` after the one before has ended."""

    at_s: float
    ids: list[int]
    output: int
    think_s: float = 0.0
    then: tuple["Request", ...] = ()


class Trace(Protocol):
    """Makes a trace's requests, in the order of their arrival."""

    def __call__(self, rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]: ...


def shared(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """System prompts of 500-2500 tokens, 50 for each engine, by Zipf's law; questions of 20-200 tokens, answers of 20-100.

    They are in use already: while the caches get warm each is asked once before all others, at the same load.
    """
    trace, prompts = asked(rng, engines=engines, load=load, seconds=seconds)
    step = min(1 / rate_of(engines, load, prompt=1520, answer=20), 0.9 * WARM * seconds / len(prompts))
    once = [Request(place * step, prompt + words(rng, 20), 20) for place, prompt in enumerate(rng.sample(prompts, len(prompts)))]
    return once + [request for request in trace if request.at_s >= len(once) * step]


def fresh(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """As shared, but rare system prompts come up for the first time all along, and then nobody can have them in a cache."""
    return asked(rng, engines=engines, load=load, seconds=seconds)[0]


def asked(rng: random.Random, *, engines: int, load: float, seconds: float) -> tuple[list[Request], list[list[int]]]:
    """Gives requests with shared system prompts, and those prompts."""
    prompts = [words(rng, rng.randrange(500, 2500)) for _ in range(50 * engines)]
    pick = zipf(rng, len(prompts))
    rate = rate_of(engines, load, prompt=1610)
    trace = [Request(at, prompts[pick()] + words(rng, rng.randrange(20, 200)), answer(rng)) for at in arrivals(rng, rate, seconds)]
    return trace, prompts


def chats(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """Conversations of 2-8 turns: a common system prompt of 300 tokens, then 50-600 more each turn; 2-6 s of thought between."""
    system = words(rng, 300)
    rate = rate_of(engines, load, prompt=1900) / 5
    trace = []
    for at in arrivals(rng, rate, seconds):
        ids, turns = system + words(rng, 100), []
        for _ in range(rng.randrange(2, 9)):
            ids = ids + words(rng, rng.randrange(50, 600))
            turns.append(Request(0.0, ids, answer(rng), rng.uniform(2, 6)))
        trace.append(msgspec.structs.replace(turns[0], at_s=at, then=tuple(turns[1:])))
    return trace


def mixed(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """Nothing shared: lengths from 20 to 8000 tokens, log-normal."""
    rate = rate_of(engines, load, prompt=1040)
    return [
        Request(at, words(rng, min(8000, max(20, int(rng.lognormvariate(6.5, 1.0))))), answer(rng)) for at in arrivals(rng, rate, seconds)
    ]


def bursts(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """As shared, but half of it comes in jobs: 20-60 requests of one system prompt, rare ones as often as popular ones, within 0.5 s."""
    prompts = [words(rng, rng.randrange(500, 2500)) for _ in range(50 * engines)]
    pick = zipf(rng, len(prompts))
    rate = rate_of(engines, load, prompt=1610) / 2
    starts = [(at, prompts[pick()]) for at in arrivals(rng, rate, seconds)]
    for at in arrivals(rng, rate / (sum(JOB) / 2), seconds):
        prompt = rng.choice(prompts)
        starts += [(at + rng.uniform(0, 0.5), prompt) for _ in range(rng.randrange(*JOB))]
    starts.sort(key=lambda start: start[0])
    return [Request(at, prompt + words(rng, rng.randrange(20, 200)), answer(rng)) for at, prompt in starts]


def long(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """Conversations over documents: 2-16k tokens, a third of them known from the turn before; answers of 100-600. For `--apart`."""
    rate = rate_of(engines, load, prompt=9000, answer=350) / 2
    trace = []
    for at in arrivals(rng, rate, seconds):
        ids = words(rng, rng.randrange(2000, 10000))
        later = Request(0.0, ids + words(rng, rng.randrange(2000, 10000)), rng.randrange(100, 600), rng.uniform(2, 6))
        trace.append(Request(at, ids, rng.randrange(100, 600), then=(later,)))
    return trace


def answers(rng: random.Random, *, engines: int, load: float, seconds: float) -> list[Request]:
    """Nothing shared, prompts of 500-3500 tokens, long answers: 300-1500. For `--apart`."""
    rate = rate_of(engines, load, prompt=2000, answer=900)
    return [Request(at, words(rng, rng.randrange(500, 3500)), rng.randrange(300, 1500)) for at in arrivals(rng, rate, seconds)]


TRACES: dict[str, Trace] = {
    "shared": shared,
    "fresh": fresh,
    "chats": chats,
    "mixed": mixed,
    "bursts": bursts,
    "long": long,
    "answers": answers,
}


def words(rng: random.Random, count: int) -> list[int]:
    """Gives ids that nobody else has, as good as surely."""
    return list(map(WORDS.__getitem__, rng.randbytes(count)))


def answer(rng: random.Random) -> int:
    """Gives an answer's tokens."""
    return rng.randrange(*ANSWER)


def rate_of(engines: int, load: float, *, prompt: int, answer: int = sum(ANSWER) // 2) -> float:
    """Gives requests a second of so many tokens each."""
    return engines * load * 1e6 / (PREFILL_US + prompt * PROMPT_TOKEN_US + answer * ANSWER_TOKEN_US)


def zipf(rng: random.Random, count: int) -> Callable[[], int]:
    """Gives what draws from 0 to count, each as often as one over its place says."""
    weights = list(accumulate(1 / (place + 1) for place in range(count)))
    return lambda: rng.choices(range(count), cum_weights=weights)[0]


def arrivals(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """Gives the times of a Poisson process."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)
