"""KV cache events in no protocol's words: messages of SubscribeKvEvents come in, `KvBatch`es go out to `smg.kvindex`."""

from typing import Literal, TypeAlias

from msgspec import Struct

from smg.pb import common_pb2

__all__ = ["Kept", "KvBatch", "KvBlock", "KvCleared", "KvEvent", "KvRemoved", "KvStored", "batch_of"]

Kept: TypeAlias = Literal["all", "window", "none"]
# Kinds of groups as vLLM names them (vllm/v1/kv_cache_interface.py), besides those that keep all of a prompt. A state of Mamba's is one
# block of many whose place nobody tells; encoders' blocks are no prompt's.
KEPT: dict[str, Kept] = {
    "sliding_window": "window",
    "sliding_window_mla": "window",
    "chunked_local_attention": "window",
    "mamba": "none",
    "encoder_only_attention": "none",
    "cross_attention": "none",
}


class KvBlock(Struct, frozen=True):
    """A block by the engine's name for it. `ids` is empty where not the tokens alone decide what it holds: LoRA, images, a salt."""

    name: int
    ids: tuple[int, ...]


class KvStored(Struct, frozen=True):
    """Consecutive blocks now held. `parent` names the block before them, None at a prompt's beginning. `size`: tokens in a block.

    `group`: of the model's layers those of like attention, with a cache of their own, -1 = not said; `kept`: which of a prompt's blocks it
    holds at a time.
    """

    blocks: tuple[KvBlock, ...]
    parent: int | None
    size: int
    group: int = -1
    kept: Kept = "all"


class KvRemoved(Struct, frozen=True):
    """Blocks that are held no more, of one group where that is said."""

    names: tuple[int, ...]
    group: int = -1


class KvCleared(Struct, frozen=True):
    """The whole cache was emptied."""


KvEvent: TypeAlias = KvStored | KvRemoved | KvCleared


class KvBatch(Struct, frozen=True, kw_only=True):
    """The events of one step of a data-parallel rank, which numbers its own. `at_s` is Unix time, 0 where the engine does not say.

    `load_only`: it has the number of the one before and no events. `snapshot`: a part of all that is held, to begin again with.
    """

    sequence: int
    events: tuple[KvEvent, ...]
    at_s: float = 0.0
    rank: int = 0
    load_only: bool = False
    snapshot: bool = False


def batch_of(message: common_pb2.KvEventBatch) -> KvBatch:
    """Gives the meaning of one message. Blocks outside the GPU's own memory count as not held."""
    events = tuple(event for event in map(_event, message.events) if event is not None)
    return KvBatch(
        sequence=message.sequence_number,
        events=events,
        at_s=message.timestamp,
        rank=max(0, message.dp_rank),
        load_only=message.load.load_only,
        snapshot=message.HasField("snapshot"),
    )


def _event(message: common_pb2.KvCacheEvent) -> KvEvent | None:
    kind = message.WhichOneof("data")
    if kind == "cleared":
        return KvCleared()
    body = message.stored if kind == "stored" else message.removed
    if body.tier > common_pb2.KV_CACHE_TIER_DEVICE:
        return None
    group = body.group_idx if body.HasField("group_idx") else -1
    if kind == "removed":
        return KvRemoved(tuple(message.removed.block_hashes), group)
    stored = message.stored
    plain = not (stored.lora_name or stored.cache_salt)
    return KvStored(
        blocks=tuple(KvBlock(block.block_hash, tuple(block.token_ids) if plain and _plain(block) else ()) for block in stored.blocks),
        parent=stored.parent_block_hash if stored.HasField("parent_block_hash") else None,
        size=max((block.block_size for block in stored.blocks), default=0),
        group=group,
        kept=KEPT.get(stored.kv_cache_spec_kind, "all"),
    )


def _plain(block: common_pb2.KvBlock) -> bool:
    return not block.HasField("lora_id") and not block.extra_keys and len(block.token_ids) == (block.block_size or len(block.token_ids))
