"""KV events on their way into the index: order, gaps, restarts, ranks, what cannot be placed."""

import base64
import random
import time
from array import array
from pathlib import Path

import pytest

from smg.engine import KvBatch, KvBlock, KvCleared, KvRemoved, KvStored
from smg.engine.events import batch_of
from smg.kvindex import PrefixIndex
from smg.kvindex.feed import Feed, Outcome
from smg.obs.shm import Shm
from smg.pb.common_pb2 import KvEventBatch
from tests.shm.memory import shared_memory

DATA = Path(__file__).parents[1] / "data" / "kv_events"
IDS = random.Random(5).choices(range(100_000), k=400)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(Shm(shared_memory(rows=3, prefix_blocks=4096)))


def held(index: PrefixIndex, slot: int = 2, *, ids: list[int] = IDS) -> int:
    out = array("q", [0])
    index.match(index.prompt(ids), array("q", [slot]), out)
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


def test_what_was_known_before_a_gap_that_cannot_be_replayed_stays(index: PrefixIndex) -> None:
    """An engine never tells again what it holds: without their parents, all later blocks of a conversation would be left out."""
    feed = Feed(index, slot=2)
    for number in range(1, 4):
        feed.take(batch(number, stored(number - 1, 1)))
    assert feed.take(batch(6, stored(5, 1))) is Outcome.AGAIN
    feed.resume()  # it takes no number to go on from
    assert feed.take(batch(7, stored(3, 2))) is Outcome.TAKEN
    assert (held(index), feed.gaps, feed.unplaced) == (80, 1, 0)
    assert feed.take(batch(9, stored(7, 1))) is Outcome.AGAIN


def test_ranks_have_their_own_blocks(index: PrefixIndex) -> None:
    """All count for the engine; the rank that holds most is the one to ask."""
    feed, prompt = Feed(index, slot=2), index.prompt(IDS)
    feed.take(batch(1, stored(0, 2)))
    assert (held(index), index.rank(prompt, 2)) == (32, -1), "an engine with one rank is not told which"
    feed.take(batch(1, stored(0, 3), rank=1))
    assert (held(index), index.rank(prompt, 2)) == (48, 1)
    assert index.rank(index.prompt(IDS[:32]), 2) == 0
    feed.take(batch(7, stored(0, 1), rank=2))
    feed.take(batch(2, KvRemoved((1002, 1001)), rank=1))
    assert (held(index), index.rank(prompt, 2)) == (32, 0), "the same names of blocks are other blocks at another rank"
    feed.take(batch(2, KvCleared(), rank=0))
    assert (held(index), index.rank(prompt, 2), feed.gaps, feed.restarts) == (16, 1, 0, 0)
    assert feed.last == 0, "one number cannot say where several ranks are"


def test_a_gap_of_one_rank_is_not_one_of_the_others(index: PrefixIndex) -> None:
    feed, prompt = Feed(index, slot=2), index.prompt(IDS)
    for rank in range(2):
        feed.take(batch(1, stored(0, 2), rank=rank))
    assert feed.take(batch(5, stored(0, 1), rank=1)) is Outcome.AGAIN
    assert feed.take(batch(5, stored(0, 1), rank=1)) is Outcome.TAKEN
    assert (held(index), index.rank(prompt, 2), feed.gaps) == (32, 0, 1)


def test_a_heartbeat_says_nothing_of_the_cache(index: PrefixIndex) -> None:
    """A servicer sends one a second, with the last number again and a later time; a restart looks the same but for its mark."""
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 2)))
    assert feed.take(KvBatch(sequence=1, events=(), at_s=5000.0, load_only=True)) is Outcome.KNOWN
    assert not feed.heavy(KvBatch(sequence=1, events=(), at_s=5000.0, load_only=True))
    assert feed.take(KvBatch(sequence=0, events=(), at_s=6000.0, load_only=True)) is Outcome.KNOWN
    assert (held(index), feed.last, feed.restarts) == (32, 1, 0)


def test_what_vllm_sent(index: PrefixIndex) -> None:
    """Recorded from vLLM 0.32 with blocks of 32 tokens: prompts of 100, the same 100, 160 and 30 + 40 tokens, three times 70; then
    removals (the batch's own blocks were taken out), each prompt's last block first. Between them are heartbeats."""
    lines = (DATA / "vllm.txt").read_text().split()
    batches = [batch_of(KvEventBatch.FromString(base64.b64decode(line))) for line in lines]
    first, more, third, fourth = (random.Random(n + 1).choices(range(100, 40_000), k=k) for n, k in enumerate((100, 60, 30, 70)))
    feed, seen = Feed(index, slot=2), []
    for each in batches:
        outcome = feed.take(each)
        assert outcome is (Outcome.KNOWN if each.load_only else Outcome.TAKEN)
        seen.append((feed.last, held(index, ids=first + more), held(index, ids=fourth), feed.blocks))
    assert list(dict.fromkeys(seen)) == [(0, 96, 0, 3), (1, 160, 0, 5), (2, 160, 0, 6), (3, 160, 0, 7), (4, 160, 64, 9), (5, 0, 0, 0)]
    assert (index.step(2), feed.unplaced, feed.gaps, feed.restarts) == (32, 0, 0, 0)
    assert len(third) < 32, "whose block was full only with tokens of the answer"


def test_an_emptied_cache_holds_nothing_that_was_predicted(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    index.insert(index.prompt(IDS), 2)
    index.insert(index.prompt(IDS), 3)
    feed.take(batch(1, stored(0, 2)))
    assert feed.heavy(batch(2, KvCleared()))
    feed.take(batch(2, KvCleared()))
    assert (held(index), held(index, 3), feed.blocks) == (0, 400, 0)


def test_numbers_may_begin_with_0(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(0, stored(0, 1)))
    assert feed.take(batch(0, stored(0, 1))) is Outcome.KNOWN
    assert feed.take(batch(2, stored(2, 1))) is Outcome.AGAIN


def test_a_block_that_is_held_twice_is_removed_twice(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 2), stored(0, 2), stored(1, 1)))
    for number, tokens in ((2, 32), (3, 32), (4, 16)):
        feed.take(batch(number, KvRemoved((1001,))))
        assert held(index) == tokens
    feed.take(batch(5, KvRemoved((1000, 1000, 1000)), stored(0, 1)))
    assert (held(index), feed.blocks) == (16, 1)


def test_a_snapshot_is_all_that_is_held(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    for number in range(5):
        feed.take(batch(7 + number, stored(number, 1)))
    first = KvBatch(sequence=4, events=(KvCleared(), stored(0, 2)), snapshot=True)
    assert feed.take(first) is Outcome.TAKEN
    assert (held(index), feed.last, feed.restarts) == (32, 4, 0)
    feed.take(KvBatch(sequence=5, events=(stored(2, 1),), snapshot=True))
    assert feed.take(batch(6, stored(3, 1))) is Outcome.TAKEN
    assert (held(index), feed.last) == (64, 6)


def test_what_was_known_before_a_pause_still_has_children(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 2)))
    feed.resume()
    assert feed.take(batch(9, stored(2, 1))) is Outcome.TAKEN
    assert (held(index), feed.unplaced, feed.gaps, feed.blocks) == (48, 0, 1, 3)
    feed.take(batch(10, KvRemoved((1001,))))
    assert held(index) == 16
    feed.resume()
    assert feed.take(batch(3, stored(0, 1, ids=IDS[200:]), at_s=9000.0)) is Outcome.TAKEN
    assert (held(index), feed.restarts) == (0, 1), "the engine was started anew in the pause"


def test_what_an_engine_holds_through_many_pauses_keeps_its_names(index: PrefixIndex) -> None:
    """A feed without replay pauses once an hour: a system prompt that is held for a day has children, and is removed, all the same."""
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 2)))
    for number in range(2, 26):
        feed.resume()
        feed.take(batch(10 * number, stored(100 + number, 1, ids=[number] * 4000, parent=None)))
    feed.take(batch(251, stored(2, 1)))
    assert (held(index), feed.unplaced) == (48, 0)
    feed.take(batch(252, stored(1, 1)))
    assert feed.blocks == 3 + 24, "what is told again is one block still"
    feed.take(batch(253, KvRemoved((1001,))))
    assert held(index) == 16


def test_names_from_before_a_pause_give_way_to_new_ones(index: PrefixIndex) -> None:
    """They may be of blocks that are held no more, which nobody will tell."""
    feed = Feed(index, slot=2, most_blocks=4)
    feed.take(batch(1, stored(0, 4)))
    feed.resume()
    other = IDS[200:]
    feed.take(batch(9, stored(0, 1), stored(50, 3, ids=[0] * 800 + other, parent=None)))
    assert (feed.blocks, feed.unplaced) == (4, 0)
    assert held(index, ids=other) == 48
    assert held(index) == 16


def test_names_that_were_known_for_longest_give_way_first(index: PrefixIndex) -> None:
    """And none for a block that is known: it takes no more room."""
    feed = Feed(index, slot=2, most_blocks=4)
    old, other = [7] * 32, [9] * 32
    feed.take(batch(1, stored(50, 2, ids=[0] * 800 + old, parent=None), stored(0, 2)))
    feed.resume()
    feed.take(batch(9, stored(1, 1)))
    assert (held(index, ids=old), held(index)) == (32, 32)
    feed.take(batch(10, stored(60, 2, ids=[0] * 960 + other, parent=None)))
    assert (held(index, ids=old), held(index), held(index, ids=other)) == (0, 32, 32)
    assert (feed.blocks, feed.unplaced) == (4, 0)


def test_tells_how_old_a_batch_was(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 1), at_s=time.time() - 5))
    assert 5 <= feed.lag_s < 60
    feed.take(batch(2, stored(1, 1), at_s=time.time() + 100))
    assert feed.lag_s == 0, "its clock is ahead of ours"


def test_what_was_predicted_stays_when_a_gap_cannot_be_replayed(index: PrefixIndex) -> None:
    """The engine is the same one; only what it had said is not certain any more."""
    feed = Feed(index, slot=2)
    index.insert(index.prompt(IDS[:64]), 2)
    feed.take(batch(1, stored(0, 6)))
    assert feed.take(batch(5)) is Outcome.AGAIN
    feed.lost()
    assert (held(index), feed.restarts) == (64, 0)


def test_a_block_is_counted_as_often_as_servicers_count_it(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, *(stored(0, 1) for _ in range(12))))
    feed.take(batch(2, KvRemoved((1000,) * 8)))
    assert held(index) == 0


def test_a_prompt_of_which_the_rank_is_not_known_counts_for_the_engine(index: PrefixIndex) -> None:
    feed, prompt = Feed(index, slot=2), index.prompt(IDS)
    index.insert(prompt, 2)
    feed.take(batch(1, stored(0, 1), rank=3))
    assert (held(index), index.rank(prompt, 2)) == (16, 3), "what was predicted for rank 0 may be at another"
    index.insert(prompt, 2)
    assert (held(index), index.rank(prompt, 2)) == (400, -1)
    feed.take(batch(2, stored(1, 24), rank=3))
    assert (held(index), index.rank(prompt, 2)) == (400, 3)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 16, 20, 32])
@pytest.mark.parametrize("together", [1, 2, 7])
def test_blocks_may_come_in_any_division(index: PrefixIndex, size: int, together: int) -> None:
    """Those of an entry come in several events, as an engine fills them while it generates."""
    feed = Feed(index, slot=2)
    count = 200 // size
    for number, first in enumerate(range(0, count, together)):
        feed.take(batch(number + 1, stored(first, min(together, count - first), size=size)))
    step = size * -(-16 // size)
    assert (held(index), feed.blocks) == (count * size // step * step, count)
    feed.take(batch(feed.last + 1, KvRemoved(tuple(1000 + i for i in reversed(range(count))))))
    assert (held(index), feed.blocks) == (0, 0)


def test_an_event_longer_than_the_index_looks(index: PrefixIndex) -> None:
    feed, tokens = Feed(index, slot=2), [7] * (1 << 17)
    feed.take(batch(1, KvStored(tuple(KvBlock(i, tuple(tokens[:1024])) for i in range(130)), None, 1024)))
    assert (feed.blocks, feed.unplaced) == (128, 2)
    assert held(index, ids=tokens) == 1 << 17


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
    assert feed.take(batch(2, stored(0, 1), rank=1 << 30)) is Outcome.KNOWN
    assert feed.blocks == 1
    assert held(index) == 0
