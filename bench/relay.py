"""`python -m bench.relay [--clients N] [--events N]`: from an HTTP engine's write to the client's read, how long is an event under way?

Engine, gateway and clients share one process and one clock, with the gateway's own front. The engine writes an event with the time in it
every 10 ms to each client; a client takes the difference when it reads the event. Prints the quantiles, and gives 1 when p99 is over 5 ms.
What the clients and the engine themselves take of the loop is in the figure.
"""

import argparse
import asyncio
import sys
import time

import uvloop

from tests.engine.http.upstream import STREAM_HEAD, Asked, chunked
from tests.server.relaying import relaying
from tests.server.serving import connection
from tests.server.test_relay import ASKED, raw

__all__ = ["main"]

EVERY_S = 0.01
LIMIT_MS = 5.0


def taken(line: bytes) -> float:
    """Gives the milliseconds since the time that an event holds."""
    return (time.perf_counter_ns() - int(line.removeprefix(b"data: "))) / 1e6


async def client(port: int, into: list[float]) -> None:
    """Reads one stream to its end."""
    async with connection(port) as (reader, writer):
        writer.write(raw("/v1/chat/completions", {**ASKED, "stream": True}))
        while (line := await reader.readline()) and not line.startswith(b"data: [DONE]"):
            if line.startswith(b"data: "):
                into.append(taken(line.strip()))


async def measured(clients: int, events: int) -> list[float]:
    """Gives each event's time in milliseconds."""

    async def engine(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for _ in range(events):
            writer.write(chunked(b"data: %d\n\n" % time.perf_counter_ns()))
            await asyncio.sleep(EVERY_S)
        writer.write(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    found: list[float] = []
    async with relaying(engine) as gateway:
        await asyncio.gather(*(client(gateway.port, found) for _ in range(clients)))
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--events", type=int, default=200)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measured(options.clients, options.events))
    at = {share: found[min(len(found) - 1, int(len(found) * share))] for share in (0.5, 0.9, 0.99, 1.0)}
    print(f"{len(found)} events: " + ", ".join(f"p{100 * share:g} {value:.2f} ms" for share, value in at.items()))
    return int(at[0.99] > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
