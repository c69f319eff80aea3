"""Native detokenizing against its specification, step by step, over every shared vocabulary that native code decodes."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Library

from smg._ext import Vocabulary
from smg.pipeline.models import _vocabulary
from smg.tokenizer import Tokenizer
from smg.tokenizer.huggingface import HuggingFaceTokenizer
from tests.tokenizer.test_detokenize import NAMES, groups_of

TEXT = {"gemma-2", "gemma-3", "llama-2", "mistral-7b-v0.1"}


def steps(tokenizer: Tokenizer, groups: Sequence[Sequence[int]], *, skip: bool) -> list[str]:
    decoder = tokenizer.decoder(skip_special_tokens=skip)
    return [*map(decoder.feed, groups), decoder.flush()]


@pytest.mark.parametrize("name", NAMES)
def test_goldens(name: str, shared: Path, real: Callable[[str], Tokenizer]) -> None:
    tokenizer = real(name)
    vocabulary = _vocabulary(tokenizer)
    assert vocabulary is not None
    assert (tokenizer.joined_text is not None) == (name in TEXT)
    golden = json.loads((shared / "fixtures" / "detok_goldens" / f"{name}.json").read_text())
    rng = random.Random(name)
    for case, expected in golden["cases"].items():
        ids = expected["ids"]
        for groups in ([[i] for i in ids], [ids], groups_of(ids, rng)):
            told = vocabulary.decode(*groups)
            assert "".join(told) == expected["decoded"], case
            assert told == steps(tokenizer, groups, skip=False), case
        for size, text in enumerate(expected["prefix_decodes"], 1):
            assert "".join(vocabulary.decode(ids[:size])) == text, (case, size)
        for start, text in expected["suffix_from_middle"].items():
            assert "".join(vocabulary.decode(ids[int(start) :])) == text, (case, start)
    low = min(tokenizer.vocab_size, 600)
    for _ in range(200):
        ids = [rng.randrange(low if rng.random() < 0.7 else tokenizer.vocab_size + 50) for _ in range(rng.randint(1, 24))]
        for skip in (True, False):
            groups = groups_of(ids, rng)
            assert vocabulary.decode(*groups, skip_special=skip) == steps(tokenizer, groups, skip=skip), (ids, skip)


BYTES = [f"<0x{byte:02X}>" for byte in (0x20, 0x41, 0xC3, 0xA9, 0xE4, 0xF0, 0x9F)]
WORDS = ["<s>", "\u2581a", "\u2581", "\u2581\u2581b", "c", "", "\ufffd", "漢", *BYTES]


@given(st.lists(st.lists(st.integers(0, len(WORDS) + 1), max_size=5), max_size=8), st.integers(0, 3), st.booleans())
def test_text_pieces_and_runs_of_bytes(groups: list[list[int]], strips: int, skip: bool) -> None:
    library = Library(models.BPE(vocab={word: i for i, word in enumerate(WORDS)}, merges=[], byte_fallback=True))
    library.add_special_tokens([AddedToken("<s>", special=True)])
    tail = [decoders.Strip(" ", strips, 0)] if strips else []
    library.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    tokenizer = HuggingFaceTokenizer(library, name="pieces")
    vocabulary = _vocabulary(tokenizer)
    assert vocabulary is not None
    assert vocabulary.decode(*groups, skip_special=skip) == steps(tokenizer, groups, skip=skip)


def test_what_native_code_cannot_decode_has_no_native_vocabulary() -> None:
    library = Library(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    other = decoders.Sequence([decoders.Fuse(), decoders.Strip("é", 1, 0)])
    for decoder in (decoders.Metaspace(), decoders.WordPiece(), decoders.BPEDecoder(), other):
        library.decoder = decoder
        assert _vocabulary(HuggingFaceTokenizer(library, name="words")) is None


def test_a_vocabulary_of_bytes_takes_ids_without_a_token() -> None:
    assert Vocabulary([b"a", None, b"\xc3"], [2]).decode([0, 1, 2, 7]) == ["a", "\ufffd"]
