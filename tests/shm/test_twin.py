"""The native block and its twin: the same calls leave the same words, and many processes lose no count."""

import mmap
import os
import signal
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import NativeShm
from smg.obs.shm import COUNT_FIELDS, LOAD_FIELDS, PlainShm, attach_block, make_block
from tests.shm.memory import shared_memory

BODIES = [NativeShm, PlainShm]


def small_block() -> mmap.mmap:
    return shared_memory(rows=4, engines=3, series=4, cells=12, secret=bytes(16))


rows, slots, epochs = st.integers(-1, 4), st.integers(-1, 3), st.integers(0, 3)
amounts = st.integers(0, 1000)
loads = st.lists(amounts, min_size=8, max_size=10).map(lambda values: array("q", values))
keys = st.binary(max_size=490) | st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
CALLS = st.one_of(
    st.tuples(st.just("generation")),
    st.tuples(st.just("bump")),
    st.tuples(st.just("open_engine"), slots, epochs),
    st.tuples(st.just("engine_state"), slots),
    st.tuples(st.just("set_engine_state"), slots, epochs),
    st.tuples(st.just("changes")),
    st.tuples(st.just("engine_epoch"), slots),
    st.tuples(st.just("suspect"), slots),
    st.tuples(st.just("take_suspect"), slots),
    st.tuples(st.just("set_load"), slots, loads),
    st.tuples(st.just("load"), slots, loads),
    st.tuples(st.just("acquire"), rows, slots, epochs, amounts),
    st.tuples(st.just("release"), rows, slots, epochs, amounts),
    st.tuples(st.just("held"), rows, slots, epochs),
    st.tuples(st.just("sums"), st.lists(slots, max_size=4).map(lambda values: array("q", values)), st.just(array("q", [0] * 6))),
    st.tuples(st.just("breaker"), slots),
    st.tuples(st.just("swap_breaker"), slots, amounts | st.just(1 << 18), amounts),
    st.tuples(st.just("count"), slots, epochs, st.integers(-1, len(COUNT_FIELDS))),
    st.tuples(st.just("counts"), slots),
    st.tuples(st.just("earn_retry"), amounts, amounts),
    st.tuples(st.just("spend_retry"), amounts),
    st.tuples(st.just("set_row"), rows, amounts, epochs, amounts),
    st.tuples(st.just("row"), rows),
    st.tuples(st.just("beat"), rows, amounts),
    st.tuples(st.just("set_connections"), rows, amounts),
    st.tuples(st.just("connections"), rows),
    st.tuples(st.just("clear_row"), rows),
    st.tuples(st.just("series"), keys, amounts, st.integers(0, 5)),
    st.tuples(st.just("add"), rows, st.integers(-1, 13), amounts),
    st.tuples(st.just("totals")),
    st.tuples(st.just("dropped")),
)


def outcome(body: NativeShm | PlainShm, call: tuple[object, ...]) -> object:
    name, *arguments = call
    copies = [array("q", argument) if isinstance(argument, array) else argument for argument in arguments]
    try:
        result = getattr(body, str(name))(*copies)
    except (IndexError, ValueError) as error:
        return type(error), str(error)
    return result, copies


@settings(max_examples=300, deadline=None)
@given(st.lists(CALLS, max_size=40))
def test_twin_equals_native(calls: list[tuple[object, ...]]) -> None:
    one, other = small_block(), small_block()
    native, plain = NativeShm(one), PlainShm(other)
    for call in calls:
        assert outcome(native, call) == outcome(plain, call), call
    assert bytes(one) == bytes(other)


@pytest.fixture(params=BODIES, ids=["native", "plain"])
def body(request: pytest.FixtureRequest) -> type[NativeShm] | type[PlainShm]:
    chosen: type[NativeShm] | type[PlainShm] = request.param
    return chosen


def test_a_reused_slot_forgets_its_earlier_life(body: type[NativeShm]) -> None:
    shm = body(small_block())
    first = shm.open_engine(0, 1)
    shm.acquire(2, 0, first, 10)
    second = shm.open_engine(0, 1)
    out = array("q", [9, 9])
    shm.sums(array("q", [0]), out)
    assert list(out) == [0, 0]
    shm.acquire(2, 0, second, 7)
    shm.release(2, 0, first, 10)
    shm.sums(array("q", [0]), out)
    assert list(out) == [1, 7]


def test_a_slot_gives_turns(body: type[NativeShm]) -> None:
    memory = small_block()
    shm, other = body(memory), body(memory)
    epoch = shm.open_engine(0, 1)
    assert [shm.turn(0), other.turn(0), shm.turn(1), shm.turn(0)] == [0, 1, 0, 2]
    assert shm.counts(0) == (0,) * len(COUNT_FIELDS)
    shm.count(0, epoch, len(COUNT_FIELDS) - 1)
    assert shm.turn(0) == 3
    with pytest.raises(IndexError):
        shm.turn(-1)


def test_counts_are_of_one_life_of_a_slot(body: type[NativeShm]) -> None:
    shm = body(small_block())
    first = shm.open_engine(0, 1)
    for field in (0, 0, 5):
        shm.count(0, first, field)
    assert shm.counts(0) == (2, 0, 0, 0, 0, 1)
    assert shm.counts(1) == (0,) * len(COUNT_FIELDS)
    shm.open_engine(0, 1)
    shm.count(0, first, 0)
    assert shm.counts(0) == (0,) * len(COUNT_FIELDS)


def test_a_cleared_row_keeps_its_metrics_and_loses_its_requests(body: type[NativeShm]) -> None:
    shm = body(small_block())
    epoch = shm.open_engine(1, 1)
    shm.acquire(3, 1, epoch, 5)
    cell = shm.series(b"hits", 0, 1)
    shm.add(3, cell, 41)
    shm.clear_row(3)
    shm.add(3, cell, 1)
    out = array("q", [0, 0])
    shm.sums(array("q", [1]), out)
    assert list(out) == [0, 0]
    assert shm.totals() == [(b"hits", [42])]
    assert shm.row(3) == (0, 0, 0)


def test_loads_come_back(body: type[NativeShm]) -> None:
    shm = body(small_block())
    values = array("q", range(1, 1 + len(LOAD_FIELDS)))
    shm.set_load(2, values)
    out = array("q", [0] * len(LOAD_FIELDS))
    shm.load(2, out)
    assert out == values
    shm.open_engine(2, 0)
    shm.load(2, out)
    assert not any(out)


def test_a_foreign_block_is_refused(body: type[NativeShm]) -> None:
    with pytest.raises(ValueError, match="version"):
        body(mmap.mmap(-1, 4096))
    with pytest.raises(ValueError, match="version"):
        body(bytearray(8))


def test_the_block_is_reached_by_its_descriptor(body: type[NativeShm]) -> None:
    block = make_block(rows=4, engines=3, series=4, cells=12)
    body(block.memory).bump()
    assert body(attach_block(block.fd).memory).generation() == 1
    os.close(block.fd)


def stress(shm: NativeShm, row: int, epoch: int, rounds: int) -> None:
    """What a data worker does, many times: leases, shared series, its own cells."""
    for turn in range(rounds):
        shm.acquire(row, 0, epoch, 3)
        cell = shm.series(b"series %d" % (turn % 4), turn % 4, 2)
        shm.add(row, cell, 1)
        shm.bump()
        shm.release(row, 0, epoch, 3)
    shm.acquire(row, 0, epoch, row)


def test_processes_lose_no_count() -> None:
    block = small_block()
    shm = NativeShm(block)
    epoch, rounds = shm.open_engine(0, 1), 20_000
    children = []
    for row in (1, 2, 3):
        pid = os.fork()
        if not pid:
            stress(shm, row, epoch, rounds)
            os._exit(0)
        children.append(pid)
    try:
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    except BaseException:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        raise
    out = array("q", [0, 0])
    shm.sums(array("q", [0]), out)
    assert list(out) == [3, 6]
    assert shm.generation() == 3 * rounds
    totals = dict(shm.totals())
    assert totals == {b"series %d" % index: [3 * rounds // 4, 0] for index in range(4)}
