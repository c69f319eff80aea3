"""Clients of a gateway that is restarted: requests of four kinds without pause until SIGTERM, then what became of them as JSON on stdout.

fresh    a connection for each request
reused   a connection for as many requests as the gateway lets it have, without pause
idle     the same with pauses between, as a pool of connections has them
stream   streamed answers of about two seconds, which must come to their end

Run in the network of the guest, with the machine's own Python. A request is lost when it is refused, cut, or not answered with 200.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import ssl
import sys
import time

LATE_S = 30.0
# Whoever starts it ends it long before.
LONGEST_S = 180.0
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s"


class Lost(Exception):
    """A request that got no good answer."""


class Client:
    """One client; `connection` is kept between requests where its kind wants that."""

    def __init__(self, options: argparse.Namespace, *, kind: str) -> None:
        self.kind = kind
        self.done = 0
        self.lost: list[str] = []
        self.slowest = 0.0
        self.connections = 0
        self._options = options
        self._tls = ssl._create_unverified_context() if options.tls else None
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Asks until told to stop."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                async with asyncio.timeout(LATE_S):
                    await self._ask()
            except (Lost, OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.lost.append(f"{time.time():.2f} {self.kind}: {type(error).__name__} {error} after {time.monotonic() - began:.2f} s")
                self._close()
                await asyncio.sleep(0.05)
            else:
                self.done += 1
                self.slowest = max(self.slowest, time.monotonic() - began)
            if self.kind == "idle":
                await asyncio.sleep(random.uniform(0.01, 0.4))
        self._close()

    async def _ask(self) -> None:
        if self._stream is None:
            self.connections += 1
            self._stream = await asyncio.open_connection(self._options.host, self._options.port, ssl=self._tls)
        reader, writer = self._stream
        body = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        if self.kind == "stream":
            body |= {"stream": True, "max_tokens": self._options.tokens, "ignore_eos": True}
        data = json.dumps(body).encode()
        key = f"authorization: Bearer {self._options.key}\r\n".encode() if self._options.key else b""
        writer.write(HEAD % (key, len(data), data))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body_bytes = await self._body(reader, head)
        if " 200 " not in head.split("\r\n")[0]:
            raise Lost(f"{head.splitlines()[0]} {body_bytes[:200]!r}")
        if self.kind == "stream" and (
            b"data: [DONE]" not in body_bytes or b'"finish_reason":"length"' not in body_bytes.replace(b" ", b"")
        ):
            raise Lost(f"a stream without its end: {body_bytes[-200:]!r}")
        if self.kind in ("fresh", "stream") or "connection: close" in head:
            self._close()

    @staticmethod
    async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
        for line in head.split("\r\n"):
            name, _, value = line.partition(":")
            if name == "content-length":
                return await reader.readexactly(int(value))
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        return b"".join(parts)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


async def main() -> None:
    """Runs the clients."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--key", default="")
    parser.add_argument("--tls", action="store_true")
    for kind, count in (("fresh", 4), ("reused", 4), ("idle", 8), ("stream", 8)):
        parser.add_argument(f"--{kind}", type=int, default=count)
    options = parser.parse_args()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().call_later(LONGEST_S, stop.set)
    clients = [Client(options, kind=kind) for kind in ("fresh", "reused", "idle", "stream") for _ in range(getattr(options, kind))]
    await asyncio.gather(*(client.run(stop) for client in clients))
    kinds = {}
    for kind in ("fresh", "reused", "idle", "stream"):
        mine = [client for client in clients if client.kind == kind]
        kinds[kind] = {
            "done": sum(client.done for client in mine),
            "connections": sum(client.connections for client in mine),
            "slowest_s": round(max((client.slowest for client in mine), default=0.0), 2),
            "lost": [text for client in mine for text in client.lost],
        }
    with contextlib.suppress(BrokenPipeError):
        json.dump(kinds, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
