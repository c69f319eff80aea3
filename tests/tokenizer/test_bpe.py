"""The quick encoder against the reference library: every kind of character in several contexts, random texts, added tokens, threads."""

import random
import threading
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from smg._ext import Marks, Splits, Table
from smg.tokenizer import load
from smg.tokenizer.characters import characters, entries
from smg.tokenizer.fast import WORDS, awkward_texts
from smg.tokenizer.folder import read_folder
from smg.tokenizer.native import NativeEncoder, compose, open_native

Pair = tuple[NativeEncoder, Library]

TAKEN = (
    *("command-r", "deepseek-v3", "deepseek-v4", "gpt-oss", "gpt2", "kimi-k2", "llama-3.1", "llama-3.2", "llama-4-tiktoken", "qwen2.5"),
    *("qwen3", "qwen3.5-pretok", "smollm2"),
)
REFUSED = ("clip",)


@lru_cache(1)
def opened(folder: Path) -> Pair:
    """The library of a folder and the quick encoder of the same file."""
    library = load._library(load._vocabulary(folder), read_folder(folder))
    encoder = open_native(library.to_str().encode())
    assert encoder is not None
    return encoder, library


@pytest.fixture
def pair(request: pytest.FixtureRequest, shared: Path) -> Pair:
    return opened(shared / "fixtures" / "tokenizers" / request.param)


def agree(pair: Pair, texts: list[str]) -> None:
    encoder, library = pair
    expected = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
    wrong = [text for text, ids in zip(texts, expected, strict=True) if encoder.encode(text) != ids]
    assert not wrong, wrong[:3]


def edges() -> list[str]:
    """The first and the last character of each run of characters of one kind, and those beside them."""
    codes: set[int] = set()
    begin = 0
    for _, group in groupby(entries()):
        end = begin + sum(1 for _ in group)
        codes.update((begin, begin + 1, end - 1))
        begin = end
    return [chr(code) for code in sorted(codes) if not 0xD800 <= code < 0xE000]


@pytest.mark.parametrize("pair", TAKEN, indirect=True)
def test_awkward_texts_and_characters_of_every_kind(pair: Pair) -> None:
    _, library = pair
    added = [token.content for token in library.get_added_tokens_decoder().values()]
    agree(pair, list(awkward_texts(added)))
    known = edges()
    contexts = ("a{0}b\n1 {0}2", " {0}'{0}\u0301{0}", "'{0} \r\n{0}\t{0}A", "{0}")
    blocks = [known[i : i + 300] for i in range(0, len(known), 300)]
    agree(pair, ["".join(context.format(character) for character in block) for context in contexts for block in blocks])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name: str, shared: Path) -> None:
    folder = shared / "fixtures" / "tokenizers" / name
    library = load._library(load._vocabulary(folder), read_folder(folder))
    assert open_native(library.to_str().encode()) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"model": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_vocabulary_is_refused(content: bytes) -> None:
    assert open_native(content) is None


PARTS = st.sampled_from([*WORDS, " ", "\n", "'s", "\u0301", "é", "<|im_end|>", "<｜User｜>", "<think>", "你好", "\u1ac1\u0323"])
TEXTS = st.lists(st.one_of(PARTS, st.text(max_size=12)), max_size=8).map("".join)


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3", "gpt-oss", "kimi-k2"])
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
def test_random_texts(name: str, shared: Path, texts: list[str]) -> None:
    agree(opened(shared / "fixtures" / "tokenizers" / name), texts)


def small(normalizer: normalizers.Normalizer | None = None, **model: object) -> Library:
    """A vocabulary of all bytes and a few words, in the byte alphabet."""
    words = ["ab", "abc", "bc", "Ġa", "aa", "aaaa"]
    vocabulary = {name: i for i, name in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *words])}
    merges = [("b", "c"), ("a", "b"), ("a", "bc"), ("Ġ", "a"), ("a", "a"), ("aa", "aa")]
    library = Library(models.BPE(vocab=vocabulary, merges=merges, **model))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        library.normalizer = normalizer
    return library


def both(library: Library) -> Pair:
    encoder = open_native(library.to_str().encode())
    assert encoder is not None
    return encoder, library


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.text("<ab é\u0301>\u3000\n", min_size=1, max_size=4), st.booleans(), st.booleans(), st.booleans()),
        max_size=6,
        unique_by=lambda token: token[0],
    ),
    st.booleans(),
    st.lists(st.text("<ab é\u0301>\u3000\n", max_size=30), min_size=1, max_size=20),
)
def test_added_tokens(tokens: list[tuple[str, bool, bool, bool]], composes: bool, texts: list[str]) -> None:
    """Those that overlap, begin alike, are composed first or take spaces along."""
    library = small(normalizers.NFC() if composes else None)
    library.add_tokens([AddedToken(content, lstrip=left, rstrip=right, normalized=late) for content, left, right, late in tokens])
    strips = any(left or right for _, left, right, _ in tokens)
    encoder = open_native(library.to_str().encode())
    if encoder is None:
        assert strips
        assert any(content.strip() != content for content, *_ in tokens)
        return
    agree((encoder, library), texts)


def test_a_flag_that_is_not_known_is_refused() -> None:
    library = small()
    library.add_tokens([AddedToken("ab", single_word=True)])
    assert open_native(library.to_str().encode()) is None


@given(st.text("ab c", max_size=400))
def test_merges(text: str) -> None:
    agree(both(small()), [text])
    agree(both(small(ignore_merges=True)), [text])


def test_cost_is_linear_in_the_text() -> None:
    """Counted in steps: a text without spaces is one word, and must not cost the square of its length."""
    encoder, _ = both(small())
    steps = encoder._native.count_steps
    for unit in ("a", "abc", "ab" * 50 + "c", " ", "<"):
        few, many = steps(unit * (10_000 // len(unit))), steps(unit * (1_000_000 // len(unit)))
        assert many < 200 * few + 1000, unit
        assert many < 40 * 1_000_000


def test_threads_may_encode_at_once(shared: Path) -> None:
    encoder, library = opened(shared / "fixtures" / "tokenizers" / "gpt2")
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefgh  éß你\n", k=size)) for size in (50, 500, 40_000) for _ in range(4)]
    expected = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
    wrong: list[int] = []

    def work(start: int) -> None:
        for i in range(60):
            at = (start + i) % len(texts)
            if encoder.encode(texts[at]) != expected[at]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_packed_ids_and_segments(shared: Path) -> None:
    encoder, _ = opened(shared / "fixtures" / "tokenizers" / "gpt2")
    text = "Hello<|endoftext|> world 🤣"
    assert array("I", encoder.encode_packed(text)).tolist() == encoder.encode(text)
    segments = [("Hello", True), ("<|endoftext|>", False), (" world", False)]
    ids = encoder.encode_segments(segments)
    assert ids[:1] == encoder.encode("Hello")
    assert 50256 not in ids
    assert array("I", encoder.encode_segments_packed(segments)).tolist() == ids
    with pytest.raises(UnicodeEncodeError):
        encoder.encode("\ud800")


@pytest.mark.parametrize("pair", ["qwen3"], indirect=True)
def test_pieces_are_remembered_whole(pair: Pair) -> None:
    encoder, _ = pair
    encoder.remember(1 << 20)
    long = "Grüße e\u0301 " * 200
    texts = [long, f"<|im_start|>{long}<|im_end|>", f"{long}x<|im_end|>{long}"]
    agree(pair, [*texts, *texts, *texts])
    marked, plain = [(long + "<|im_end|>", True)], [(long + "<|im_end|>", False)]
    assert encoder.encode_segments(marked) == encoder.encode_segments(marked) != encoder.encode_segments(plain)
    assert encoder.encode_segments(plain) == encoder.encode_segments(plain)
    counts = encoder.cache_counts()
    assert counts is not None
    assert counts.hits >= 7


@given(st.text(st.characters(min_codepoint=0x300, codec="utf-8"), max_size=20))
def test_composing(text: str) -> None:
    assert compose(text) == normalizers.NFC().normalize_str(text)


def json_names() -> Iterator[tuple[bytes, bytes]]:
    """Broken vocabularies and merges."""
    good = msgspec.json.encode({chr(0x100 + i) if i < 33 else chr(i): i for i in range(127)})
    for vocabulary in (
        b"",
        b"[]",
        b"{",
        b'{"a"}',
        b'{"a":}',
        b'{"a":-1}',
        b'{"a":1,}',
        b'{"a":1 "b":2}',
        b'{"a":1,"b":1}',
        b'{"a":9999999}',
    ):
        yield vocabulary, b"[]"
    for name in (b'"\\', b'"\\x"', b'"\\u12"', b'"\\ud800"', b'"\\ud800\\u0041"', b'"\xff"', b'"\xed\xa0\x80"', b'"' + b"a" * 5000 + b'"'):
        yield b"{" + name + b":1}", b"[]"
    for merges in (b"", b"{}", b"[", b'["a"]', b'["a b"', b'["a zz"]', b'[["a"]]', b'[["a","b","c"]]', b'[["a","b"],]', b'[" a"]'):
        yield good, merges


@pytest.mark.parametrize(("vocabulary", "merges"), list(json_names()))
def test_broken_json_is_refused(vocabulary: bytes, merges: bytes) -> None:
    with pytest.raises(ValueError, match="not a vocabulary"):
        Table(vocabulary, merges, drops=True)


def test_names_are_read_as_json_has_them() -> None:
    table = Table(b'{ "\\u0120a" : 1 ,"\\"" :0,"\\ud83d\\ude00x":5}', b" [ ] ", drops=True)
    assert [table.token(i) for i in range(7)] == [b'"', b" a", None, None, None, "😀x", None]
    assert (len(table), table.find(b" a"), table.find(b"x"), table.find(b"")) == (6, 1, None, None)


def test_limits() -> None:
    with pytest.raises(ValueError, match="too many"):
        Splits(characters(), [[]] * 5)
    with pytest.raises(ValueError, match="empty or too long"):
        Marks([("", 1, False, False)])
    assert len(Marks([("a", 1, False, False)])) == 1


def test_words_of_a_step(shared: Path) -> None:
    encoder, _ = opened(shared / "fixtures" / "tokenizers" / "gpt2")
    cuts: Callable[[str], list[str]] = encoder._native.splits.cuts
    assert cuts("I'll go  to\n\n 42x!") == ["I", "'ll", " go", " ", " to", "\n\n", " 42", "x", "!"]
