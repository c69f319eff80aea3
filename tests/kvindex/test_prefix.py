"""What the prefix index answers, by both bodies: blocks, ranks, lives of slots, full tables."""

import random
from array import array

import pytest

from smg._ext import NativePrefixIndex, NativeShm, Prompt
from smg.kvindex.plain import PlainPrefixIndex
from smg.obs.shm import PlainShm
from tests.shm.memory import shared_memory

BODIES = [(NativeShm, NativePrefixIndex), (PlainShm, PlainPrefixIndex)]
Pair = tuple[NativeShm, NativePrefixIndex]


@pytest.fixture(params=BODIES, ids=["native", "plain"])
def pair(request: pytest.FixtureRequest) -> Pair:
    make_shm, make_index = request.param
    shm = make_shm(shared_memory(rows=3, prefix_blocks=4096))
    return shm, make_index(shm)


def held(index: NativePrefixIndex, prompt: Prompt, slots: range | list[int]) -> list[int]:
    out = array("q", [0] * len(slots))
    index.match(prompt, array("q", slots), out)
    return out.tolist()


def ids(count: int, *, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(150_000), k=count)


def test_counts_the_whole_blocks_of_a_prompt(pair: Pair) -> None:
    _, index = pair
    assert index.insert(index.prompt(ids(100)), 3)
    assert held(index, index.prompt(ids(100)), [2, 3, 4]) == [0, 96, 0]


def test_counts_the_common_beginning(pair: Pair) -> None:
    _, index = pair
    index.insert(index.prompt(ids(64) + ids(64, seed=1)), 0)
    index.insert(index.prompt(ids(64) + ids(64, seed=2)), 1)
    assert held(index, index.prompt(ids(64) + ids(64, seed=1)), [0, 1]) == [128, 64]
    assert held(index, index.prompt(ids(70)), [0, 1]) == [64, 64]
    assert held(index, index.prompt(ids(64, seed=2)), [0, 1]) == [0, 0]


def test_a_prompt_shorter_than_a_block_has_no_beginning(pair: Pair) -> None:
    _, index = pair
    assert index.insert(index.prompt(ids(15)), 0)
    assert index.insert(index.prompt([]), 0)
    assert held(index, index.prompt(ids(15)), [0]) == [0]


def test_a_prompt_is_looked_at_up_to_a_length() -> None:
    index = NativePrefixIndex(NativeShm(shared_memory(rows=3, prefix_blocks=400_000)))
    prompt = index.prompt(ids(200_000))
    assert len(prompt) == 131_072
    index.insert(prompt, 0)
    assert held(index, prompt, [0]) == [131_072]


def test_zeros_are_tokens_too(pair: Pair) -> None:
    _, index = pair
    index.insert(index.prompt([0] * 16), 0)
    assert held(index, index.prompt([0] * 64), [0]) == [16]


def test_keeps_text_apart_from_tokens_and_counts_bytes(pair: Pair) -> None:
    _, index = pair
    text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 3
    index.insert(index.text_prompt(text), 5)
    size = len(text.encode())
    assert held(index, index.text_prompt(text), [5]) == [size // 64 * 64]
    assert held(index, index.text_prompt(text[:-9] + "anders"), [5]) == [(size - 9) // 64 * 64]


def test_slots_of_many_groups(pair: Pair) -> None:
    _, index = pair
    for slot in range(0, 256, 5):
        index.insert(index.prompt(ids(32 + slot)), slot)
    expected = [(32 + slot) // 16 * 16 if slot % 5 == 0 else 0 for slot in range(256)]
    assert held(index, index.prompt(ids(400)), range(256)) == expected


def test_engines_with_other_block_sizes(pair: Pair) -> None:
    _, index = pair
    for slot, size in enumerate((0, 1, 5, 16, 24, 64)):
        index.set_block_size(slot, size)
        index.insert(index.prompt(ids(130)), slot)
    assert [index.step(slot) for slot in range(6)] == [16, 16, 20, 16, 24, 64]
    assert held(index, index.prompt(ids(130)), range(6)) == [128, 128, 120, 128, 120, 128]


def test_the_operators_block_size_is_for_engines_that_say_none() -> None:
    for make_shm, make_index in BODIES:
        index = make_index(make_shm(shared_memory(rows=3, prefix_blocks=64, prefix_block_size=24)))
        index.set_block_size(1, 32)
        assert [index.step(slot) for slot in range(2)] == [24, 32]
        index.insert(index.prompt(ids(100)), 0)
        assert held(index, index.prompt(ids(100)), [0]) == [96]


def test_ranks_are_apart_and_count_for_their_engine(pair: Pair) -> None:
    _, index = pair
    index.set_ranks(4, 3)
    for rank, length in ((-1, 16), (0, 48), (2, 64), (7, 100)):
        index.insert(index.prompt(ids(length)), 4, rank)
    assert held(index, index.prompt(ids(100)), [3, 4, 5]) == [0, 64, 0], "rank 7 is none that the engine has"
    assert [index.rank(index.prompt(ids(100)[:length]), 4) for length in (15, 48, 64, 100)] == [-1, 0, 2, 2]
    index.insert(index.prompt(ids(96)), 4)
    assert (held(index, index.prompt(ids(100)), [4]), index.rank(index.prompt(ids(100)), 4)) == ([96], -1)


def test_an_engine_turns_out_to_have_ranks(pair: Pair) -> None:
    """What was predicted before for its only rank may be at any of them."""
    _, index = pair
    index.insert(index.prompt(ids(32)), 4)
    index.confirm(index.names(0, ids(16), 16), 4)
    index.set_ranks(4, 2)
    assert held(index, index.prompt(ids(32)), [4]) == [16]
    with pytest.raises(ValueError, match="ranks"):
        index.set_ranks(4, 257)


def test_engines_confirm_and_take_back(pair: Pair) -> None:
    _, index = pair
    names = index.names(0, ids(60), 16)
    assert len(names) == 3
    assert names[1:] == index.names(names[0], ids(60)[16:], 16), "names chain"
    index.confirm(names, 7)
    assert held(index, index.prompt(ids(60)), [7]) == [48]
    index.remove(names[1:2], 7)
    assert held(index, index.prompt(ids(60)), [7]) == [16]


def test_a_name_is_of_all_units_and_of_their_division(pair: Pair) -> None:
    _, index = pair
    source = ids(48)
    seen = {index.names(0, source, 48)[0], index.names(0, source, 24)[1], index.names(0, source, 16)[2], index.names(1, source, 48)[0]}
    for place in range(48):
        other = source.copy()
        other[place] ^= 1
        seen |= {index.names(0, other, 48)[0], index.names(0, other, 24)[1]}
    assert len(seen) == 4 + 2 * 48


def test_what_is_taken_back_is_no_longer_predicted(pair: Pair) -> None:
    _, index = pair
    index.insert(index.prompt(ids(32)), 7)
    index.insert(index.prompt(ids(32)), 8)
    index.remove(index.names(0, ids(32), 16)[1:], 7)
    assert held(index, index.prompt(ids(32)), [7, 8]) == [16, 32]


def test_forgets_what_was_confirmed_and_keeps_predictions(pair: Pair) -> None:
    _, index = pair
    index.insert(index.prompt(ids(16)), 7)
    index.confirm(index.names(0, ids(32), 16), 7)
    index.confirm(index.names(0, ids(32), 16)[1:], 23)  # the same bit, another group
    assert index.forget(7, False) == 2
    assert held(index, index.prompt(ids(32)), [7]) == [16]
    assert index.forget(7) == 1
    assert held(index, index.prompt(ids(32)), [7]) == [0]
    index.insert(index.prompt(ids(16)), 23)
    assert held(index, index.prompt(ids(32)), [23]) == [32]


def test_a_removed_engine_is_gone_at_once(pair: Pair) -> None:
    """Known bug B116: entries of removed engines. The epoch voids them; a new engine in the slot begins with nothing."""
    shm, index = pair
    shm.open_engine(9, 1)
    index.insert(index.prompt(ids(64)), 9)
    shm.open_engine(9, 1)
    assert held(index, index.prompt(ids(64)), [9]) == [0]
    assert not index.insert(index.prompt(ids(64)), 9), "an entry of the new engine would live beside those of the old one"
    index.open(9)
    assert held(index, index.prompt(ids(64)), [9]) == [0]
    assert not index.insert(index.prompt(ids(64)), 9, -1, shm.engine_epoch(9) - 1), "it is for the engine before"
    assert not index.confirm(index.names(0, ids(64), 16), 9, 0, shm.engine_epoch(9) - 1)
    assert held(index, index.prompt(ids(64)), [9]) == [0]
    assert index.insert(index.prompt(ids(32)), 9)
    index.open(9)
    assert held(index, index.prompt(ids(64)), [9]) == [32]


def test_two_starts_name_alike_prompts_differently() -> None:
    indexes = [NativePrefixIndex(NativeShm(shared_memory(rows=3))) for _ in range(2)]
    assert indexes[0].names(0, ids(16), 16) != indexes[1].names(0, ids(16), 16)


def test_a_full_table_keeps_what_is_used(pair: Pair) -> None:
    """Known bug B116: memory stays what it is whatever comes; beginnings that come again and again stay known."""
    _, index = pair
    shared = ids(64)
    for seed in range(1500):
        index.insert(index.prompt(ids(48, seed=seed + 1)), seed % 16)
        if seed % 10 == 0:
            index.insert(index.prompt(shared), 3)
    room, stored, evicted = index.counts()
    assert room == 4102, "whole lines"
    assert stored - evicted <= room + 7
    assert evicted > 0
    assert held(index, index.prompt(shared), [3]) == [64]


def test_says_nothing_that_was_not_said(pair: Pair) -> None:
    """Against a set of (beginning, slot), in a table so full that entries are displaced all the time."""
    _, index = pair
    rng, said = random.Random(3), set()
    for _ in range(3000):
        prompt, slot = tuple(ids(16 * rng.randrange(1, 6), seed=rng.randrange(400))), rng.randrange(40)
        index.insert(index.prompt(prompt), slot)
        said |= {(prompt[: 16 * (n + 1)], slot) for n in range(len(prompt) // 16)}
    for seed in range(0, 400, 9):
        prompt = tuple(ids(80, seed=seed))
        for slot, tokens in enumerate(held(index, index.prompt(prompt), range(40))):
            assert all((prompt[: 16 * (n + 1)], slot) in said for n in range(tokens // 16))
