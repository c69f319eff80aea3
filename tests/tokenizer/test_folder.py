"""Model folders: what is read from them, and that nothing broken or hostile in them does more than raise ConfigError."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from smg.errors import ConfigError
from smg.tokenizer import load_tokenizer, read_folder
from smg.tokenizer.files import read_bytes


def folder(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        name = name.replace("__", ".")
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_an_empty_folder(tmp_path: Path) -> None:
    empty = read_folder(tmp_path)
    assert empty.chat_templates == {}
    assert empty.eos_token_ids == ()
    assert empty.context_length == 0
    with pytest.raises(ConfigError, match="no such folder"):
        read_folder(tmp_path / "nowhere")


def test_identity_and_defaults(tmp_path: Path) -> None:
    read = read_folder(
        folder(
            tmp_path,
            config__json={"architectures": ["QwenForCausalLM"], "model_type": "qwen", "max_position_embeddings": 4096},
            generation_config__json={"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05},
            tokenizer_config__json={"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None},
        )
    )
    assert read.architectures == ("QwenForCausalLM",)
    assert (read.model_type, read.context_length) == ("qwen", 4096)
    assert (read.bos_token, read.eos_token) == ("<s>", "</s>")
    assert read.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    sampling = read.sampling_defaults
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.95, 20, 0.0)
    assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1.05, UNSET)


@pytest.mark.parametrize("value", ["hot", -1, 1e9, True, None, [0.5], {"a": 1}])
def test_sampling_out_of_range_is_left_out(tmp_path: Path, value: Any) -> None:
    read = read_folder(folder(tmp_path, generation_config__json={"temperature": value, "top_k": value}))
    assert read.sampling_defaults.temperature is UNSET
    assert read.sampling_defaults.top_k is UNSET or value == 1e9


def test_b65_eos_is_the_union_of_all_sources(tmp_path: Path) -> None:
    read = read_folder(
        folder(
            tmp_path,
            config__json={"eos_token_id": 11, "text_config": {"eos_token_id": [12]}},
            generation_config__json={"eos_token_id": [7, 11, True, -4, "x"]},
            tokenizer_config__json={"eos_token": "</s>", "added_tokens_decoder": {"9": {"content": "</s>", "special": True}}},
        )
    )
    assert read.eos_token_ids == (7, 9, 11, 12)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_ctx": 1024, "max_position_embeddings": 2048}, 1024),
        ({"text_config": {"max_position_embeddings": 8192}}, 8192),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": "many"}, 0),
        ({"max_position_embeddings": -5}, 0),
    ],
)
def test_context_length(tmp_path: Path, config: dict[str, Any], length: int) -> None:
    assert read_folder(folder(tmp_path, config__json=config, tokenizer_config__json={"model_max_length": 1e30})).context_length == length


def test_templates_from_every_place(tmp_path: Path) -> None:
    folder(
        tmp_path,
        tokenizer_config__json={"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, {"bad": 1}]},
    )
    assert read_folder(tmp_path).chat_templates == {"default": "D", "tool_use": "T"}
    folder(tmp_path, chat_template__json={"chat_template": "J"})
    assert read_folder(tmp_path).chat_templates == {"default": "J", "tool_use": "T"}
    folder(tmp_path, other__jinja="O")
    assert read_folder(tmp_path).chat_templates["default"] == "O"
    folder(tmp_path, chat_template__jinja="F")
    assert read_folder(tmp_path).chat_templates["default"] == "F"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert read_folder(tmp_path).chat_templates == {"default": "F", "tool_use": "T", "rag": "R"}


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "\x00", "[" * 200_000, '{"a": ' * 100_000])
@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "chat_template.json"],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        read_folder(tmp_path)


def test_odd_types_do_no_harm(tmp_path: Path) -> None:
    read = read_folder(
        folder(
            tmp_path,
            config__json={"architectures": "x", "model_type": 3, "text_config": [], "eos_token_id": {}, "rope_scaling": 1, "n_ctx": []},
            tokenizer_config__json={
                "chat_template": 5,
                "added_tokens_decoder": {"x": 1, "3": 2, "4": {"content": ["x"]}},
                "bos_token": {"content": 1},
            },
        )
    )
    assert read.architectures == ()
    assert read.added_tokens == ()
    assert read.bos_token is None


def test_sizes_are_capped_packed_or_not(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b"0" * (4 << 20)))
    with pytest.raises(ConfigError, match="longer than"):
        read_bytes(bomb, limit=1 << 20)
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bytes(tmp_path / "torn.json.gz", limit=1 << 20)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", b'{"version": "1.0"}', "not a tokenizer"),
        ("tokenizer.json", b"{}", "not a tokenizer"),
        ("tokenizer.model", b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00", "neither a tiktoken nor a SentencePiece"),
        ("tekken.json", b"{}", "not a tekken vocabulary"),
        ("tiktoken.model", b"YQ== 0\nYg== 1\n", "no known family"),
        ("tiktoken.model", b"YQ== 0\nbroken line here\n", "line 2"),
        ("tiktoken.model", b"YQ== 0\nYg== 7\n", "ranks are not"),
        ("other.txt", b"x", "no tokenizer found"),
    ],
)
def test_vocabularies_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        load_tokenizer(tmp_path)


def test_a_small_tiktoken_vocabulary(tmp_path: Path) -> None:
    """Merging by rank, whole pieces first, special tokens with gaps between their numbers."""
    import base64

    words = [bytes([byte]) for byte in range(256)] + [b"ab", b"bc", b"abc", b" ab"]
    (tmp_path / "tiktoken.model").write_text("".join(f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(words)))
    folder(tmp_path, special_tokens__json={"pattern": r" ?\w+|\W", "special_tokens": {"<|end|>": 262}, "eos_token": "<|end|>"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("abc ab abbc<|end|>") == [258, 259, 259, 257, 262]
    assert tokenizer.encode_ordinary("<|end|>") == list(b"<|end|>")
    assert tokenizer.eos_token_ids == (262,)
    assert tokenizer.vocab_size == 263
    assert tokenizer.decode([258, 262]) == "abc"


def test_bos_follows_the_configuration_where_transformers_does(shared: Path) -> None:
    fixtures = shared / "fixtures" / "tokenizers"
    assert load_tokenizer(fixtures / "deepseek-v3", fast=False).encode("a", add_special_tokens=True)[0] == 0
    assert load_tokenizer(fixtures / "llama-2", fast=False).encode("a", add_special_tokens=True)[0] == 1
    without = load_tokenizer(fixtures / "smollm2", fast=False)
    assert without.encode("a", add_special_tokens=True) == without.encode("a")
