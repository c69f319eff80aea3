"""The quick encoder of vocabularies that `native.py` does not take, of SentencePiece's kind: `fastokens`. Called by `load.py`.

It frees the GIL for texts from 16 KiB on. Each thread that encodes keeps the words that it saw, up to about a million of them, so texts are
encoded on few threads (`smg.pipeline.side`).
"""

import importlib
import os
from array import array
from typing import Any

from smg.tokenizer.cache import CacheCounts

__all__ = ["ForeignEncoder", "open_foreign"]

# Read by the library at its first long text. Its helpers spin while they wait: they cost several times what they save, and a worker is one
# of many.
ONE_THREAD = ("FASTOKENS_BPE_THREADS", "1")


class ForeignEncoder:
    """Encodes as the library does, only quicker. Thread-safe."""

    def __init__(self, native: Any) -> None:
        native.no_truncation()
        native.no_padding()
        self._native = native
        self._native_encode = native.encode
        self._cached = False

    def encode(self, text: str) -> list[int]:
        """Gives the ids of text without BOS or EOS; marks written in it become their ids."""
        ids: list[int] = self._native_encode(text).ids
        return ids

    def encode_segments(self, segments: list[tuple[str, bool]]) -> list[int]:
        """Gives the ids of texts, one after the other; added tokens are seen only in those with True."""
        ids: list[int] = self._native.encode_segments(segments).ids
        return ids

    def encode_packed(self, text: str) -> bytes:
        """Gives the same as `encode`, four bytes an id."""
        return array("I", self.encode(text)).tobytes()

    def encode_segments_packed(self, segments: list[tuple[str, bool]]) -> bytes:
        """Gives the same as `encode_segments`, four bytes an id."""
        return array("I", self.encode_segments(segments)).tobytes()

    def token_bytes(self, token_id: int) -> bytes | None:
        """Gives None: its vocabularies are of text."""
        return None

    def name(self, token_id: int) -> str | None:
        """Gives a token's name, or None for an id without a token."""
        name: str | None = self._native.id_to_token(token_id)
        return name

    def token_id(self, name: str) -> int | None:
        """Gives a token's id by its name, or None."""
        token_id: int | None = self._native.token_to_id(name)
        return token_id

    def remember(self, cache_bytes: int) -> None:
        """Keeps the ids of what stands between added tokens (L1): exact, for a text that was seen is compared whole."""
        self._native.enable_segment_cache(cache_bytes)
        self._cached = True

    def cache_counts(self) -> CacheCounts | None:
        """Gives how L1 does; None without one."""
        if not self._cached:
            return None
        counts: dict[str, int] = self._native.segment_cache_stats()
        return CacheCounts(hits=counts["hits"], misses=counts["misses"], entries=counts["entries"], bytes=counts["bytes"])


def open_foreign(vocabulary: bytes) -> ForeignEncoder | None:
    """Reads the JSON of a vocabulary; None where that cannot be done. Whether the result agrees with the library is not known yet."""
    os.environ.setdefault(*ONE_THREAD)
    try:
        native: Any = importlib.import_module("fastokens._native").Tokenizer.from_json_str(vocabulary.decode())
    except Exception:  # not installed, or a part of the vocabulary that it does not know: it raises several classes
        return None
    return ForeignEncoder(native)
