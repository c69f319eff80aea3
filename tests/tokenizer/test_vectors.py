"""Ids against those that other implementations found: llama.cpp's and kitoken's vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smg.tokenizer import Tokenizer, load, load_tokenizer
from smg.tokenizer.native import NativeEncoder, open_native

LLAMA_CPP = {
    "command-r": "command-r",
    "gemma-4": "gemma-4",
    "gpt-2": "gpt2",
    "llama-bpe": "llama-3.1",
    "llama-spm": "llama-2",
    "phi-3": "phi-3",
    "qwen2": "qwen2.5",
    "qwen35": "qwen3.5-pretok",
}
KITOKEN = {
    "tiktoken__mixed_tokens_cl100k_base": "cl100k_base",
    "tiktoken__mixed_tokens_kimi_k2": "kimi-k2",
    "tiktoken__mixed_tokens_llama4": "llama-4-tiktoken",
    "tiktoken__mixed_tokens_o200k_base": "o200k_base",
    "tokenizers__mixed_tokens_clip_base": "clip",
    "tokenizers__mixed_tokens_gemma3": "gemma-3",
    "tokenizers__mixed_tokens_gemma4": "gemma-4",
    "tokenizers__mixed_tokens_gpt2": "gpt2",
    "tokenizers__mixed_tokens_gpt_oss": "gpt-oss",
    "tokenizers__mixed_tokens_llama2": "llama-2",
    "tokenizers__mixed_tokens_llama32": "llama-3.2",
    "tokenizers__mixed_tokens_llama4": "llama-4-tiktoken",
    "tokenizers__mixed_tokens_mistral01": "mistral-7b-v0.1",
    "tokenizers__mixed_tokens_mistral03": "mistral-7b-v0.3",
    "tokenizers__mixed_tokens_r1": "deepseek-v3",
}
# Expected ids without a vocabulary of that kind among the fixtures, or with one that is not read yet (tekken).
WITHOUT = {
    "tekken__mixed_tokens_mistral2410",
    "tokenizers__mixed_tokens_glm46",
    "tokenizers__mixed_tokens_mistral2410",
    "tokenizers__mixed_tokens_qwen35",
}


def unescaped(line: str) -> str:
    return line.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")


def test_every_vector_file_has_its_place(shared: Path) -> None:
    kitoken = {file.stem for file in (shared / "fixtures" / "tokenizer_vectors" / "kitoken").glob("*mixed_tokens*.txt")}
    assert kitoken == {*KITOKEN, *WITHOUT}


@pytest.mark.parametrize(("vector", "name"), LLAMA_CPP.items())
def test_llama_cpp(vector: str, name: str, shared: Path, real: Callable[[str], Tokenizer]) -> None:
    folder = shared / "fixtures" / "tokenizer_vectors" / "llama.cpp"
    texts = (folder / f"ggml-vocab-{vector}.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    lines = (folder / f"ggml-vocab-{vector}.gguf.out").read_text().split("\n")
    tokenizer = real(name)
    wrong = [text for text, line in zip(texts, lines, strict=False) if tokenizer.encode(text) != [int(number) for number in line.split()]]
    assert not wrong
    assert len(texts) >= 46


@pytest.mark.parametrize(("vector", "name"), KITOKEN.items())
def test_kitoken(vector: str, name: str, shared: Path, real: Callable[[str], Tokenizer]) -> None:
    folder = shared / "fixtures" / "tokenizer_vectors" / "kitoken"
    texts = (folder / "mixed_input.txt").read_text().split("\n")
    lines = (folder / f"{vector}.txt").read_text().split("\n")
    tokenizer = real(name)
    wrong = []
    for text, line in zip(texts, lines, strict=False):
        if line and tokenizer.encode(unescaped(text)) != [int(number) for number in line.replace(",", " ").split()]:
            wrong.append(text)
    assert not wrong, len(wrong)
    assert sum(bool(line) for line in lines) >= 120


@pytest.mark.parametrize(
    ("vector", "name"),
    [
        ("tokenizers__mixed_tokens_llama32", "llama-3.2"),
        ("tokenizers__mixed_tokens_r1", "deepseek-v3"),
        ("tokenizers__mixed_tokens_llama2", "llama-2"),
    ],
)
def test_kitoken_with_the_quick_encoder(vector: str, name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "fixtures" / "tokenizers" / name)
    assert tokenizer._fast is not None  # type: ignore[attr-defined]
    folder = shared / "fixtures" / "tokenizer_vectors" / "kitoken"
    texts = (folder / "mixed_input.txt").read_text().split("\n")
    for text, line in zip(texts, (folder / f"{vector}.txt").read_text().split("\n"), strict=False):
        if line:
            assert tokenizer.encode(unescaped(text)) == [int(number) for number in line.replace(",", " ").split()]


def test_a_vocabulary_that_the_quick_encoder_does_not_know_is_encoded_without_it(shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "fixtures" / "tokenizers" / "mistral-7b-v0.1")
    assert tokenizer._fast is None  # type: ignore[attr-defined]
    assert tokenizer.decode(tokenizer.encode("Grüße 🤣")) == "Grüße 🤣"


def test_a_quick_encoder_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """One wrong id on one awkward text is enough, and so is a text that it cannot take."""
    right = open_native
    for answer in (lambda text: [1], lambda text: 1 / 0):

        def wrong(vocabulary: bytes, answer: Any = answer) -> NativeEncoder | None:
            encoder = right(vocabulary)
            assert encoder is not None
            encoder.encode = answer
            return encoder

        monkeypatch.setattr(load, "open_native", wrong)
        assert load_tokenizer(shared / "fixtures" / "tokenizers" / "gpt2")._fast is None  # type: ignore[attr-defined]
