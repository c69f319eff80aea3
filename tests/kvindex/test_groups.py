"""KV events of models that mix kinds of attention: several groups of blocks, of several sizes and under the same names, from one engine."""

import pytest
from msgspec.structs import replace

from smg.engine import KvBlock, KvCleared, KvRemoved, KvStored
from smg.engine.events import Kept, batch_of
from smg.kvindex import PrefixIndex
from smg.kvindex.feed import Feed
from smg.pb import common_pb2 as pb
from tests.kvindex.test_feed import IDS, batch, held, index, stored

__all__ = ["index"]


def of(group: int, event: KvStored, kept: Kept = "all") -> KvStored:
    return replace(event, group=group, kept=kept)


def test_what_an_engine_says_of_groups() -> None:
    blocks = [pb.KvBlock(block_hash=1, token_ids=range(16), block_size=16)]

    def kept(**said: object) -> tuple[int, str]:
        message = pb.KvEventBatch(events=[pb.KvCacheEvent(stored=pb.KvBlocksStored(blocks=blocks, **said))])  # type: ignore[arg-type]
        (event,) = batch_of(message).events
        assert isinstance(event, KvStored)
        return event.group, event.kept

    assert kept() == (-1, "all")
    kinds = {"full_attention": "all", "mla_attention": "all", "sliding_window": "window", "sliding_window_mla": "window"}
    kinds |= {"chunked_local_attention": "window", "mamba": "none", "encoder_only_attention": "none", "cross_attention": "none"}
    for group, (kind, what) in enumerate(kinds.items()):
        assert kept(group_idx=group, kv_cache_spec_kind=kind) == (group, what)
    removals = [pb.KvBlocksRemoved(block_hashes=[7]), pb.KvBlocksRemoved(block_hashes=[7], group_idx=0)]
    events = batch_of(pb.KvEventBatch(events=[pb.KvCacheEvent(removed=removed) for removed in removals])).events
    assert events == (KvRemoved((7,)), KvRemoved((7,), 0))


@pytest.mark.parametrize("first", ["full", "window", "state"])
def test_the_group_that_keeps_all_of_a_prompt_is_followed(index: PrefixIndex, first: str) -> None:
    """Whichever speaks first; what a window or a state has is no beginning of a prompt."""
    feed = Feed(index, slot=2)
    speaking = {
        "full": of(0, stored(0, 4)),
        "window": of(1, KvStored((KvBlock(1000, tuple(IDS[64:96])),), None, 32), "window"),
        "state": of(2, KvStored((KvBlock(1003, tuple(IDS[:64])),), None, 64), "none"),
    }
    feed.take(batch(1, speaking.pop(first), *speaking.values()))
    assert (held(index), index.step(2), feed.blocks) == (64, 16, 4)
    assert held(index, ids=IDS[64:]) == 0
    assert feed.passed_over == (1 if first == "window" else 2)
    feed.take(batch(2, KvRemoved((1000, 1003), 1), KvRemoved((1003, 1000), 2)))
    assert held(index) == 64, "the same names are other blocks in other groups"
    feed.take(batch(3, KvRemoved((1003,), 0)))
    assert held(index) == 48
    feed.take(batch(4, of(1, stored(3, 1), "window"), of(0, stored(3, 2))))
    assert (held(index), feed.unplaced) == (80, 0)


def test_a_model_that_has_windows_alone_is_followed(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, of(0, stored(0, 2), "window"), of(1, stored(0, 3), "window"), of(0, stored(2, 1), "window")))
    assert (held(index), feed.blocks, feed.passed_over) == (48, 3, 3)
    feed.take(batch(2, KvRemoved((1002,), 1)))
    assert held(index) == 48
    feed.take(batch(3, KvRemoved((1002,))))
    assert held(index) == 32, "of all groups, where none is named"


def test_a_state_alone_tells_nothing(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, of(0, stored(0, 3), "none")))
    assert (held(index), feed.blocks, feed.passed_over) == (0, 0, 3)


def test_of_two_sizes_without_a_name_the_larger_is_followed(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, stored(0, 2, size=20)))
    feed.take(batch(2, stored(0, 2, size=32)))
    feed.take(batch(3, stored(0, 3, size=16), KvStored((KvBlock(2000, tuple(IDS[64:70])),), 1001, 6)))
    assert (held(index), index.step(2), feed.blocks, feed.passed_over) == (64, 32, 2, 4)


def test_another_size_is_learned_once_nothing_is_held(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(1, of(0, stored(0, 2, size=32))))
    feed.take(batch(2, of(1, stored(0, 2, size=16))))
    assert (held(index), feed.passed_over) == (64, 2)
    feed.take(batch(3, KvCleared(), of(1, stored(0, 2, size=16)), of(0, stored(0, 2, size=32))))
    assert (held(index), index.step(2), feed.passed_over) == (32, 16, 4)


def test_a_new_life_may_have_other_groups(index: PrefixIndex) -> None:
    feed = Feed(index, slot=2)
    feed.take(batch(5, of(0, stored(0, 2))))
    feed.take(batch(1, of(3, stored(0, 3, size=32), "window"), at_s=5000.0))
    assert (held(index), feed.restarts, feed.passed_over) == (96, 1, 0)
