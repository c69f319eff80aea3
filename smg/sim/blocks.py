"""The paged KV cache: token ids come in, block tables go out, and what is stored or evicted is told as KV events. Used by the scheduler.

Full blocks are named by a hash chained over all tokens before them, so that equal prefixes share blocks. A block that nobody uses stays
findable until it is evicted, least recently used first, the tail of a prompt before its head (as in vLLM's prefix caching).
"""

import struct
from collections import OrderedDict
from hashlib import blake2b

from smg.sim.kvlog import Cleared, KvEvent, Removed, Stored

__all__ = ["BlockPool", "BlockTable", "chain_hash"]


def chain_hash(parent: int | None, ids: tuple[int, ...]) -> int:
    """Gives the signed 64-bit hash of a block after `parent` (None = at the start)."""
    prefix = b"" if parent is None else struct.pack("<q", parent)
    digest = blake2b(prefix + struct.pack(f"<{len(ids)}I", *ids), digest_size=8).digest()
    return int(struct.unpack("<q", digest)[0])


class BlockTable:
    """The blocks of one sequence. `hashed` of them are full and named; `cached_tokens` came from the cache when it was opened."""

    __slots__ = ("blocks", "cached_tokens", "hashed", "last_hash")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.hashed = 0
        self.last_hash: int | None = None
        self.cached_tokens = 0


class BlockPool:
    """A fixed number of blocks. Not thread-safe: one scheduler owns it."""

    def __init__(self, count: int, *, block_size: int, caching: bool = True) -> None:
        self.count = count
        self.block_size = block_size
        self.caching = caching
        self.events: list[KvEvent] = []
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(count))
        self._users = [0] * count
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks that a sequence holds."""
        return self.count - len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that can be found by their hash."""
        return len(self._block_of)

    def needed(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill."""
        return -(-tokens // self.block_size)

    def open(self, ids: list[int]) -> BlockTable | None:
        """Gives a table with room for `ids`, or None when there are too few free blocks. At least one token is left to compute.

        What was not in the cache can be found there once `store` says that it has been computed.
        """
        table = BlockTable()
        if self.caching:
            self._match(table, ids)
        table.cached_tokens = len(table.blocks) * self.block_size
        if not self._reserve(table, len(ids)):
            self.close(table)
            return None
        return table

    def store(self, table: BlockTable, ids: list[int], *, computed: int) -> None:
        """Is told that the first `computed` of a table's `ids` have been: the blocks that they fill can be found from now on."""
        if self.caching:
            self._name(table, ids, computed)

    def extend(self, table: BlockTable, ids: list[int]) -> bool:
        """Makes the table hold all of `ids`, of which it holds a prefix; False when a block is missing, the table being as it was."""
        if not self._reserve(table, len(ids)):
            return False
        self.store(table, ids, computed=len(ids))
        return True

    def close(self, table: BlockTable) -> None:
        """Gives the blocks back. A second call does nothing."""
        for block in reversed(table.blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)
        table.blocks = []

    def clear(self) -> bool:
        """Forgets every name; False, and nothing is done, while a block is in use."""
        if self.used:
            return False
        self._hash_of.clear()
        self._block_of.clear()
        self.events.append(Cleared())
        return True

    def drain_events(self) -> list[KvEvent]:
        """Gives what happened since the last call."""
        events, self.events = self.events, []
        return events

    def _reserve(self, table: BlockTable, tokens: int) -> bool:
        """Gives the table blocks for so many tokens; False, and nothing, when there are too few."""
        missing = self.needed(tokens) - len(table.blocks)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            table.blocks.append(self._take())
        return True

    def _match(self, table: BlockTable, ids: list[int]) -> None:
        """Takes the known blocks that `ids` begins with."""
        size = self.block_size
        for index in range((len(ids) - 1) // size):
            name = chain_hash(table.last_hash, tuple(ids[index * size : (index + 1) * size]))
            block = self._block_of.get(name)
            if block is None:
                return
            self._users[block] += 1
            self._free.pop(block, None)
            table.blocks.append(block)
            table.hashed += 1
            table.last_hash = name

    def _name(self, table: BlockTable, ids: list[int], count: int) -> None:
        """Names the blocks that the first `count` ids filled."""
        size, parent = self.block_size, table.last_hash
        stored: list[tuple[int, tuple[int, ...]]] = []
        for index in range(table.hashed, count // size):
            content = tuple(ids[index * size : (index + 1) * size])
            name = chain_hash(table.last_hash, content)
            if name in self._block_of:  # another sequence computed the same at the same time: its copy keeps the name
                self._tell(stored, parent)
                stored, parent = [], name
            else:
                self._block_of[name] = table.blocks[index]
                self._hash_of[table.blocks[index]] = name
                stored.append((name, content))
            table.last_hash = name
            table.hashed += 1
        self._tell(stored, parent)

    def _tell(self, stored: list[tuple[int, tuple[int, ...]]], parent: int | None) -> None:
        if stored:
            self.events.append(Stored(blocks=tuple(stored), parent=parent))

    def _take(self) -> int:
        """Takes the block that was free for longest, and its name from it."""
        block, _ = self._free.popitem(last=False)
        name = self._hash_of.pop(block, None)
        if name is not None:
            del self._block_of[name]
            self.events.append(Removed(hashes=(name,)))
        self._users[block] = 1
        return block
