"""Contents that come again, and what was made of them: long bytes are found without hashing them whole. Used by L0 (prompt_cache.py) and
by readers of request bodies.

A content is kept from its second coming on: a flood of contents that come once fills nothing and displaces nothing. It is looked for under
a sample of itself and then compared whole, so nobody can make two contents that are taken for each other. Bounded in bytes and in entries.
"""

import sys
from array import array
from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

from smg.tokenizer import ByteLru, CacheCounts

__all__ = ["Place", "Repeats"]

T = TypeVar("T")

SLOTS = 1 << 13  # contents of which it is known that they came once
SAMPLE_BYTES = 256  # of the whole, and as many of the end, where the requests of one application differ

# Where a content is kept: whom it is for, its size, its sample.
Place: TypeAlias = tuple[Hashable, int, bytes]


class Kept(Struct, Generic[T], frozen=True):
    """A content and what was made of it."""

    content: bytes
    value: T


class Repeats(Generic[T]):
    """A memory of contents. Thread-safe. Of two contents with one sample it keeps the later."""

    def __init__(self, *, limit_bytes: int, limit_entries: int = sys.maxsize) -> None:
        self._kept: ByteLru[Kept[T]] = ByteLru(limit_bytes, entries=limit_entries)
        self._came = array("Q", bytes(8 * SLOTS))

    def find(self, content: bytes, *, whose: Hashable = None) -> tuple[Place | None, T | None]:
        """Gives where to keep the content, None at its first coming; and what was kept of the same content, None when nothing was."""
        size = len(content)
        step = size // SAMPLE_BYTES
        sample = content if step < 2 else content[::step] + content[-SAMPLE_BYTES:]
        place = whose, size, sample
        mark = hash(place) & 0xFFFF_FFFF_FFFF_FFFF
        slot = mark % SLOTS
        if self._came[slot] != mark:
            self._came[slot] = mark
            return None, None
        kept = self._kept.get(place)
        return place, kept.value if kept is not None and kept.content == content else None

    def keep(self, place: Place, content: bytes, value: T, *, size: int) -> None:
        """Keeps what was made of a content; `size`: the bytes that the value takes."""
        self._kept.put(place, Kept(content, value), size=size + len(content) + len(place[2]))

    def counts(self) -> CacheCounts:
        """Gives hits and misses of contents that came before, and the size."""
        return self._kept.counts()
