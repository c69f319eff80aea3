"""The caches: bounded in bytes, counted, and exact (encoding with the cache gives what it gives without)."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg.tokenizer import ByteLru, Tokenizer, content_key, load_tokenizer
from smg.tokenizer.cache import PIECE_CHARACTERS, PieceCache, cut_rule

NAMES = (
    "qwen3",
    "llama-2",
    "llama-3.1",
    "mistral-7b-v0.1",
    "mistral-7b-v0.3",
    "deepseek-v3",
    "gemma-3",
    "gemma-4",
    "phi-3",
    "kimi-k2",
    "gpt-oss",
)


def test_the_least_used_is_forgotten_first() -> None:
    lru: ByteLru[str] = ByteLru(10_000)
    for key in (b"a", b"b", b"c"):
        lru.put(key, key.decode(), size=800)
    assert lru.get(b"a") == "a"
    for i in range(8):
        lru.put(b"%d" % i, "x", size=800)
    assert lru.get(b"a") == "a"
    assert lru.get(b"b") is None
    counts = lru.counts()
    assert (counts.hits, counts.misses) == (2, 1)
    assert counts.entries == 10
    assert counts.bytes == 10_000


def test_a_value_that_would_fill_the_cache_is_not_kept() -> None:
    lru: ByteLru[str] = ByteLru(10_000)
    lru.put(b"a", "a", size=5_000)
    assert lru.get(b"a") is None
    lru.put(b"b", "1", size=100)
    lru.put(b"b", "2", size=200)
    assert lru.get(b"b") == "2"
    assert lru.counts().bytes == 400


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2_000)), max_size=60))
def test_the_bound_holds(puts: list[tuple[int, int]]) -> None:
    lru: ByteLru[int] = ByteLru(8_000)
    for key, size in puts:
        lru.put(b"%d" % key, size, size=size)
        assert lru.counts().bytes <= 8_000


def test_the_number_of_entries_is_bounded_too() -> None:
    lru: ByteLru[int] = ByteLru(1 << 20, entries=3)
    for key in range(10):
        lru.put(b"%d" % key, key, size=1)
    assert lru.counts().entries == 3
    assert lru.get(b"9") == 9


def test_content_keys() -> None:
    assert content_key([{"role": "user"}], {"a": 1}) == content_key([{"role": "user"}], {"a": 1})
    assert content_key([1], [2]) != content_key([1, 2])
    assert content_key({"a": 1, "b": 2}) != content_key({"b": 2, "a": 1})
    assert content_key("ab", "c") != content_key("a", "bc")


def words(rng: random.Random, marks: list[str]) -> str:
    choices = ["word", " ", "  ", "\n", "é", "e\u0301", "\u0301", "你好", "🤣", "1", "'s", "<", "|>", "▁", "x" * 300, " lorem ipsum" * 20]
    return "".join(rng.choice([*choices, *marks]) for _ in range(rng.randint(1, 60)))


@pytest.mark.parametrize("name", NAMES)
def test_cached_ids_are_the_plain_ones(name: str, real: Callable[[str], Tokenizer]) -> None:
    tokenizer = real(name)
    library = tokenizer._library  # type: ignore[attr-defined]
    rule = cut_rule(library)
    assert rule is not None
    cache = PieceCache(tokenizer.encode, rule, limit=1 << 20)
    rng = random.Random(name)
    added = [token.content for token in library.get_added_tokens_decoder().values()]
    marks = rng.sample(added, min(12, len(added))) + sorted(rule.cuts)[:6]
    texts = [words(rng, marks) for _ in range(150)]
    for text in texts + texts[:50]:
        expected = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        assert cache.encode(text) == expected, text
    assert cache.counts().hits > 50


@pytest.mark.parametrize("name", ["qwen3", "llama-3.2", "deepseek-v3"])
def test_ids_from_the_quick_encoder_with_its_cache_are_the_plain_ones(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "fixtures" / "tokenizers" / name, cache_bytes=1 << 18)
    library = tokenizer._library  # type: ignore[attr-defined]
    rng = random.Random(name)
    added = [token.content for token in library.get_added_tokens_decoder().values()]
    marks = rng.sample(added, min(16, len(added)))
    texts = [words(rng, marks) for _ in range(200)]
    for text in [*texts, *texts[:100], *texts[:100]]:
        assert tokenizer.encode(text) == library.encode_batch_fast([text], add_special_tokens=False)[0].ids, text
    counts = tokenizer.cache_counts()
    assert counts is not None
    assert counts.hits > 5  # of pieces that are long enough
    assert counts.bytes <= 1 << 18


def test_a_growing_conversation_hits(real: Callable[[str], Tokenizer]) -> None:
    tokenizer = real("qwen3")
    rule = cut_rule(tokenizer._library)  # type: ignore[attr-defined]
    assert rule is not None
    encoded: list[int] = []

    def counting(text: str) -> list[int]:
        encoded.append(len(text))
        return tokenizer.encode(text)

    cache = PieceCache(counting, rule, limit=1 << 20)
    text = ""
    for turn in range(30):
        text += f"<|im_start|>user\nturn {turn} " + "lorem ipsum " * 60 + "<|im_end|>\n"
        assert cache.encode(text) == tokenizer.encode(text)
    assert sum(encoded) < 4 * len(text)
    assert max(encoded[3:]) < 4 * PIECE_CHARACTERS


def test_loading_with_a_cache(shared: Path) -> None:
    folder = shared / "fixtures" / "tokenizers" / "smollm2"
    cached, plain = load_tokenizer(folder, cache_bytes=1 << 20), load_tokenizer(folder, fast=False)
    text = "<|im_start|>user\n" + "Grüße " * 200 + "<|im_end|>\n<|im_start|>assistant\n"
    assert cached.encode(text) == cached.encode(text) == cached.encode(text) == plain.encode(text)  # kept from its second coming on
    counts = cached.cache_counts()
    assert counts is not None
    assert counts.hits >= 1
    assert plain.cache_counts() is None
