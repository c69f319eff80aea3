"""Incremental decoding against what the reference libraries decoded: id by id, in groups, whole, every prefix, from the middle."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from smg.tokenizer import Tokenizer
from smg.tokenizer.decoder import WindowDecoder
from smg.tokenizer.huggingface import HuggingFaceTokenizer
from smg.tokenizer.pieces import BYTE_NAMES

NAMES = (
    *("cl100k_base", "clip", "command-r", "deepseek-v3", "gemma-2", "gemma-3", "gpt-oss", "gpt2", "kimi-k2", "llama-2", "llama-3-tiktoken"),
    *("llama-3.1", "llama-4-tiktoken", "mistral-7b-v0.1", "o200k_base", "qwen-tiktoken", "qwen2.5", "qwen3", "qwen3.5-pretok", "smollm2"),
)


def decoded(tokenizer: Tokenizer, groups: Sequence[Sequence[int]], *, skip: bool = False) -> str:
    decoder = tokenizer.decoder(skip_special_tokens=skip)
    return "".join([*map(decoder.feed, groups), decoder.flush()])


def groups_of(ids: Sequence[int], rng: random.Random) -> list[Sequence[int]]:
    groups = []
    while ids:
        size = rng.randint(1, 4)
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


def test_every_shared_vocabulary_is_listed(shared: Path) -> None:
    there = {file.stem for file in (shared / "fixtures" / "detok_goldens").glob("*.json")}
    assert there == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_goldens(name: str, shared: Path, real: Callable[[str], Tokenizer]) -> None:
    golden = json.loads((shared / "fixtures" / "detok_goldens" / f"{name}.json").read_text())
    tokenizer = real(name)
    rng = random.Random(name)
    for case, expected in golden["cases"].items():
        ids = expected["ids"]
        assert tokenizer.encode(expected["text"]) == ids, case
        for groups in ([[i] for i in ids], [ids], *(groups_of(ids, rng) for _ in range(5))):
            assert decoded(tokenizer, groups) == expected["decoded"], case
        for size, text in enumerate(expected["prefix_decodes"], 1):
            assert decoded(tokenizer, [[i] for i in ids[:size]]) == text, (case, size)
        for start, text in expected["suffix_from_middle"].items():
            assert decoded(tokenizer, [[i] for i in ids[int(start) :]]) == text, (case, start)


@pytest.mark.parametrize("name", ["llama-2", "qwen3", "kimi-k2", "gemma-3", "clip"])
def test_random_ids_as_the_library_decodes_them(name: str, real: Callable[[str], Tokenizer]) -> None:
    """Broken UTF-8, special tokens in the middle, ids without a token: whatever comes, the library's own decoding is the measure."""
    tokenizer = real(name)
    rng = random.Random(7)
    low = min(tokenizer.vocab_size, 600)
    for _ in range(300):
        ids = [rng.randrange(low if rng.random() < 0.7 else tokenizer.vocab_size + 50) for _ in range(rng.randint(1, 24))]
        for skip in (True, False):
            assert decoded(tokenizer, groups_of(ids, rng), skip=skip) == tokenizer.decode(ids, skip_special_tokens=skip), ids


def byte_fallback(*, strip: bool = True) -> HuggingFaceTokenizer:
    """A vocabulary of the SentencePiece kind: 0 <s>, 1 ▁Hello, 2 ▁a, 3 ▁b, 4 and on: the bytes."""
    words = ["<s>", "▁Hello", "▁a", "▁b", *(f"<0x{byte:02X}>" for byte in range(256)), "\ufffd"]
    library = Library(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], byte_fallback=True))
    library.add_special_tokens([AddedToken("<s>", special=True)])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *([decoders.Strip(" ", 1, 0)] if strip else [])]
    library.decoder = decoders.Sequence(steps)
    return HuggingFaceTokenizer(library, name="byte-fallback")


def test_leading_space_is_stripped_once_and_inner_ones_are_kept() -> None:
    tokenizer = byte_fallback()
    assert decoded(tokenizer, [[1], [2]]) == "Hello a"
    assert decoded(tokenizer, [[0], [2], [3]], skip=True) == "a b"
    assert decoded(tokenizer, [[0], [2], [3]]) == "<s> a b"
    assert decoded(byte_fallback(strip=False), [[1]]) == " Hello"


def test_a_continuation_keeps_its_leading_space() -> None:
    decoder = byte_fallback().decoder(prompt_tail=[0, 1])
    assert decoder.feed([2]) == " a"


def test_characters_split_over_tokens_are_held_back() -> None:
    tokenizer = byte_fallback()
    decoder = tokenizer.decoder()
    assert [decoder.feed([4 + byte]) for byte in "🤣".encode()] == ["", "", "", ""]
    assert decoder.feed([2]) == "🤣 a"
    assert decoder.feed([len(tokenizer._library.get_vocab()) - 1]) == "\ufffd"  # a real U+FFFD passes at once


def test_a_broken_character_is_replaced_as_the_full_decode_does() -> None:
    tokenizer = byte_fallback()
    for ids in ([4 + 0xE4, 4 + 0xBD, 2], [4 + 0xF0, 4 + 0x9F], [1, 4 + 0xE4, 0, 4 + 0xBD, 4 + 0xA0]):
        for skip in (True, False):
            assert decoded(tokenizer, [[i] for i in ids], skip=skip) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_kept_special_tokens_are_shown() -> None:
    tokenizer = byte_fallback()
    decoder = tokenizer.decoder(keep=frozenset({0}))
    assert decoder.feed([1, 0, 2]) == "Hello<s> a"


@pytest.mark.parametrize(
    "chain",
    [
        None,
        decoders.BPEDecoder(suffix="</w>"),
        decoders.WordPiece(prefix="##", cleanup=True),
        decoders.WordPiece(prefix="##", cleanup=False),
        decoders.Metaspace(replacement="▁", prepend_scheme="always"),
        decoders.Metaspace(replacement="▁", prepend_scheme="never"),
        decoders.ByteLevel(),
        decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]),
        decoders.Sequence([decoders.Strip("_", 1, 1), decoders.Fuse(), decoders.Strip("a", 2, 0)]),
    ],
)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_every_kind_of_decoder_as_the_library_has_it(chain: decoders.Decoder | None, data: st.DataObject) -> None:
    words = ["a", "##b", "▁c", "d</w>", " .", "_e_", "n't", "Ġ", "Ã", "©", "<0xC3>", "<0xA9>", "<0x41>", "é", "__", "<x>"]
    library = Library(models.WordLevel(vocab={word: i for i, word in enumerate(words)}, unk_token="a"))
    library.add_special_tokens([AddedToken("<x>", special=True)])
    if chain is not None:
        library.decoder = chain
    tokenizer = HuggingFaceTokenizer(library, name="words")
    ids = data.draw(st.lists(st.integers(0, len(words)), min_size=1, max_size=12))
    skip = data.draw(st.booleans())
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert decoded(tokenizer, [[i] for i in ids], skip=skip) == whole
    assert decoded(tokenizer, [ids], skip=skip) == whole


def test_a_decoder_of_an_unknown_kind_is_asked_for_a_window_of_tokens() -> None:
    """A pattern in a decoder is the library's business; what is held back for a split character comes all the same."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.WordLevel(vocab={name: i for i, name in enumerate(alphabet)}, unk_token="a"))
    library.decoder = decoders.Sequence([decoders.Replace(Regex("a+"), "o"), decoders.ByteLevel()])
    tokenizer = HuggingFaceTokenizer(library, name="window")
    assert isinstance(tokenizer.decoder(), WindowDecoder)
    ids = [alphabet.index(BYTE_NAMES[byte]) for byte in "banana 🤣 a split 漢字 ".encode()] * 40
    assert decoded(tokenizer, [[i] for i in ids]) == decoded(tokenizer, [ids]) == tokenizer.decode(ids)
    assert tokenizer.token_bytes(alphabet.index("a")) == b"o"
    broken = [alphabet.index(BYTE_NAMES[byte]) for byte in b"\xf0\x9f"]
    assert decoded(tokenizer, [broken]) == tokenizer.decode(broken) == "\ufffd"


def test_token_bytes() -> None:
    tokenizer = byte_fallback()
    assert tokenizer.token_bytes(1) == b" Hello"
    assert tokenizer.token_bytes(4 + 0xE4) == b"\xe4"
    assert tokenizer.token_bytes(0) == b"<s>"
    assert tokenizer.token_bytes(10_000) == b""


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2", "gemma-3"])
def test_token_bytes_join_to_the_text(name: str, real: Callable[[str], Tokenizer]) -> None:
    tokenizer = real(name)
    text = "Grüße, 世界! 🤣 naïve"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_cost_is_linear_in_the_output(real: Callable[[str], Tokenizer]) -> None:
    """Counted in lookups, not in time: each token is looked at once, however long the output."""
    tokenizer = real("qwen3")
    decoder = tokenizer.decoder()
    looks = 0
    inner = decoder._lookup  # type: ignore[attr-defined]

    def counting(token_id: int) -> bytes | None:
        nonlocal looks
        looks += 1
        return inner(token_id)  # type: ignore[no-any-return]

    decoder._lookup = counting  # type: ignore[attr-defined]
    for _ in range(5000):
        decoder.feed([220])
    assert looks == 5000
