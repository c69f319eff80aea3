"""What routing reads of loads: the native reader and its twin say the same of any block."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import NativeLoads, NativeShm, native_least_of
from smg.obs.loads import SURVEY_FIELDS, PlainLoads, loads_of, plain_least_of
from smg.obs.shm import PlainShm, Shm
from smg.types.candidate import MOST_REQUESTS, MOST_TOKENS, OVERLOADED, Candidate, Cost
from tests.shm.memory import shared_memory

ENGINES, ROWS = 3, 4
MOST = 1 << 60  # what `smg.worker` stores of a report at most
amounts = st.integers(0, 1000)
reported = st.one_of(st.integers(0, 40), amounts, st.just(MOST))
costs = st.builds(Cost, amounts, amounts, st.floats(0, MOST_TOKENS), st.floats(0.01, 1))
CALLS = st.one_of(
    st.tuples(st.just("open_engine"), st.integers(0, ENGINES - 1), st.integers(0, 3)),
    st.tuples(st.just("set_engine_state"), st.integers(0, ENGINES - 1), st.integers(0, 3)),
    st.tuples(st.just("set_load"), st.integers(0, ENGINES - 1), st.lists(reported, min_size=9, max_size=9).map(lambda n: array("q", n))),
    st.tuples(st.just("acquire"), st.integers(0, ROWS - 1), st.integers(0, ENGINES - 1), st.integers(0, 3), amounts),
    st.tuples(st.just("swap_breaker"), st.integers(0, ENGINES - 1), st.just(1 << 18), amounts),
)
slots = st.lists(st.integers(0, ENGINES - 1), max_size=4).map(lambda values: array("q", values))


@settings(max_examples=300, deadline=None)
@given(st.lists(CALLS, max_size=30), slots, st.integers(0, 3), amounts, costs)
def test_twin_equals_native(calls: list[tuple[object, ...]], chosen: "array[int]", state: int, fresh_ms: int, cost: Cost) -> None:
    block = shared_memory(rows=ROWS, engines=ENGINES, series=4, cells=12, secret=bytes(16))
    native, plain = NativeShm(block), PlainShm(block)
    for name, *arguments in calls:
        getattr(native, str(name))(*arguments)
    epochs = array("q", [native.engine_epoch(slot) for slot in chosen])
    found = [array("q", [7] * len(SURVEY_FIELDS) * len(chosen)) for _ in range(2)]
    works = [array("q", [7] * (len(chosen) + 1)) for _ in range(2)]
    for loads, seen, work in zip((NativeLoads(native), PlainLoads(plain)), found, works, strict=True):
        loads.survey(chosen, epochs, state, fresh_ms, seen)
        loads.works(chosen, fresh_ms, cost.weights, work)
    assert found[0] == found[1]
    assert works[0] == works[1]
    assert works[0][-1] == 7
    for index, slot in enumerate(chosen):
        requests, tokens, _, _, *foreign, usage = found[0][index * len(SURVEY_FIELDS) : (index + 1) * len(SURVEY_FIELDS)]
        assert works[0][index] == Candidate(slot, "", requests, tokens, *foreign, usage / 1000).work(cost) < 1 << 62


@given(
    st.lists(st.integers(0, 5), max_size=9), st.lists(st.integers(0, 40), max_size=12) | st.none(), st.integers(-1, 99), st.integers(0, 9)
)
def test_least_of_equals_its_twin(works: list[int], saved: list[int] | None, draw: int, unit: int) -> None:
    outcomes = []
    for least_of in (native_least_of, plain_least_of):
        changed = array("q", works)
        try:
            outcomes.append((least_of(changed, draw, None if saved is None else array("q", saved), unit), list(changed)))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("least_of", [native_least_of, plain_least_of])
def test_any_of_the_least_is_drawn(least_of: type[native_least_of]) -> None:
    works, saved = array("q", (5, 9, 5, 13)), array("q", (0, 16, 3, 32, 99))
    assert {least_of(array("q", works), draw) for draw in range(9)} == {0, 2}
    assert {least_of(array("q", works), draw, saved, 4) for draw in range(9)} == {0, 1, 2, 3}
    assert least_of(array("q", works), 5, array("q", (0, 17, 4, 8)), 1) == 1


@pytest.mark.parametrize("body", [NativeShm, PlainShm])
@pytest.mark.parametrize(
    ("said", "found"),
    [
        ((1, 5, 0, 0, 900, 0, 101, 2, 300), (4, 600, 0, 0)),
        ((1, 5, 0, 0, 900, 0, 100, 2, 300), (0, 0, 0, 0)),  # said just before what counts
        ((1, 5, 0, 0, 0, 0, 101, 0, 0), (6, 0, 5, 0)),
        ((1, 5, 0, 0, 0, 0, 101, 4, 300), (2, 0, 2, 0)),  # of five that wait, two at most are others'
        ((1, 5, 0, 0, 0, 0, 101, 9, 300), (0, 0, 0, 0)),
        ((0, 0, 95, 100, 0, 0, 101, 0, 0), (0, 0, 0, 950)),
        ((MOST, MOST, MOST, 1, MOST, 0, MOST, 0, 0), (MOST_REQUESTS, MOST_TOKENS, 0, 1000 << 50)),
    ],
)
def test_what_an_engine_has_of_others(body: type[Shm], said: tuple[int, ...], found: tuple[int, ...]) -> None:
    shm = body(shared_memory(rows=ROWS, engines=ENGINES, series=4, cells=12, secret=bytes(16)))
    shm.set_load(1, array("q", said))
    out = array("q", bytes(8 * len(SURVEY_FIELDS)))
    loads_of(shm).survey(array("q", (1,)), array("q", (0,)), 0, 100, out)
    assert tuple(out[4:]) == found


@pytest.mark.parametrize("body", [NativeShm, PlainShm])
def test_an_engine_is_overloaded_above_the_threshold(body: type[Shm]) -> None:
    shm, works = body(shared_memory(rows=ROWS, engines=ENGINES, series=4, cells=12, secret=bytes(16))), array("q", (0, 0))
    for slot, used in enumerate((950, 951)):
        shm.set_load(slot, array("q", (0, 0, used, 1000, 0, 0, 1, 0, 0)))
    loads_of(shm).works(array("q", (0, 1)), 0, Cost(0, 0, 0.0, 0.95).weights, works)
    assert list(works) == [0, OVERLOADED]


@pytest.mark.parametrize("body", [NativeShm, PlainShm])
def test_what_cannot_be_is_refused(body: type[Shm]) -> None:
    loads = loads_of(body(shared_memory(rows=ROWS, engines=ENGINES, series=4, cells=12, secret=bytes(16))))
    assert type(loads) is {NativeShm: NativeLoads, PlainShm: PlainLoads}[body]
    for slot in (-1, ENGINES):
        with pytest.raises(IndexError, match="no engine slot"):
            loads.works(array("q", (slot,)), 0, array("d", (1, 1, 1, 1)), array("q", (0,)))
        with pytest.raises(IndexError, match="no engine slot"):
            loads.survey(array("q", (slot,)), array("q", (1,)), 0, 0, array("q", [0] * len(SURVEY_FIELDS)))
    with pytest.raises(ValueError, match="room"):
        loads.works(array("q", (0, 1)), 0, array("d", (1, 1, 1, 1)), array("q", (0,)))
    with pytest.raises(ValueError, match="weights"):
        loads.works(array("q", (0,)), 0, array("d", (1, 1, 1)), array("q", (0,)))
    with pytest.raises(ValueError, match="room"):
        loads.survey(array("q", (0, 1)), array("q", (1,)), 0, 0, array("q", [0] * 2 * len(SURVEY_FIELDS)))
