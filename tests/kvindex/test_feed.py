"""KV events on their way into the index: order, gaps, restarts, ranks, what cannot be placed."""

import os
import random
from array import array
from collections.abc import Iterator

import pytest

from smg.engine import KvBatch, KvBlock, KvCleared, KvRemoved, KvStored
from smg.kvindex import PrefixIndex
from smg.kvindex.feed import Feed, Outcome
from smg.obs.shm import Shm, make_block

IDS = random.Random(5).choices(range(100_000), k=400)


@pytest.fixture
def index() -> Iterator[PrefixIndex]:
    block = make_block(rows=3, prefix_blocks=4096)
    yield PrefixIndex(Shm(block.memory))
    os.close(block.fd)


def held(index: PrefixIndex, slot: int = 2, *, rank: int = 0, ids: list[int] = IDS) -> int:
    out = array("q", [0])
    index.match(index.prompt(ids), array("q", [slot]), out, rank)
    return out[0]


def stored(first: int, count: int, *, size: int = 16, ids: list[int] = IDS, parent: int | None = -1) -> KvStored:
    """Blocks first… of `ids`; the engine's name of block i is 1000 + i."""
    blocks = tuple(KvBlock(1000 + i, tuple(ids[i * size : (i + 1) * size])) for i in range(first, first + count))
    return KvStored(blocks, (1000 + first - 1 if first else None) if parent == -1 else parent, size)


def batch(sequence: int, *events: object, at_s: float = 0.0, rank: int = 0) -> KvBatch:
    return KvBatch(sequence=sequence, events=events, at_s=at_s or 1000.0 + sequence, rank=rank)  # type: ignore[arg-type]


def test_stored_then_removed(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    assert feed.take(batch(1, stored(0, 3))) is Outcome.TAKEN
    assert held(index) == 48
    feed.take(batch(2, stored(3, 2)))
    assert (held(index), feed.blocks) == (80, 5)
    feed.take(batch(3, KvRemoved((1004, 999)), KvRemoved((1003,))))
    assert (held(index), feed.blocks) == (48, 3)
    feed.take(batch(4, KvCleared()))
    assert (held(index), feed.blocks) == (0, 0)


@pytest.mark.parametrize("size", [1, 4, 5, 16, 32, 48])
def test_learns_the_block_size(index: PrefixIndex, size: int) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 96 // size, size=size)))
    step = size * -(-16 // size)
    assert index.step(2) == step
    assert held(index) == 96 // size * size // step * step
    feed.take(batch(2, *(KvRemoved((1000 + i,)) for i in reversed(range(32 // size, 96 // size)))))
    assert held(index) == 32 // size * size // step * step


def test_blocks_of_an_unknown_parent_are_left_out(index: PrefixIndex) -> None:
    """The original puts them at the beginning of a prompt, where they are not."""
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(2, 2)))
    assert (held(index), held(index, ids=IDS[32:]), feed.unplaced) == (0, 0, 2)


def test_blocks_that_hold_more_than_tokens_are_left_out(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, KvStored((KvBlock(1, tuple(IDS[:16])), KvBlock(2, ()), KvBlock(3, tuple(IDS[32:48]))), None, 16)))
    assert (held(index), feed.blocks, feed.unplaced) == (16, 1, 2)


def test_known_batches_are_passed_over(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 1)))
    feed.take(batch(2, stored(1, 1)))
    assert [feed.take(batch(n, KvCleared())) for n in (1, 2)] == [Outcome.KNOWN] * 2
    assert held(index) == 32


def test_a_restarted_engine_is_forgotten(index: PrefixIndex) -> None:
    """Known bug B117: events 1..50, restart, 0..3: the blocks from before are gone."""
    feed = Feed(index, slot=2)
    index.insert(index.prompt(IDS[:16]), 2)
    for number in range(1, 20):
        feed.take(batch(number, stored(number - 1, 1)))
    assert held(index) == 19 * 16
    other = IDS[200:]
    for number in range(4):
        assert feed.take(batch(number, stored(number, 1, ids=other), at_s=5000.0 + number)) is Outcome.TAKEN
    assert (held(index), held(index, ids=other), feed.restarts) == (0, 64, 1), "predictions are gone too"
    assert feed.last == 3


def test_a_gap_is_asked_for_again_and_then_given_up(index: PrefixIndex) -> None:
    """Known bug B117: (…, 7, 10): replay from 8; when it is gone, stale, and no loop."""
    feed = Feed(index, slot=2)
    for number in range(1, 8):
        feed.take(batch(number, stored(number - 1, 1)))
    assert feed.take(batch(10, stored(9, 1))) is Outcome.AGAIN
    assert feed.last == 7
    for number in range(8, 11):
        assert feed.take(batch(number, stored(number - 1, 1))) is Outcome.TAKEN
    assert held(index) == 160
    assert feed.take(batch(20, stored(10, 1))) is Outcome.AGAIN
    assert feed.take(batch(20, stored(0, 1))) is Outcome.TAKEN
    assert (held(index), feed.gaps, feed.last) == (16, 2, 20)
    assert feed.take(batch(21, stored(1, 1))) is Outcome.TAKEN


def test_ranks_have_their_own_blocks(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 2)))
    feed.take(batch(2, stored(0, 3), rank=1))
    assert [held(index, rank=rank) for rank in range(3)] == [32, 48, 0]
    feed.take(batch(3, KvCleared(), rank=1))
    assert [held(index, rank=rank) for rank in range(3)] == [32, 0, 0]


def test_keeps_no_more_blocks_than_it_may(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2, most_blocks=4)
    feed.take(batch(1, stored(0, 8)))
    assert (feed.blocks, feed.unplaced) == (4, 4)
    assert held(index) == 64


def test_what_no_engine_should_say_does_no_harm(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    big = KvStored((KvBlock(-(1 << 63), (4_294_967_295,) * 16),), None, 16)
    events = (
        stored(0, 1, size=0),
        KvStored((), None, 0),
        KvStored((KvBlock(1, (1,)),), None, 1 << 30),
        KvRemoved(()),
        KvRemoved((5, 5)),
        big,
    )
    assert feed.take(batch(1, *events)) is Outcome.TAKEN
    assert feed.take(batch(2, stored(0, 1), rank=1 << 30)) is Outcome.TAKEN
    assert feed.blocks == 1
    assert held(index) == 0
