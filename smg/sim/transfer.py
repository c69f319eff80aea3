"""KV transfer between a prefill and a decode engine: finished prompts are pinned by name, the decode side claims them over HTTP.

The name is the bootstrap room (SGLang, TokenSpeed) or the transfer's id (vLLM). The HTTP side is in `status`, the client here.
"""

import asyncio
import json
import time
from collections.abc import Callable

from msgspec import Struct

from smg.sim.blocks import BlockPool, BlockTable

__all__ = ["CLAIM_PATH", "PinBoard", "claim"]

CLAIM_PATH = "/kv/claim"
CONNECT_WITHIN_S = 5.0


class Pin(Struct, frozen=True):
    """Blocks of a prompt of `tokens`, kept until `until_s`. `owner`: the request that can give them up."""

    table: BlockTable
    tokens: int
    until_s: float
    owner: str


class PinBoard:
    """Blocks that wait for the decode side. Each is held up to `lease_s`, as in NIXL. `on_release` is called after each release."""

    def __init__(self, pool: BlockPool, *, lease_s: float, on_release: Callable[[], None]) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._on_release = on_release
        self._pins: dict[str, Pin] = {}
        self._owned: dict[str, str] = {}  # request → the name of its pin
        self._changed = asyncio.Event()
        self.expired = 0

    @property
    def blocks(self) -> int:
        """Blocks now pinned."""
        return sum(len(pin.table.blocks) for pin in self._pins.values())

    @property
    def next_expiry_s(self) -> float | None:
        """When the oldest pin ends, on the clock of `time.monotonic`."""
        return min((pin.until_s for pin in self._pins.values()), default=None)

    def pin(self, name: str, table: BlockTable, *, tokens: int, owner: str = "") -> None:
        """Takes over a table of `tokens` prompt tokens. An older pin of that name is released. `owner`: a request that can give it up."""
        self._drop(name)
        if owner:
            self._owned[owner] = name
        self._pins[name] = Pin(table, tokens, time.monotonic() + self._lease_s, owner)
        self._tell()

    async def take(self, name: str, *, wait_s: float) -> int | None:
        """Releases a pin as transferred, waiting for it if need be; gives its tokens, None when it did not come."""
        deadline = time.monotonic() + wait_s
        while name not in self._pins:
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return None
        tokens = self._pins[name].tokens
        self._drop(name)
        return tokens

    async def taken(self, name: str) -> None:
        """Returns when nothing is pinned under that name any more."""
        while name in self._pins:
            await self._changed.wait()

    def owns(self, owner: str) -> bool:
        """True when a request has pinned something that it may give up."""
        return owner in self._owned

    def abandon(self, owner: str) -> None:
        """Releases what a request has pinned and may give up."""
        name = self._owned.get(owner)
        if name is not None:
            self._drop(name)

    def expire(self, now_s: float) -> None:
        """Releases the pins whose lease has ended."""
        for name in [name for name, pin in self._pins.items() if pin.until_s <= now_s]:
            self.expired += 1
            self._drop(name)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _drop(self, name: str) -> None:
        pinned = self._pins.pop(name, None)
        if pinned is not None:
            self._owned.pop(pinned.owner, None)
            self._pool.close(pinned.table)
            self._on_release()
            self._tell()


async def claim(host: str, *, port: int, name: str, wait_s: float) -> int | None:
    """Asks the prefill engine at host:port for the pin `name`; gives its tokens, None when the engine or the pin is not there."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), port), CONNECT_WITHIN_S)
    except (OSError, TimeoutError):
        return None
    try:
        head = f"GET {CLAIM_PATH}?name={name}&wait_s={wait_s} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.read(), wait_s + CONNECT_WITHIN_S)
    except (OSError, TimeoutError):
        return None
    finally:
        writer.close()
    status, _, body = answer.partition(b"\r\n\r\n")
    return int(json.loads(body)["tokens"]) if status.startswith(b"HTTP/1.1 200") else None
