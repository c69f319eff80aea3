"""The same answers of an engine, in frames, through both planes: the same kind of error comes out, or the same ids."""

import asyncio

import pytest

from smg.engine import EngineOptions, open_engine
from smg.errors import EngineError
from smg.pb import vllm_engine_pb2 as pb
from tests.engine.drive import collect, ids_of, request
from tests.plane.peer import HEAD, Peer, data, goaway, head, message, rst, server, settings, trailer, until

CHUNK = message(pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=[1, 2], completion_tokens=2)).SerializeToString())
END = message(pb.GenerateResponse(complete=pb.GenerateComplete(output_ids=[1, 2], completion_tokens=2)).SerializeToString())
# Fields 99 to 102, which no protocol has: a varint, two bytes, eight, four.
UNKNOWN = b"\x98\x06\x96\x01" + b"\xa2\x06\x02hi" + b"\xa9\x0612345678" + b"\xb5\x061234"

ANSWERS: dict[str, list[bytes]] = {
    "whole": [head(1), data(1, CHUNK + END), trailer(1)],
    "unknown fields": [head(1), data(1, message(CHUNK[5:] + UNKNOWN) + message(UNKNOWN + END[5:])), trailer(1)],
    "no end": [head(1), data(1, CHUNK), trailer(1)],
    "nothing": [head(1), trailer(1)],
    "refused": [rst(1, 7)],
    "reset": [head(1), data(1, CHUNK), rst(1, 2)],
    "reset as cancelled": [head(1), data(1, CHUNK), rst(1, 8)],
    "calm": [head(1), data(1, CHUNK), rst(1, 11)],
    "security": [head(1), data(1, CHUNK), rst(1, 12)],
    "goaway": [goaway(0)],
    "goaway, yet answered": [goaway(1), head(1), data(1, CHUNK + END), trailer(1)],
    "page": [head(1, ((":status", "503"), ("content-type", "text/html"))), data(1, b"<html>", end=True)],
    "404": [head(1, [(":status", "404")], end=True)],
    "401": [head(1, [(":status", "401")], end=True)],
    "no status": [head(1), data(1, CHUNK, end=True)],
    "cut message": [head(1), data(1, CHUNK[:-1]), trailer(1, 14, "gone")],
    "compressed": [head(1), data(1, message(b"x", compressed=1)), trailer(1)],
    "too large": [head(1), data(1, b"\0\x00\xff\xff\xff" + b"x" * 70_000), trailer(1)],
    "truncated varint": [head(1), data(1, message(b"\x08\xff\xff")), trailer(1)],
    "field number 0": [head(1), data(1, message(b"\0\0")), trailer(1)],
    "group without an end": [head(1), data(1, message(b"\x0b\x0b")), trailer(1)],
} | {
    f"status {code}": [head(1), data(1, CHUNK), trailer(1, code, "why")] for code in range(1, 17)
} | {
    "only trailers": [head(1, (*HEAD, ("grpc-status", "8"), ("grpc-message", "full")), end=True)],
}  # fmt: skip


async def outcome(plane: str, answer: list[bytes]) -> str:
    """The ids, or the error's type."""
    tasks: list[asyncio.Task[None]] = []

    async def say(peer: Peer) -> None:
        await until(lambda: peer.streams)
        peer.send(*answer)

    def greet(peer: Peer) -> None:
        peer.send(settings())
        tasks.append(asyncio.ensure_future(say(peer)))

    async with server(greet) as url:
        options = EngineOptions(data_plane=plane, max_message_bytes=65536)  # type: ignore[arg-type]
        engine = open_engine(url, runtime="vllm", options=options)
        await engine.start()
        try:
            return str(ids_of(await collect(engine, request(), timeout_s=20)))
        except EngineError as error:
            return type(error).__name__
        finally:
            await engine.close()
            for task in tasks:
                task.cancel()


@pytest.mark.parametrize("name", ANSWERS)
def test_both_planes_agree(name: str) -> None:
    aio = asyncio.run(outcome("aio", ANSWERS[name]))
    assert asyncio.run(outcome("native", ANSWERS[name])) == aio
    assert (aio == "[1, 2]") == (name in ("whole", "unknown fields", "goaway, yet answered"))


@pytest.mark.parametrize("plane", ["aio", "native"])
def test_an_engine_that_says_nothing(plane: str) -> None:
    async def scene() -> None:
        async with server(lambda peer: peer.send(settings())) as url:
            engine = open_engine(url, runtime="vllm", options=EngineOptions(data_plane=plane))  # type: ignore[arg-type]
            await engine.start()
            with pytest.raises(EngineError) as caught:
                await collect(engine, request(), timeout_s=0.2)
            assert type(caught.value).__name__ == "EngineTimeout"
            await engine.close()

    asyncio.run(scene())
