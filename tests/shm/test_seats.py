"""Seats and waiters: the native table and its twin leave the same words; the order, the kept seats, what dead processes leave behind."""

import os
import signal
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg._ext import NativeSeats, NativeShm
from smg.obs.seats import PlainSeats
from smg.obs.shm import PlainShm
from tests.shm.memory import shared_memory

SYSTEM, INTERACTIVE, DEFAULT, BULK = range(4)
BODIES = [(NativeShm, NativeSeats), (PlainShm, PlainSeats)]
ONE, OTHER = 2, 3


def small_block():
    return shared_memory(
        rows=4, engines=1, series=1, cells=1, prefix_blocks=8, sticky_keys=8, seats=6, waiters=5, buckets=8, secret=bytes(16)
    )


def rules(limit, *kept):
    return array("q", [limit, *kept, *[0] * (4 - len(kept))])


rows, ranks, numbers = st.integers(-1, 4), st.integers(-1, 4), st.integers(-1, 6)
rule_sets = st.lists(st.integers(0, 5), min_size=4, max_size=6).map(lambda values: array("q", values))
times = st.integers(0, 20_000)
CALLS = st.one_of(
    st.tuples(st.just("take"), rows, ranks, rule_sets, times),
    st.tuples(st.just("enter"), rows, ranks, st.integers(0, 4)),
    st.tuples(st.just("next"), rule_sets, times),
    st.tuples(st.just("claim"), numbers, rule_sets),
    st.tuples(st.just("leave"), numbers),
    st.tuples(st.just("starve"), numbers),
    st.tuples(st.just("give"), numbers),
    st.tuples(st.just("ask"), ranks, st.integers(0, 15), rule_sets, times),
    st.tuples(st.just("asked"), numbers),
    st.tuples(st.just("protect"), numbers),
    st.tuples(st.just("counts"), st.just(array("q", [0] * 8))),
    st.tuples(st.just("clear"), rows),
    st.tuples(st.just("beat"), st.integers(0, 3), times),
)


def outcome(shm, seats, call):
    name, *arguments = call
    copies = [array("q", argument) if isinstance(argument, array) else argument for argument in arguments]
    try:
        result = getattr(shm if name == "beat" else seats, name)(*copies)
    except (IndexError, ValueError) as error:
        return type(error), str(error)
    return result, copies


@given(st.lists(CALLS, max_size=60))
def test_twin_equals_native(calls):
    one, other = small_block(), small_block()
    native, plain = NativeShm(one), PlainShm(other)
    bodies = (native, NativeSeats(native)), (plain, PlainSeats(plain))
    for call in calls:
        assert outcome(*bodies[0], call) == outcome(*bodies[1], call), call
    assert bytes(one) == bytes(other)


@pytest.fixture(params=BODIES, ids=["native", "plain"])
def seats(request):
    make_shm, make_seats = request.param
    shm = make_shm(small_block())
    made = make_seats(shm)
    return made, shm


def waiter_of(number):
    return number >> 16


def counts(table):
    out = array("q", [0] * 8)
    table.counts(out)
    return list(out)


def test_first_come_first_served_over_processes(seats):
    table, _ = seats
    one = rules(1)
    seat = table.take(ONE, DEFAULT, one, 0)
    assert (seat, table.take(OTHER, DEFAULT, one, 0)) == (0, -1)
    first, second = table.enter(OTHER, DEFAULT, 5), table.enter(ONE, DEFAULT, 5)
    assert table.next(one, 0) == -1
    table.give(seat)
    assert table.take(ONE, DEFAULT, one, 0) == -1, "who has just come does not overtake"
    assert table.next(one, 0) == first << 16 | OTHER
    seat = table.claim(first, one)
    assert (seat, table.claim(second, one)) == (0, -1)
    table.give(seat)
    assert table.next(one, 0) == second << 16 | ONE
    table.leave(second)
    assert counts(table) == [0] * 8


def test_a_higher_rank_goes_first_and_a_starving_one_before_all(seats):
    table, _ = seats
    two = rules(2, 0, 1)
    assert table.take(ONE, BULK, two, 0) == 0
    assert table.take(ONE, BULK, two, 0) == -1, "one seat is kept for interactive"
    low, high = table.enter(ONE, BULK, 5), table.enter(ONE, INTERACTIVE, 5)
    assert waiter_of(table.next(two, 0)) == high
    table.leave(high)
    assert table.next(two, 0) == -1
    high = table.enter(ONE, SYSTEM, 5)
    assert (table.starve(low), table.starve(low)) == (True, False)
    assert waiter_of(table.next(two, 0)) == low


def test_a_queue_has_its_room(seats):
    table, _ = seats
    assert [table.enter(ONE, BULK, 2) for _ in range(3)] == [0, 1, -1]
    assert table.enter(ONE, DEFAULT, 2) == 2
    assert counts(table) == [0, 0, 0, 0, 0, 0, 1, 2]


def test_the_latest_of_the_lowest_rank_is_asked_once_a_waiter(seats):
    table, _ = seats
    four = rules(4)
    default, safe, earlier, latest = (table.take(ONE, rank, four, 0) for rank in (DEFAULT, BULK, BULK, BULK))
    assert table.protect(safe)
    assert table.ask(INTERACTIVE, 0b11, four, 0) == -1, "nobody waits"
    table.enter(OTHER, INTERACTIVE, 5)
    assert table.ask(INTERACTIVE, 0b11, four, 0) == ONE
    assert [table.asked(seat) for seat in (default, safe, earlier, latest)] == [-1, -1, -1, INTERACTIVE]
    assert table.ask(INTERACTIVE, 0b11, four, 0) == -1, "one is asked already"
    assert table.protect(latest)
    assert table.ask(INTERACTIVE, 0b11, four, 0) == ONE
    assert table.asked(earlier) == INTERACTIVE
    table.give(earlier)
    assert table.ask(INTERACTIVE, 0b11, four, 0) == -1, "a seat is free"


def test_what_a_dead_process_left_is_taken_away(seats):
    table, _ = seats
    one = rules(1)
    table.take(ONE, DEFAULT, one, 0)
    table.enter(ONE, DEFAULT, 5)
    waiter = table.enter(OTHER, DEFAULT, 5)
    table.clear(ONE)
    assert table.next(one, 0) == waiter << 16 | OTHER
    assert counts(table) == [0, 0, 0, 0, 0, 0, 1, 0]


def test_a_process_that_hangs_does_not_hold_up_the_queue(seats):
    table, shm = seats
    shm.beat(ONE, 1)
    shm.beat(OTHER, 9_000)
    table.enter(ONE, DEFAULT, 5)
    waiter = table.enter(OTHER, DEFAULT, 5)
    assert table.next(rules(1), 9_000) == waiter << 16 | OTHER


def test_processes_never_share_a_seat_and_leave_none_taken():
    """Three processes take and give two seats as fast as they can; what was taken is written down in a table of owners."""
    block = small_block()
    shm = NativeShm(block)
    table, two = NativeSeats(shm), rules(2)
    owners = shared_memory(rows=4, engines=1, series=1, cells=1, prefix_blocks=8, sticky_keys=8)
    marks = NativeShm(owners)
    marks.open_engine(0, 0)
    children = []
    for row in (1, 2, 3):
        pid = os.fork()
        if not pid:
            os._exit(fight(table, marks, two, row))
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert counts(table) == [0] * 8


def fight(table, marks, two, row):
    """Exit code 1 when more than two have a seat at once."""
    signal.alarm(50)
    epoch, sums, got = marks.engine_epoch(0), array("q", [0, 0]), 0
    for _ in range(200_000):
        seat = table.take(row, DEFAULT, two, 0)
        if seat < 0:
            continue
        marks.acquire(row, 0, epoch, 0)
        marks.sums(array("q", [0]), sums)
        if sums[0] > 2:
            return 1
        marks.release(row, 0, epoch, 0)
        table.give(seat)
        got += 1
        if got == 20_000:
            break
    return 0
