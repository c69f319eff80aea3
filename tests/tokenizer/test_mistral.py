"""SentencePiece and tekken vocabularies: ids and texts as sentencepiece and mistral-common have them, and files that are none."""

import gzip
import json
import random
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from smg.errors import ConfigError
from smg.tokenizer import Tokenizer, load_tokenizer, read_folder

SENTENCEPIECE = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
    "mistral_instruct_tokenizer_241114.model.v7m1",
)
TEKKEN = ("tekken_240718.json.gz", "tekken_240911.json.gz")
# Version of mistral-common's goldens, and its file.
GOLDENS = {"v1": 0, "v2": 1, "v3": 2, "v7": 3, "v3_tekken": 5}
FILES = (*SENTENCEPIECE, *TEKKEN)
ALPHABET = "abc éñ東京🤣\n\t  .,'\"<>▁e the and ing\u200b\x00\r"


@pytest.fixture(scope="module")
def vocabulary(shared: Path) -> Callable[[str], Tokenizer]:
    return lru_cache(len(FILES))(lambda name: load_tokenizer(shared / "fixtures" / "tokenizers" / "mistral-common" / name, fast=False))


@pytest.fixture(scope="module")
def texts(shared: Path) -> list[str]:
    folder = shared / "fixtures" / "tokenizer_vectors"
    lines = (folder / "kitoken" / "mixed_input.txt").read_text().split("\n")
    found = [line.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t") for line in lines]
    for file in (folder / "llama.cpp").glob("*.inp"):
        found += file.read_text().split("\n__ggml_vocab_test__\n")
    source = random.Random(1)
    return found + ["".join(source.choice(ALPHABET) for _ in range(source.randrange(30))) for _ in range(300)]


@pytest.mark.parametrize("name", [*SENTENCEPIECE, "llama-2"])
def test_ids_and_texts_are_sentencepiece_s_own(name: str, shared: Path, vocabulary: Callable[[str], Tokenizer], texts: list[str]) -> None:
    library = pytest.importorskip("sentencepiece")
    file = shared / "fixtures" / "tokenizers" / ("mistral-common" if name != "llama-2" else "llama-2/tokenizer.model")
    file = file if file.is_file() else file / name
    reference = library.SentencePieceProcessor(model_proto=file.read_bytes())
    tokenizer = vocabulary(name) if name != "llama-2" else load_tokenizer(file, fast=False)
    assert tokenizer.vocab_size == reference.vocab_size()
    assert [text for text in texts if tokenizer.encode_ordinary(text) != reference.encode(text)] == []
    assert [text for text in texts if (ids := reference.encode(text)) and tokenizer.decode(ids) != reference.decode(ids)] == []


@pytest.mark.parametrize("name", TEKKEN)
def test_ids_are_mistral_common_s_own(
    name: str, shared: Path, vocabulary: Callable[[str], Tokenizer], texts: list[str], tmp_path: Path
) -> None:
    library = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    file = tmp_path / "tekken.json"
    file.write_bytes(gzip.decompress((shared / "fixtures" / "tokenizers" / "mistral-common" / name).read_bytes()))
    reference, tokenizer = library.Tekkenizer.from_file(file), vocabulary(name)
    assert tokenizer.vocab_size == reference.n_words
    assert [text for text in texts if tokenizer.encode_ordinary(text) != reference.encode(text, bos=False, eos=False)] == []
    assert [text for text in texts if tokenizer.decode(tokenizer.encode_ordinary(text)) != text] == []


def test_kitoken_s_vectors(shared: Path, vocabulary: Callable[[str], Tokenizer]) -> None:
    folder = shared / "fixtures" / "tokenizer_vectors" / "kitoken"
    inputs = (folder / "mixed_input.txt").read_text().split("\n")
    tokenizer, count = vocabulary("tekken_240911.json.gz"), 0
    for text, line in zip(inputs, (folder / "tekken__mixed_tokens_mistral2410.txt").read_text().split("\n"), strict=False):
        if line:
            count += 1
            plain = text.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")
            assert tokenizer.encode(plain) == [int(number) for number in line.replace(",", " ").split()]
    assert count >= 120


@pytest.mark.parametrize("version", GOLDENS)
def test_whole_prompts_of_mistral_common(version: str, shared: Path, vocabulary: Callable[[str], Tokenizer]) -> None:
    """Its prompts, shown as text and encoded again: control tokens where it put them, and the same ids between them."""
    goldens = json.loads((shared / "fixtures" / "chat_goldens" / "mistral_common.json").read_text())["goldens"][version]
    tokenizer, count = vocabulary(FILES[GOLDENS[version]]), 0
    for golden in goldens.values():
        if "token_ids" in golden:
            count += 1
            ids = golden["token_ids"]
            joined: list[int] = []
            for special, part in runs(ids, tokenizer):
                text = tokenizer.decode(part, skip_special_tokens=False)
                joined += tokenizer.encode(text) if special else tokenizer.encode_ordinary(text)
            assert joined == ids
    assert count >= 18


def runs(ids: list[int], tokenizer: Tokenizer) -> list[tuple[bool, list[int]]]:
    """The ids in runs of control tokens, each alone, and of others."""
    parts: list[tuple[bool, list[int]]] = []
    for token_id in ids:
        special = token_id in tokenizer.special_ids
        if parts and not special and not parts[-1][0]:
            parts[-1][1].append(token_id)
        else:
            parts.append((special, [token_id]))
    return parts


@pytest.mark.parametrize("name", FILES)
def test_control_tokens(name: str, vocabulary: Callable[[str], Tokenizer]) -> None:
    """Written in a prompt they are themselves; in a client's words they are not; BOS comes once, when asked for."""
    tokenizer = vocabulary(name)
    for token in ("<s>", "</s>", *(("[INST]", "[/INST]", "[TOOL_CALLS]") if "v1" not in name else ())):
        number = tokenizer.token_id(token)
        assert number in tokenizer.special_ids
        assert tokenizer.encode(token) == [number]
        assert not tokenizer.special_ids & set(tokenizer.encode_ordinary(f"{token} x {token}"))
        assert not tokenizer.special_ids & set(tokenizer.encode_ordinary(token))
    plain = tokenizer.encode("x")
    assert tokenizer.encode("x", add_special_tokens=True) == [tokenizer.token_id("<s>"), *plain]


@pytest.mark.parametrize("name", FILES)
def test_a_stream_of_tokens_gives_the_text(name: str, vocabulary: Callable[[str], Tokenizer], texts: list[str]) -> None:
    tokenizer = vocabulary(name)
    for text in texts[::7]:
        ids = tokenizer.encode_ordinary(text)
        decoder = tokenizer.decoder()
        assert "".join([*(decoder.feed([token_id]) for token_id in ids), decoder.flush()]) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("name", "saved"), [(SENTENCEPIECE[2], "tokenizer.model"), (SENTENCEPIECE[2], "tokenizer.model.v3"), (TEKKEN[0], "tekken.json.gz")]
)
def test_a_folder_of_mistral_s_own_form(name: str, saved: str, shared: Path, tmp_path: Path) -> None:
    (tmp_path / saved).write_bytes((shared / "fixtures" / "tokenizers" / "mistral-common" / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}[INST]{{ messages[0].content }}[/INST]")
    folder, tokenizer = read_folder(tmp_path), load_tokenizer(tmp_path, fast=False)
    assert (folder.bos_token, folder.eos_token) == ("<s>", "</s>")
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.encode("<s>[INST]") == [1, 3]


def test_a_folder_s_config_says_more_than_its_vocabulary(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes((shared / "fixtures" / "tokenizers" / "mistral-common" / SENTENCEPIECE[2]).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "[/INST]"}')
    assert read_folder(tmp_path).eos_token == "[/INST]"


def field(number: int, value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return bytes([number << 3 | 2]) + varint(len(value)) + value
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def small_model(*, kind: int = 2, normalizer: bytes = field(4, 0), pieces: tuple[tuple[str, float, int], ...] = ()) -> bytes:
    given = pieces or (
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("a", -2.0, 1),
        ("▁", -1.0, 1),
        ("▁a", 0.0, 1),
        ("<user>", 0.0, 4),
    )
    listed = b"".join(field(1, field(1, text.encode()) + field(2, score) + field(3, number)) for text, score, number in given)
    return listed + field(2, field(3, kind)) + field(3, normalizer)


def load(tmp_path: Path, data: bytes, name: str = "tokenizer.model") -> Tokenizer:
    (tmp_path / name).write_bytes(data)
    return load_tokenizer(tmp_path / name, fast=False)


def test_a_small_sentencepiece_vocabulary(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, small_model())
    assert tokenizer.encode("a a") == [5, 5]
    assert tokenizer.encode("a<user>a</s>b") == [5, 6, 5, 2, 4, 0]
    assert load(tmp_path, small_model(normalizer=field(4, 0) + field(3, 0))).encode("a a") == [3, 5]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "without pieces"),
        (b"\xff" * 40, "neither a tiktoken nor a SentencePiece"),
        (small_model()[:-3], "neither"),
        (small_model(kind=1), "of the BPE kind"),
        (small_model(normalizer=field(4, 0) + field(2, b"rules")), "changes text"),
        (small_model(normalizer=b""), "changes text"),
        (small_model(pieces=(("a", 0.0, 1), ("a", 0.0, 1))), "twice"),
        (small_model(pieces=(("a" * 2000, 0.0, 1),)), "makes no sense"),
        (b"\x0a\xff\xff\xff\xff\x0f", "neither"),
    ],
)
def test_files_that_are_no_sentencepiece_vocabulary(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, data)


def tekken(**changes: object) -> dict[str, object]:
    import base64

    words = [bytes([byte]) for byte in range(256)] + [b"ab", b"never used"]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for rank, word in enumerate(words)]
    config = {"pattern": r"\w+|\W", "default_vocab_size": 267, "default_num_special_tokens": 10, "num_vocab_tokens": 258, "version": "v3"}
    return {"config": config, "vocab": vocab, **changes}


def test_a_small_tekken_vocabulary(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, json.dumps(tekken()).encode(), "tekken.json")
    assert tokenizer.encode("ab[INST]b") == [266, 3, 10 + ord("b")]
    assert tokenizer.vocab_size == 267
    named = [{"rank": 0, "token_str": "<unk>", "is_control": True}, {"rank": 7, "token_str": "[THINK]", "is_control": True}]
    assert load(tmp_path, json.dumps(tekken(special_tokens=named)).encode(), "tekken.json").encode("[THINK]<SPECIAL_3>") == [7, 3]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {}}, "not a tekken vocabulary"),
        ({"vocab": 3}, "not a tekken vocabulary"),
        ({"vocab": [{"rank": 0, "token_bytes": "!"}]}, "no token"),
        ({"vocab": [{"rank": 0, "token_bytes": "AA=="}]}, "ranks are not"),
        ({"special_tokens": [{"rank": 1, "token_str": "x"}, {"rank": 2, "token_str": "x"}]}, "named twice"),
        ({"config": {"pattern": "x", "default_vocab_size": 5, "default_num_special_tokens": 10}}, "make no sense"),
        ({"config": {"pattern": "(", "default_vocab_size": 267, "default_num_special_tokens": 10}}, "not a tekken vocabulary"),
        ({"config": {"pattern": "x", "default_vocab_size": 1 << 40, "default_num_special_tokens": 10}}, "make no sense"),
    ],
)
def test_files_that_are_no_tekken_vocabulary(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, json.dumps(tekken(**changes)).encode(), "tekken.json")
