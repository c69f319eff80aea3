"""What is kept of a vocabulary between starts, and that a tokenizer without the library behaves as the library does."""

import random
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from smg.tokenizer import Tokenizer, load, load_tokenizer
from smg.tokenizer.facts import FactsFile
from smg.tokenizer.fast import awkward_texts
from smg.tokenizer.folder import read_folder
from smg.tokenizer.literal import LiteralEncoder

MODEL = Path(__file__).parents[2] / "smg" / "sim" / "data" / "model"


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes loading the library a failure."""

    def refuse(*_: object) -> Library:
        raise AssertionError("the library was loaded")

    monkeypatch.setattr(load, "_library", refuse)


def encoded(tokenizer: Tokenizer) -> list[object]:
    texts = list(awkward_texts(["<|im_start|>", "<think>"]))
    ids = [tokenizer.encode(text) for text in texts]
    return [
        ids,
        [tokenizer.encode(text, add_special_tokens=True) for text in texts],
        [tokenizer.encode_ordinary(text) for text in texts],
        [tokenizer.encode_literals(text, literals=((1, len(text) // 2),)) for text in texts if len(text) > 4],
        [tokenizer.decode(each) for each in ids],
        list(tokenizer.pieces()),
        [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)],
        (tokenizer.vocab_size, tokenizer.longest_token, tokenizer.special_ids, tokenizer.eos_token_ids, tokenizer.byte_level),
        [tokenizer.token_id(name) for name in ("<|im_start|>", "a", "no such token")],
    ]


def test_the_second_start_needs_no_library_and_says_the_same(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plain = encoded(load_tokenizer(MODEL, fast=False))
    assert encoded(load_tokenizer(MODEL, state=tmp_path)) == plain
    assert len(list(tmp_path.iterdir())) == 1
    request.getfixturevalue("no_library")
    assert encoded(load_tokenizer(MODEL, state=tmp_path, cache_bytes=1 << 20)) == plain


def test_another_vocabulary_is_looked_at_afresh(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    load_tokenizer(folder, state=tmp_path / "state")
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes() + b"\n")
    load_tokenizer(folder, state=tmp_path / "state")
    config = folder / "tokenizer_config.json"
    config.write_text('{"add_bos_token": true}')
    load_tokenizer(folder, state=tmp_path / "state")
    assert len(list((tmp_path / "state").iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"vocab_size": "many"}', b"\xff"])
def test_a_broken_file_is_written_anew(content: bytes, tmp_path: Path) -> None:
    load_tokenizer(MODEL, state=tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.write_bytes(content)
    load_tokenizer(MODEL, state=tmp_path)
    assert file.read_bytes() == good


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    assert load_tokenizer(MODEL, state=place).encode("a")
    assert FactsFile(place, vocabulary=b"", model=read_folder(MODEL)).read() is None


@pytest.mark.parametrize("name", ["qwen3", "llama-3.1"])
def test_look_alikes_are_encoded_quickly_and_rightly(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "fixtures" / "tokenizers" / name)
    quick = tokenizer._literals()  # type: ignore[attr-defined]
    slow = LiteralEncoder(tokenizer._library)  # type: ignore[attr-defined]
    assert not isinstance(quick, LiteralEncoder)
    added = [token.content for token in tokenizer._library.get_added_tokens_decoder().values()]  # type: ignore[attr-defined]
    rng = random.Random(name)
    for _ in range(300):
        parts = rng.choices([*rng.sample(added, 5), "word", " ", "\n", "é", "<", "|>", "你好", "  x"], k=rng.randint(1, 25))
        text = "".join(parts)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(2 * rng.randint(0, 3)))
        spans = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True) if a < b]
        assert quick.encode(text, literals=spans) == slow.encode(text, literals=spans), (text, spans)


def test_long_texts_start_no_threads() -> None:
    """The quick encoder's own helpers would spin beside the event loop."""
    load_tokenizer(MODEL).encode("some words of a long text " * 20_000)
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert not [name for name in names if name.startswith("fastokens")]
