"""The quick encoder: a tokenizer.json of byte pairs, opened for `smg_ext.bpe`. Called by `fast.py`, which compares it with the library.

In: the JSON of a vocabulary. Out: a `NativeEncoder`, or None when something in it is not known here: another kind of model, a pattern
or a flag of an added token without a native form. Its memory is that of its tables, whatever it encodes and on however many threads.
"""

import re
import secrets
import unicodedata
from functools import cache

import msgspec
from msgspec import Raw, Struct

from smg._ext import BytePairs, Marks, Table
from smg.tokenizer.cache import ByteLru, CacheCounts
from smg.tokenizer.characters import STRANGE, entries
from smg.tokenizer.folder import AddedToken
from smg.tokenizer.pieces import ALPHABET, BYTE_NAMES
from smg.tokenizer.splitting import splits_of
from smg.types.json import Json

__all__ = ["NativeEncoder", "compose", "open_native"]


class _Model(Struct):
    """The model part of a tokenizer.json; its two large fields stay as they are."""

    vocab: Raw
    merges: Raw
    type: str = "BPE"
    dropout: float | None = None
    unk_token: str | None = None
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    ignore_merges: bool = False


class _File(Struct):
    model: _Model
    added_tokens: list[AddedToken] = []
    normalizer: Raw = Raw(b"null")
    pre_tokenizer: Raw = Raw(b"null")


class NativeEncoder:
    """Encodes as the library does, only quicker. Thread-safe."""

    def __init__(self, native: BytePairs, added: list[AddedToken]) -> None:
        self._native = native
        self._added = {token.id: token.content for token in added}
        self._added_ids = {token.content: token.id for token in added}
        self._pieces: ByteLru[tuple[bytes, bool, bytes]] | None = None
        self.encode = native.encode
        self.encode_packed = native.encode_packed
        self.encode_segments = native.encode_segments
        self.encode_segments_packed = native.encode_segments_packed

    def token_bytes(self, token_id: int) -> bytes | None:
        """Gives what a token of the byte alphabet stands for, or None."""
        content = None if token_id in self._added else self._native.table.token(token_id)
        return content if isinstance(content, bytes) else None

    def name(self, token_id: int) -> str | None:
        """Gives a token's name, or None for an id without a token."""
        name = self._added.get(token_id)
        if name is not None:
            return name
        content = self._native.table.token(token_id)
        return "".join([BYTE_NAMES[byte] for byte in content]) if isinstance(content, bytes) else content

    def token_id(self, name: str) -> int | None:
        """Gives a token's id by its name, or None."""
        token_id = self._added_ids.get(name)
        if token_id is not None:
            return token_id
        try:
            content = bytes([ALPHABET[character] for character in name])
        except KeyError:  # no name of the byte alphabet: of those only added tokens are looked for
            return None
        return self._native.table.find(content)

    def remember(self, cache_bytes: int) -> None:
        """Keeps the ids of what stands between added tokens (L1) from its second coming on: exact, for it is compared whole."""
        self._pieces = ByteLru(cache_bytes)
        self._native.remember(self._pieces, secret=secrets.randbits(64))

    def cache_counts(self) -> CacheCounts | None:
        """Gives how L1 does; None without one."""
        return self._pieces.counts() if self._pieces else None


def open_native(vocabulary: bytes) -> NativeEncoder | None:
    """Reads the JSON of a vocabulary; None where that cannot be done. Whether the result agrees with the library is not known yet."""
    try:
        file = msgspec.json.decode(vocabulary, type=_File)
    except (msgspec.MsgspecError, RecursionError):
        return None
    model, composes = file.model, _composes(msgspec.json.decode(file.normalizer))
    splits = splits_of(msgspec.json.decode(file.pre_tokenizer))
    plain = model.type == "BPE" and not model.dropout and not model.continuing_subword_prefix and not model.end_of_word_suffix
    if not plain or composes is None or splits is None or not _known_flags(file.added_tokens):
        return None
    try:
        drops = model.unk_token is None and not model.byte_fallback
        table = Table(memoryview(model.vocab), memoryview(model.merges), whole_first=model.ignore_merges, drops=drops)
        raw = Marks([_mark(token) for token in file.added_tokens if not token.normalized])
        later = Marks([_mark(token, composes=composes) for token in file.added_tokens if token.normalized])
    except ValueError:
        return None
    ids = max([len(table), *(token.id + 1 for token in file.added_tokens)])
    native = BytePairs(table, splits, raw, later, ids=ids, compose=compose if composes else None)
    return NativeEncoder(native, file.added_tokens)


def _composes(normalizer: Json) -> bool | None:
    """True for NFC, False for nothing, None for what is not known."""
    if normalizer is None:
        return False
    if not isinstance(normalizer, dict):
        return None
    parts = normalizer.get("normalizers")
    if normalizer.get("type") == "Sequence" and isinstance(parts, list):
        known = [_composes(part) for part in parts]
        return None if None in known else any(known)
    return True if normalizer.get("type") == "NFC" else None


def _known_flags(added: list[AddedToken]) -> bool:
    """Spaces that belong to a token, and spaces that it takes along, are not told apart here."""
    strips = any(token.lstrip or token.rstrip for token in added)
    return not any(
        token.single_word or not 0 <= token.id < 1 << 20 or (strips and token.content.strip() != token.content) for token in added
    )


def _mark(token: AddedToken, *, composes: bool = False) -> tuple[str, int, bool, bool]:
    return (compose(token.content) if composes else token.content, token.id, token.lstrip, token.rstrip)


@cache
def _strange() -> re.Pattern[str]:
    """Runs of characters with which the library composes nothing."""
    runs = re.finditer(b"[%s]+" % re.escape(bytes(range(STRANGE, STRANGE + 32))), entries())
    ranges = [rf"\U{run.start():08x}-\U{run.end() - 1:08x}" for run in runs]
    return re.compile(f"([{''.join(ranges)}]+)")


def compose(text: str) -> str:
    """Gives a text in NFC as the library does, which does not compose over characters that are newer than it."""
    parts = _strange().split(text)
    parts[::2] = [unicodedata.normalize("NFC", part) for part in parts[::2]]
    return "".join(parts)
