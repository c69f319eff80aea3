"""The two caches of the token path. L0 maps a whole request to its prompt and is used by the pipeline; L1 maps pieces of a prompt's text
to ids.

L1 cuts a text before control tokens. A tokenizer looks for these before anything else and treats what stands between two of them by
itself, so the
ids of a text are the ids of its pieces, one after the other; a test holds every vocabulary to that. Both caches are bounded in bytes.
"""

import hashlib
import re
import secrets
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer as Library

from smg.tokenizer.marks import is_mark, pattern_of

__all__ = ["PIECE_CHARACTERS", "ByteLru", "CacheCounts", "CutRule", "PieceCache", "content_key", "cut_rule"]

T = TypeVar("T")

ENTRY_BYTES = 200  # what an entry costs beyond its content: key, list node, array header
PIECE_CHARACTERS = 512  # shorter pieces are joined: encoding them costs no more than looking them up
NORMALIZED = "A\u030a Å ﬁ \t b"  # changed by every normalizer that composes, folds, replaces or strips
SECRET = secrets.token_bytes(16)  # so that no client can construct two texts with one key


def content_key(*parts: object) -> bytes:
    """Gives a key of 16 bytes for JSON-like content: equal content in the same order, and nothing else, gives an equal key in this
    process."""
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16, key=SECRET).digest()


class CacheCounts(Struct, frozen=True, kw_only=True):
    """How a cache did so far, for metrics."""

    hits: int
    misses: int
    entries: int
    bytes: int


class ByteLru(Generic[T]):
    """A map of bounded size that forgets what was not used for longest. `limit` in bytes; `entries`: how many at most. Thread-safe."""

    def __init__(self, limit: int, *, entries: int = sys.maxsize) -> None:
        self._limit = limit
        self._most = entries
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._hits = 0
        self._misses = 0
        self._lock = Lock()

    def get(self, key: Hashable) -> T | None:
        """Gives the value, or None; counts a hit or a miss."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def missed(self) -> None:
        """Counts a miss of what was not looked for."""
        with self._lock:
            self._misses += 1

    def put(self, key: Hashable, value: T, *, size: int) -> None:
        """Keeps a value of `size` bytes, unless it is larger than an eighth of the whole."""
        size += ENTRY_BYTES
        if size > self._limit // 8:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size - (old[1] if old else 0)
            self._entries[key] = (value, size)
            while self._bytes > self._limit or len(self._entries) > self._most:
                self._bytes -= self._entries.popitem(last=False)[1][1]

    def counts(self) -> CacheCounts:
        """Gives hits, misses, entries and bytes."""
        with self._lock:
            return CacheCounts(hits=self._hits, misses=self._misses, entries=len(self._entries), bytes=self._bytes)


class CutRule(Struct, frozen=True):
    """Where a text may be cut: before a match of `pattern` that is one of `cuts`. The pattern finds every mark that the library finds
    first."""

    pattern: re.Pattern[str]
    cuts: frozenset[str]


def cut_rule(library: Library) -> CutRule | None:
    """Gives the rule of a vocabulary; None where no cut would be exact.

    No cut before a mark that takes the spaces before it along. A mark that is looked for after normalization counts only where there is
    none.
    """
    added = list(library.get_added_tokens_decoder().values())
    plain = library.normalizer is None or library.normalizer.normalize_str(NORMALIZED) == NORMALIZED
    first = [token for token in added if not token.normalized or (plain and is_mark(token.content))]
    cuts = frozenset(token.content for token in first if not token.lstrip and is_mark(token.content))
    if not cuts or any(token.single_word for token in first):
        return None
    return CutRule(re.compile(pattern_of(token.content for token in first)), cuts)


class PieceCache:
    """L1: remembers the ids of pieces of text. `encode` is the tokenizer's own, without BOS."""

    def __init__(self, encode: Callable[[str], list[int]], rule: CutRule, *, limit: int) -> None:
        self._encode = encode
        self._rule = rule
        self._pieces: ByteLru[array[int]] = ByteLru(limit)

    def encode(self, text: str) -> list[int]:
        """Gives what the tokenizer gives for the whole text."""
        ids: list[int] = []
        for piece in self._cut(text):
            key = hashlib.blake2b(piece.encode(), digest_size=16, key=SECRET).digest()
            known = self._pieces.get(key)
            if known is None:
                known = array("I", self._encode(piece))
                self._pieces.put(key, known, size=4 * len(known))
            ids.extend(known)
        return ids

    def counts(self) -> CacheCounts:
        """Gives hits and misses of pieces, and the size."""
        return self._pieces.counts()

    def _cut(self, text: str) -> Iterator[str]:
        """Pieces of at least PIECE_CHARACTERS, but the last; each but the first begins with a control token."""
        start = 0
        for match in self._rule.pattern.finditer(text):
            place = match.start()
            if place - start >= PIECE_CHARACTERS and match[0] in self._rule.cuts:
                yield text[start:place]
                start = place
        yield text[start:]
