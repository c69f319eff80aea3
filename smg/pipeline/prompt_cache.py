"""L0: whole requests and their prompts, so that a request that comes again skips template and tokenizer. Used by `prompt.py`."""

import sys
from array import array
from collections.abc import Callable

import msgspec
from msgspec import Struct

from smg._ext import packed_ids
from smg.obs.metrics import Meter
from smg.pipeline.repeats import Place, Repeats
from smg.tokenizer import CacheCounts
from smg.types.job import ChatInput, Content, TextInput

__all__ = ["CacheMeter", "Prompt", "PromptCache", "PromptKey"]

METRIC = "smg_tokenizer_cache_lookups_total"
L0_HIT, L0_MISS, L1_HIT, L1_MISS = ("l0", "hit"), ("l0", "miss"), ("l1", "hit"), ("l1", "miss")

ASK_PROMPTS = 16


class Prompt(Struct, frozen=True, kw_only=True):
    """What goes to the engine. `text` is None for prompts that came as ids; `thinking`: the output begins inside a think block.

    Requests with the same content share one prompt: nobody may change `ids`, four bytes each. `packed`: the ids as they stand on the wire,
    where several requests will send them; else empty.
    """

    ids: "array[int]"
    text: str | None
    thinking: bool = False
    packed: bytes = b""


class PromptKey(Struct, frozen=True):
    """Where the prompt of a request that came before is kept, and all that it depends on."""

    place: Place
    content: bytes


class CacheMeter:
    """Counts lookups of both caches, where there is somebody who counts. `looked_up`: called with 1 for a request looked up in L0 and not
    found, or found.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter
        self._pieces: dict[int, CacheCounts] = {}
        self._prompts = 0
        self.looked_up = [meter.counter(METRIC, labels).add if meter else _uncounted for labels in (L0_MISS, L0_HIT)]

    def asks(self) -> bool:
        """A prompt was encoded; true now and then, when `pieces` is to be called."""
        self._prompts += 1
        return self._prompts % ASK_PROMPTS == 1

    def pieces(self, model: int, counts_of: Callable[[], CacheCounts | None]) -> None:
        """Asks how the L1 of a model stands, which costs more than a short prompt."""
        if self._meter is None or (counts := counts_of()) is None:
            return
        before = self._pieces.get(model)
        self._pieces[model] = counts
        if hits := counts.hits - (before.hits if before else 0):
            self._meter.add(METRIC, L1_HIT, hits)
        if misses := counts.misses - (before.misses if before else 0):
            self._meter.add(METRIC, L1_MISS, misses)


def _uncounted(amount: int) -> None:
    """There is nobody who counts."""


class PromptCache:
    """The prompts of all models of a process. Thread-safe."""

    def __init__(self, *, limit_bytes: int, limit_entries: int) -> None:
        self._prompts: Repeats[Prompt] = Repeats(limit_bytes=limit_bytes, limit_entries=limit_entries)
        self._encode = msgspec.msgpack.Encoder().encode

    def find(
        self, source: ChatInput | TextInput, *, model: int, allow_special: bool, content: Content | None = None
    ) -> tuple[PromptKey | None, Prompt | None]:
        """Gives the key of a request that came before, None when it came for the first time or has no key; and its prompt, if it is there.

        `model`: a number that no other loaded model of this process has, so that a reloaded model starts afresh. `content` says as
        much as `source`, where the caller has such.
        """
        try:
            settings, data = content or (None, self._encode((isinstance(source, ChatInput), source)))
        except (OverflowError, UnicodeEncodeError, TypeError):  # large numbers and half characters: rare, and encoded each time
            return None, None
        place, prompt = self._prompts.find(data, whose=(model, allow_special, settings))
        return (PromptKey(place, data) if place else None), prompt

    def keep(self, key: PromptKey, prompt: Prompt) -> Prompt:
        """Keeps a prompt and gives it as it is kept."""
        prompt = msgspec.structs.replace(prompt, packed=packed_ids(prompt.ids))
        size = prompt.ids.itemsize * len(prompt.ids) + len(prompt.packed) + sys.getsizeof(prompt.text)
        self._prompts.keep(key.place, key.content, prompt, size=size)
        return prompt

    def counts(self) -> CacheCounts:
        """Gives hits and misses of requests that came before, and the size."""
        return self._prompts.counts()
