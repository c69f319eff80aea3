"""Many streams at once, each told apart by how it ended. Used by the tests that kill processes under load."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

__all__ = ["Load", "load"]

CHAT = "/v1/chat/completions"


class Load:
    """`ends` counts how streams ended: done, failed (an error event, then [DONE]), cut (the connection broke), refused (no 200).

    `begun`: those of failed and cut that had brought text. With `other_marker`, every tenth request has that instead.
    """

    def __init__(self, base_url: str, *, marker: str, clients: int, other_marker: str = "") -> None:
        self.ends: Counter[str] = Counter()
        self.open = self.sent = self.begun = 0
        self.problems: list[str] = []
        self._base_url, self._marker, self._clients = base_url, marker, clients
        self._other_marker = other_marker or marker
        self._stop = threading.Event()

    def finish(self) -> None:
        """Starts no more streams."""
        self._stop.set()

    async def run(self) -> None:
        """Keeps `clients` streams open, one after another each, until `finish`."""
        await asyncio.gather(*(self._client(number) for number in range(self._clients)))

    async def _client(self, number: int) -> None:
        while not self._stop.is_set():
            # A client of its own for each stream: the connection's worker is the kernel's choice anew.
            async with httpx.AsyncClient(base_url=self._base_url, timeout=60, trust_env=False, verify=False) as http:
                self.sent += 1
                self.ends[await self._stream(http, number)] += 1

    async def _stream(self, http: httpx.AsyncClient, number: int) -> str:
        marker = self._marker if self.sent % 10 else self._other_marker
        messages = [{"role": "user", "content": f"{number} [[sim: {marker}]]"}]
        request: dict[str, Any] = {"model": "sim-model", "stream": True, "messages": messages, "max_tokens": 2000}
        last, begun = "", False
        try:
            async with http.stream("POST", CHAT, json=request) as reply:
                if reply.status_code != 200:
                    self.problems.append((await reply.aread()).decode())
                    return "refused"
                self.open += 1
                try:
                    async for line in reply.aiter_lines():
                        if line == "data: [DONE]":
                            if "error" not in json.loads(last):
                                return "done"
                            self.begun += begun
                            return "failed"
                        if line.startswith("data: "):
                            last = line.removeprefix("data: ")
                            begun = begun or '"content":"' in last
                finally:
                    self.open -= 1
        except (httpx.TransportError, OSError) as error:
            self.problems.append(f"{error!r} {error.__cause__!r}")
            if isinstance(error, httpx.ConnectError):
                return "refused"
        self.begun += begun
        return "cut"


@contextlib.contextmanager
def load(base_url: str, *, marker: str, clients: int, within_s: float = 60.0, other_marker: str = "") -> Iterator[Load]:
    """A load in a thread; at the block's end no more streams are started, and those open are read to their end."""
    made = Load(base_url, marker=marker, clients=clients, other_marker=other_marker)
    thread = threading.Thread(target=lambda: asyncio.run(made.run()))
    thread.start()
    try:
        end = time.monotonic() + within_s
        while made.open < clients:
            assert time.monotonic() < end, f"only {made.open} of {clients} streams opened: {made.problems[:3]}"
            time.sleep(0.01)
        yield made
    finally:
        made.finish()
        thread.join(60)
