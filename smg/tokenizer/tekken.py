"""Mistral's tekken vocabularies: a JSON file of token bytes and ranks, with the split pattern. Out: a library tokenizer of the same ids.

The first ids are control tokens, then come the ranks, as many as the file says are in use. Called by `load.py`. Format:
mistral-common, `tokens/tokenizers/tekken.py`, which is the oracle of the tests.
"""

import base64
import binascii
from pathlib import Path

import msgspec
from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from smg.errors import ConfigError
from smg.tokenizer.files import VOCABULARY_BYTES, read_bytes
from smg.tokenizer.mistral import TEKKEN_SPECIALS
from smg.tokenizer.pieces import BYTE_NAMES
from smg.tokenizer.tiktoken import merges_of

__all__ = ["build_tekken"]

IDS_MAX = 1 << 20
TOKEN_BYTES = 1024

# Of files that do not list their control tokens; those that they have no name for are <SPECIAL_n>.
NAMES = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]


class _Config(Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Word(Struct):
    rank: int
    token_bytes: str


class _Special(Struct):
    rank: int
    token_str: str


class _File(Struct):
    config: _Config
    vocab: list[_Word]
    special_tokens: list[_Special] | None = None


def build_tekken(path: Path) -> Tokenizer:
    """Reads a vocabulary; ConfigError when it is not one."""
    try:
        file = msgspec.json.decode(read_bytes(path, limit=VOCABULARY_BYTES), type=_File)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError([f"{path}: not a tekken vocabulary: {error}"]) from error
    config = file.config
    count = config.default_num_special_tokens
    if not 0 <= count <= config.default_vocab_size <= IDS_MAX:
        raise ConfigError([f"{path}: {config.default_vocab_size} ids with {count} control tokens make no sense"])
    specials = _specials(file, count, path)
    ranks = _ranks(file, config.default_vocab_size - count, path)
    vocabulary = {"".join(BYTE_NAMES[byte] for byte in token): rank + count for token, rank in ranks.items()}
    vocabulary |= {name: number for number, name in enumerate(specials)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges_of(ranks), ignore_merges=True))
    split = pre_tokenizers.Split(_pattern(config.pattern, path), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in specials])
    bos = TEKKEN_SPECIALS["bos_token"]
    if bos in specials:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos}:0 $A:0", special_tokens=[(bos, specials.index(bos))])
    return tokenizer


def _specials(file: _File, count: int, path: Path) -> list[str]:
    named = {token.rank: token.token_str for token in file.special_tokens or ()} or dict(enumerate(NAMES))
    specials = [named.get(number) or f"<SPECIAL_{number}>" for number in range(count)]
    if len(set(specials)) != count:
        raise ConfigError([f"{path}: a control token is named twice"])
    return specials


def _ranks(file: _File, count: int, path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for word in file.vocab[:count]:
        try:
            token = base64.b64decode(word.token_bytes, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError([f"{path}: rank {word.rank} is no token"]) from error
        if not 0 < len(token) <= TOKEN_BYTES:
            raise ConfigError([f"{path}: rank {word.rank} is no token"])
        ranks[token] = word.rank
    if sorted(ranks.values()) != list(range(count)) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise ConfigError([f"{path}: the ranks are not 0 to {count - 1}, each byte among them"])
    return ranks


def _pattern(text: str, path: Path) -> Regex:
    try:
        return Regex(text)
    except Exception as error:  # the library raises the bare class
        raise ConfigError([f"{path}: not a tekken vocabulary: its pattern is broken"]) from error
