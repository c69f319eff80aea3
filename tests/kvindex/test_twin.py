"""The native prefix index and sticky keys, and their twins: the same calls give the same answers and leave the same words."""

import mmap
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import NativePrefixIndex, NativeShm, NativeSticky, Prompt
from smg.kvindex.plain import PlainPrefixIndex, PlainPrompt
from smg.kvindex.plain_sticky import PlainSticky
from smg.obs.shm import PlainShm
from tests.shm.memory import shared_memory

SLOTS = 40
SECRET = bytes(range(100, 116))

slots = st.integers(-1, SLOTS)
ranks = st.sampled_from([-1, 0, 0, 1, 7])
# few different prompts, so that they begin alike, and few places, so that they displace each other
prompts = st.tuples(st.integers(0, 3), st.integers(0, 90)).map(lambda pair: [*range(40), *[pair[0]] * 8, *range(50)][: pair[1]])
texts = prompts.map(lambda ids: "".join(chr(200 + number) for number in ids))
confirmed_ranks = st.sampled_from([0, 0, 0, 1, 7])
names = st.lists(st.integers(0, (1 << 61) - 2), max_size=5).map(lambda values: array("Q", values))
several = st.lists(slots, max_size=6).map(lambda values: array("q", values))
CALLS = st.one_of(
    st.tuples(st.just("match"), prompts, several),
    st.tuples(st.just("match"), texts, several),
    st.tuples(st.just("rank"), prompts, slots),
    st.tuples(st.just("insert"), prompts, slots, ranks),
    st.tuples(st.just("insert"), texts, slots, ranks),
    st.tuples(st.just("insert"), prompts, slots),
    st.tuples(st.just("insert"), prompts, slots, ranks, st.integers(-1, 3)),
    st.tuples(st.just("set_ranks"), slots, st.sampled_from([0, 1, 2, 3, 8, 257])),
    st.tuples(st.just("names"), st.integers(0, 1 << 61), prompts, st.sampled_from([15, 16, 20, 33, 48])),
    st.tuples(st.just("confirm"), names, slots, confirmed_ranks),
    st.tuples(st.just("confirm"), names, slots, confirmed_ranks, st.integers(-1, 3)),
    st.tuples(st.just("remove"), names, slots, confirmed_ranks),
    st.tuples(st.just("forget"), slots, st.booleans(), st.booleans()),
    st.tuples(st.just("open"), slots),
    st.tuples(st.just("open_engine"), slots, st.just(1)),
    st.tuples(st.just("step"), slots),
    st.tuples(st.just("set_block_size"), slots, st.sampled_from([-1, 0, 1, 5, 16, 24])),
    st.tuples(st.just("counts")),
)
KEYS = st.integers(0, 7).map(lambda number: number * 0x1234567890ABCDEF & (1 << 64) - 1)
TIMES = st.integers(0, 200)
STICKY_CALLS = st.one_of(
    st.tuples(st.just("find"), KEYS, TIMES, TIMES),
    st.tuples(st.just("put"), KEYS | st.integers(0, (1 << 64) - 1), slots, TIMES),
    st.tuples(st.just("keys"), slots),
    st.tuples(st.just("expire"), TIMES, TIMES),
    st.tuples(st.just("open_engine"), slots, st.just(1)),
)


def small_block() -> mmap.mmap:
    return shared_memory(rows=3, engines=SLOTS, series=1, cells=1, prefix_blocks=24, sticky_keys=8, secret=SECRET)


def prompt_of(index: NativePrefixIndex | PlainPrefixIndex, source: list[int] | str) -> Prompt:
    made = index.text_prompt(source) if isinstance(source, str) else index.prompt(source)
    assert isinstance(made, Prompt | PlainPrompt)
    assert len(made) == (len(source.encode()) // 4 if isinstance(source, str) else len(source))
    return made  # type: ignore[return-value]  # each body takes its own


def outcome(index: NativePrefixIndex | PlainPrefixIndex, shm: NativeShm | PlainShm, call: tuple[object, ...]) -> object:
    name, *arguments = call
    try:
        if name == "open_engine":
            return shm.open_engine(*arguments)  # type: ignore[arg-type]
        if name in ("match", "insert", "rank"):
            arguments[0] = prompt_of(index, arguments[0])  # type: ignore[arg-type]
        if name == "match":
            out = array("q", [7] * len(arguments[1]))  # type: ignore[arg-type]
            index.match(arguments[0], arguments[1], out)  # type: ignore[arg-type]
            return out
        return getattr(index, str(name))(*arguments)
    except (IndexError, ValueError) as error:
        return type(error), str(error)


@settings(max_examples=400, deadline=None)
@given(st.lists(CALLS, max_size=60))
def test_twin_equals_native(calls: list[tuple[object, ...]]) -> None:
    one, other = small_block(), small_block()
    shm, plain_shm = NativeShm(one), PlainShm(other)
    native, plain = NativePrefixIndex(shm), PlainPrefixIndex(plain_shm)
    for call in calls:
        assert outcome(native, shm, call) == outcome(plain, plain_shm, call), call
    assert bytes(one) == bytes(other)


def sticky_outcome(table: NativeSticky | PlainSticky, shm: NativeShm | PlainShm, call: tuple[object, ...]) -> object:
    name, *arguments = call
    try:
        return getattr(shm if name == "open_engine" else table, str(name))(*arguments)
    except IndexError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(st.lists(STICKY_CALLS, max_size=60))
def test_sticky_twin_equals_native(calls: list[tuple[object, ...]]) -> None:
    one, other = small_block(), small_block()
    shm, plain_shm = NativeShm(one), PlainShm(other)
    native, plain = NativeSticky(shm), PlainSticky(plain_shm)
    for call in calls:
        assert sticky_outcome(native, shm, call) == sticky_outcome(plain, plain_shm, call), call
    assert bytes(one) == bytes(other)


@pytest.mark.parametrize("bad", [[1, -1], [1 << 32], ["a"], [1.5], 7, b"abcde", array("d", [1.0]), [None]])
def test_refuses_what_is_no_id(bad: object) -> None:
    index = NativePrefixIndex(NativeShm(small_block()))
    with pytest.raises((TypeError, OverflowError)):
        index.prompt(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make", [list, tuple, lambda ids: array("I", ids), lambda ids: array("i", ids), lambda ids: array("I", ids).tobytes()]
)
def test_takes_ids_in_any_shape(make: type[list[int]]) -> None:
    index = NativePrefixIndex(NativeShm(small_block()))
    ids = [5, 0, 1 << 20, (1 << 30) + 3, *range(30)]
    assert index.names(0, make(ids), 16) == PlainPrefixIndex(PlainShm(small_block())).names(0, ids, 16)
