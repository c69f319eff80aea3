"""Vocabularies in tiktoken's form: a line a token, its bytes in base64 and its rank. Read for Kimi, Qwen, Llama 3 and 4 and OpenAI's own.

Out: a library tokenizer of the same ids. tiktoken merges the pair whose joined bytes have the lowest rank; the library wants pairs in
the order of
their merging, so every way to split a token into two known ones becomes a merge, in the order of the token's rank (as in transformers'
`convert_slow_tokenizer.py`, TikTokenConverter). The split pattern is code in the original repositories; here it is known by the
vocabulary's size.
"""

import base64
import binascii
from pathlib import Path

from tokenizers import AddedToken as LibraryToken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from smg.errors import ConfigError
from smg.tokenizer.files import VOCABULARY_BYTES, read_bytes, read_json
from smg.tokenizer.folder import AddedToken, ModelFolder
from smg.tokenizer.pieces import BYTE_NAMES

__all__ = ["FILE_NAMES", "build_tiktoken", "is_tiktoken", "merges_of"]

FILE_NAMES = ("tiktoken.model", "tokenizer.model")
RANKS = 1 << 20
TOKEN_BYTES = 1024

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _cased(*, han: bool, slash: bool) -> str:
    """The pattern of o200k_base and its kin: words split where small letters end. Kimi keeps Chinese apart; OpenAI and Llama 4 keep `/`
    on."""
    apart = r"&&[^\p{Han}]" if han else ""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        (r"[\p{Han}]+|" if han else "")
        + f"{start}[{UPPER}{apart}]*[{LOWER}{apart}]+{ENDING}|{start}[{UPPER}{apart}]+[{LOWER}{apart}]*{ENDING}"
        + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{'/' if slash else ''}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


# By the number of ranks: the only thing that a file tells of its family.
PATTERNS = {
    100256: GPT4,  # cl100k_base
    128000: GPT4,  # Llama 3
    151643: QWEN,
    163584: _cased(han=True, slash=False),  # Kimi K2
    199998: _cased(han=False, slash=True),  # o200k_base
    200000: _cased(han=False, slash=True),  # Llama 4
}
# Of vocabularies whose special tokens are numbered in code: OpenAI's and Qwen's first. The others come with a list in their folder.
KNOWN_SPECIALS = {
    100256: {
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    151643: {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
    199998: {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}


def is_tiktoken(path: Path) -> bool:
    """True when a file begins with a line of base64 and a number: `tokenizer.model` may as well be SentencePiece."""
    head = read_bytes(path, limit=VOCABULARY_BYTES)[:256].split(b"\n", 1)[0].split()
    return len(head) == 2 and head[1].isdigit() and _bytes(head[0]) is not None


def build_tiktoken(path: Path, folder: ModelFolder) -> Tokenizer:
    """Reads a vocabulary and the special tokens of its folder; ConfigError when a line is broken or the split pattern is not known."""
    ranks = _ranks(path)
    stated = read_json(folder.path, "special_tokens.json").get("pattern")
    pattern = stated if isinstance(stated, str) else PATTERNS.get(len(ranks))
    if pattern is None:
        raise ConfigError([f"{path}: a tiktoken vocabulary of {len(ranks)} ranks is of no known family; give a tokenizer.json"])
    names = {"".join(BYTE_NAMES[byte] for byte in token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=names, merges=merges_of(ranks), ignore_merges=True))
    if folder.tokenizer_config.get("tokenizer_class") == "QWenTokenizer":  # composes in its Python code, not in the vocabulary
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_specials(tokenizer, _specials(folder, len(ranks)), path)
    return tokenizer


def _bytes(word: bytes) -> bytes | None:
    try:
        return base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        return None


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(path, limit=VOCABULARY_BYTES).splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        token = _bytes(fields[0]) if len(fields) == 2 and fields[1].isdigit() else None
        if not token or len(token) > TOKEN_BYTES or number > RANKS:
            raise ConfigError([f"{path}: line {number} is no token and rank"])
        ranks[token] = int(fields[1])
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ConfigError([f"{path}: the ranks are not 0 to {len(ranks) - 1}"])
    return ranks


def merges_of(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """Gives every split of every token into two, by the token's rank, then by those of its parts."""
    names = {token: "".join(BYTE_NAMES[byte] for byte in token) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) < 2:
            continue
        splits = []
        for cut in range(1, len(token)):
            left = ranks.get(token[:cut])
            if left is not None and (right := ranks.get(token[cut:])) is not None:
                splits.append((left, right, cut))
        splits.sort()
        merges += [(names[token[:cut]], names[token[cut:]]) for _, _, cut in splits]
    return merges


def _specials(folder: ModelFolder, count: int) -> list[AddedToken]:
    """Those of the folder; else those known for a vocabulary of that size."""
    listed = [token for token in folder.added_tokens if token.id >= count]
    if listed:
        return listed
    return [AddedToken(number, content, True, normalized=False) for content, number in KNOWN_SPECIALS.get(count, {}).items()]


def _add_specials(tokenizer: Tokenizer, specials: list[AddedToken], path: Path) -> None:
    """The library numbers added tokens in order, so gaps are filled with names that no text has."""
    following = tokenizer.get_vocab_size(with_added_tokens=True)
    if specials and max(token.id for token in specials) > RANKS:
        raise ConfigError([f"{path.parent}: a special token's number is above {RANKS}"])
    by_id = {token.id: token for token in specials}
    tokens = []
    for number in range(following, max(by_id, default=following - 1) + 1):
        token = by_id.get(number)
        content = token.content if token else f"<|reserved_token_{number}|>"
        tokens.append(LibraryToken(content, normalized=False, special=token is None or token.special))
    tokenizer.add_tokens(tokens)
