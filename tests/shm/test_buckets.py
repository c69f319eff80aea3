"""Token buckets: the native table and its twin leave the same words; rates, bursts, debts, many processes."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg._ext import NativeBuckets, NativeShm
from smg.obs.buckets import LONGEST_NS, PlainBuckets
from smg.obs.shm import PlainShm
from tests.shm.memory import shared_memory

BODIES = [(NativeShm, NativeBuckets), (PlainShm, PlainBuckets)]
SECOND = 1_000_000_000
KEY = 0x1234_5678_9ABC_DEF0


def small_block(buckets=4):
    return shared_memory(
        rows=4, engines=1, series=1, cells=1, prefix_blocks=8, sticky_keys=8, secret=bytes(16), seats=8, waiters=8, buckets=buckets
    )


keys = st.integers(0, 2**64 - 1) | st.integers(0, 9)
costs = st.integers(-(2**62), 2**62) | st.integers(-100, 100)
times = st.integers(-1, 1000)
CALLS = st.one_of(
    st.tuples(st.just("take"), keys, costs, costs, times),
    st.tuples(st.just("charge"), keys, costs, times),
    st.tuples(st.just("debt"), keys, times),
)


def outcome(body, call):
    name, *arguments = call
    try:
        return getattr(body, name)(*arguments)
    except ValueError as error:
        return str(error)


@given(st.lists(CALLS, max_size=60))
def test_twin_equals_native(calls):
    one, other = small_block(), small_block()
    native, plain = NativeBuckets(NativeShm(one)), PlainBuckets(PlainShm(other))
    for call in calls:
        assert outcome(native, call) == outcome(plain, call), call
    assert bytes(one) == bytes(other)


@pytest.fixture(params=BODIES, ids=["native", "plain"])
def table(request):
    make_shm, make_buckets = request.param
    return make_buckets(make_shm(small_block()))


def test_a_burst_then_the_rate(table):
    """Two a second, three at once."""
    cost, burst, now = SECOND // 2, 3 * SECOND // 2, 10 * SECOND
    assert [table.take(KEY, cost, burst, now) for _ in range(4)] == [0, 0, 0, cost]
    assert table.take(KEY, cost, burst, now + cost) == 0
    assert table.take(KEY, cost, burst, now + cost) == cost
    assert table.take(KEY ^ 1, cost, burst, now) == 0, "another's bucket is full"


def test_what_is_larger_than_the_bucket_waits_until_it_is_full_and_leaves_a_debt(table):
    assert table.take(KEY, 5 * SECOND, SECOND, 0) == 0
    assert table.debt(KEY, 0) == 5 * SECOND
    assert table.take(KEY, 5 * SECOND, SECOND, SECOND) == 4 * SECOND


def test_what_was_too_much_comes_back(table):
    table.take(KEY, 5 * SECOND, 9 * SECOND, 0)
    table.charge(KEY, -2 * SECOND, 0)
    assert table.debt(KEY, 0) == 3 * SECOND
    table.charge(KEY, 4 * SECOND, 0)
    assert table.debt(KEY, 0) == 7 * SECOND
    table.charge(KEY, -LONGEST_NS, 0)
    assert table.debt(KEY, 0) == 0


def test_a_full_table_forgets_who_is_nearest_to_full(table):
    hungry = [key << 3 for key in range(1, 9)]
    for number, key in enumerate(hungry, 1):
        table.charge(key, number * SECOND, 0)
    table.charge(9 << 3, 20 * SECOND, 0)
    assert table.debt(hungry[0], 0) == 0
    assert [table.debt(key, 0) for key in hungry[1:]] == [number * SECOND for number in range(2, 9)]
    assert table.debt(9 << 3, 0) == 20 * SECOND


def test_processes_lose_no_charge():
    block = small_block()
    table = NativeBuckets(NativeShm(block))
    children = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            for _ in range(20_000):
                table.charge(KEY, 3, 0)
                table.charge(KEY, -1, 0)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert table.debt(KEY, 0) == 3 * 20_000 * 2
