"""L0: whole requests and their prompts, so that a request that comes again skips template and tokenizer. Used by `prompt.py`.

A request is kept from its second coming on: a flood of requests that come once fills nothing and displaces nothing. Found by a keyed
SHA-256 of everything in it, so that nobody can make two requests with one key. Bounded in bytes and in entries.
"""

import hashlib
import secrets
import sys
from array import array
from collections.abc import Callable

import msgspec
from msgspec import Struct

from smg.obs.metrics import Meter
from smg.tokenizer import ByteLru, CacheCounts
from smg.types.job import ChatInput, TextInput

__all__ = ["CacheMeter", "Prompt", "PromptCache"]

METRIC = "smg_tokenizer_cache_lookups_total"
L0_HIT, L0_MISS, L1_HIT, L1_MISS = ("l0", "hit"), ("l0", "miss"), ("l1", "hit"), ("l1", "miss")

SLOTS = 1 << 13  # requests of which it is known that they came once
SAMPLE_BYTES = 512
ASK_PROMPTS = 16


class Prompt(Struct, frozen=True, kw_only=True):
    """What goes to the engine. `text` is None for prompts that came as ids; `thinking`: the output begins inside a think block.

    Requests with the same content share one prompt: nobody may change `ids`.
    """

    ids: list[int]
    text: str | None
    thinking: bool = False


class CacheMeter:
    """Counts lookups of both caches, where there is somebody who counts."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter
        self._pieces: dict[int, CacheCounts] = {}
        self._prompts = 0

    def request(self, *, hit: bool) -> None:
        """A request was looked up in L0."""
        if self._meter is not None:
            self._meter.add(METRIC, L0_HIT if hit else L0_MISS)

    def pieces(self, model: int, counts_of: Callable[[], CacheCounts | None]) -> None:
        """A prompt was encoded; now and then it is asked how the L1 of its model stands, which costs more than a short prompt."""
        self._prompts += 1
        if self._meter is None or self._prompts % ASK_PROMPTS != 1 or (counts := counts_of()) is None:
            return
        before = self._pieces.get(model)
        self._pieces[model] = counts
        if hits := counts.hits - (before.hits if before else 0):
            self._meter.add(METRIC, L1_HIT, hits)
        if misses := counts.misses - (before.misses if before else 0):
            self._meter.add(METRIC, L1_MISS, misses)


class PromptCache:
    """The prompts of all models of a process. Thread-safe."""

    def __init__(self, *, limit_bytes: int, limit_entries: int) -> None:
        self._prompts: ByteLru[Prompt] = ByteLru(limit_bytes, entries=limit_entries)
        self._came = array("Q", bytes(8 * SLOTS))
        self._encode = msgspec.msgpack.Encoder().encode
        self._secret = secrets.token_bytes(16)

    def key(self, source: ChatInput | TextInput, *, model: int, allow_special: bool) -> bytes | None:
        """Gives the key of a request that came before; None when it came for the first time, or has no key.

        `model`: a number that no other loaded model of this process has, so that a reloaded model starts afresh.
        """
        try:
            content = self._encode((self._secret, model, allow_special, isinstance(source, ChatInput), source))
        except (OverflowError, UnicodeEncodeError, TypeError):  # large numbers and half characters: rare, and encoded each time
            return None
        return hashlib.sha256(content).digest() if self._came_before(content) else None

    def get(self, key: bytes) -> Prompt | None:
        """Gives the prompt of a request, None when it is not there."""
        return self._prompts.get(key)

    def put(self, key: bytes, prompt: Prompt, *, id_bytes: int) -> None:
        """Keeps a prompt; `id_bytes`: what one of its ids takes."""
        self._prompts.put(key, prompt, size=id_bytes * len(prompt.ids) + sys.getsizeof(prompt.text))

    def counts(self) -> CacheCounts:
        """Gives hits and misses of requests that came before, and the size."""
        return self._prompts.counts()

    def _came_before(self, content: bytes) -> bool:
        """By a weak mark of a sample. That is cheap, and a false yes costs no more than a key."""
        size = len(content)
        sample = content if size <= 2 * SAMPLE_BYTES else content[:: size // SAMPLE_BYTES]
        mark = hash((size, sample)) & 0xFFFF_FFFF_FFFF_FFFF
        slot = mark % SLOTS
        known = self._came[slot] == mark
        self._came[slot] = mark
        return known
