"""The table of routing keys, by both bodies: binding, ageing, lives of slots, a full table."""

import pytest

from smg._ext import NativeShm, NativeSticky
from smg.kvindex.plain_sticky import PlainSticky
from smg.obs.shm import PlainShm
from tests.shm.memory import shared_memory

Pair = tuple[NativeShm, NativeSticky]
KEY = 0xFEDCBA9876543210


@pytest.fixture(params=[(NativeShm, NativeSticky), (PlainShm, PlainSticky)], ids=["native", "plain"])
def pair(request: pytest.FixtureRequest) -> Pair:
    make_shm, make_table = request.param
    shm = make_shm(shared_memory(rows=3, sticky_keys=64))
    return shm, make_table(shm)


def test_binds_a_key(pair: Pair) -> None:
    _, table = pair
    assert table.find(KEY, 100, 1000) == -1
    table.put(KEY, 7, 100)
    assert table.find(KEY, 100, 1000) == 7
    table.put(KEY, 8, 100)
    assert table.find(KEY, 100, 1000) == 8
    assert [table.keys(slot) for slot in (7, 8)] == [0, 1]


def test_a_use_keeps_a_key_alive(pair: Pair) -> None:
    _, table = pair
    table.put(KEY, 7, 0)
    assert table.find(KEY, 900, 1000) == 7
    assert table.find(KEY, 1800, 1000) == 7
    assert table.find(KEY, 2900, 1000) == -1


def test_frees_idle_keys_and_those_of_engines_that_are_gone(pair: Pair) -> None:
    shm, table = pair
    for key in range(3):
        table.put(KEY ^ key, key, 0)
    table.find(KEY, 900, 1000)
    table.find(KEY ^ 1, 900, 1000)
    shm.open_engine(1, 1)
    assert table.find(KEY ^ 1, 900, 1000) == -1
    assert table.expire(1500, 1000) == 2
    assert [table.keys(slot) for slot in range(3)] == [1, 0, 0]


def test_a_full_table_forgets_who_was_idle_for_longest(pair: Pair) -> None:
    _, table = pair
    for number in range(300):
        table.put(number * 0x9E3779B97F4A7C15 & (1 << 64) - 1, 2, 16 * number)
    assert table.find(299 * 0x9E3779B97F4A7C15 & (1 << 64) - 1, 4800, 10_000) == 2
    assert table.find(0, 4800, 10_000) == -1
    assert table.keys(2) <= 72


def test_refuses_slots_that_cannot_be(pair: Pair) -> None:
    _, table = pair
    for slot in (-1, 1024, 5000):
        with pytest.raises(IndexError):
            table.put(KEY, slot, 0)
        with pytest.raises(IndexError):
            table.keys(slot)
