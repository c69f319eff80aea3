"""Clients that leave: in their body, before the first token, in mid-stream. The run ends, and nothing is left counted."""

import asyncio
import contextlib
import socket
import time

import pytest
import uvloop

from smg.config import Config
from smg.server import exchange as exchange_module
from smg.server.front import Front
from smg.types.event import Content
from tests.api.fake import HANG, STARTED
from tests.server.asking import body, make_app
from tests.server.serving import connection, post, serving, until
from tests.stopwatch import Stopwatch

LEAVES_S = 0.1


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_client_that_leaves_in_its_body(size):
    app, pipeline = make_app()

    async def run():
        async with serving(app) as port, connection(port) as (_, writer):
            writer.write(post(b'{"messages"', length=size))
            await until(lambda: app.inflight == 1)
            writer.close()
            await until(lambda: app.inflight == 0)

    asyncio.run(run())
    assert pipeline.jobs == []
    assert app.observer.seen == [("POST", "/v1/chat/completions", 499)]


@pytest.mark.parametrize(
    ("fields", "script"),
    [
        ({"stream": True}, [[STARTED], HANG]),
        ({"stream": True}, [[STARTED], [Content(0, "a")], HANG]),
        ({}, [[STARTED], HANG]),
        ({}, [[STARTED], [Content(0, "a")], HANG]),
        ({}, [HANG]),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_client_that_leaves_ends_the_run(fields, script, early):
    """`early`: before the watch for the client begins."""
    app, pipeline = make_app(script)

    async def run():
        async with serving(app) as port, connection(port) as (reader, writer):
            writer.write(post(body(**fields)))
            await until(lambda: pipeline.running)
            if not early:
                start = time.monotonic()
                await until(lambda: time.monotonic() - start > 2 * exchange_module.WATCH_AFTER_S)
            if fields and len(script) > 2:
                assert b'"a"' in await reader.readuntil(b'"a"')
            watch = Stopwatch()
            writer.close()
            await until(lambda: not pipeline.running and not app.inflight)
            return watch.seconds(until_s=pipeline.closed[0])

    assert asyncio.run(run()) < LEAVES_S
    assert app.observer.seen == [("POST", "/v1/chat/completions", 499)]


def test_a_client_that_only_shut_its_sending_side_is_not_told_a_clean_end():
    """It counts as one that left; the part of the answer that it has must not look like the whole."""
    app, pipeline = make_app([[STARTED], [Content(0, "a")], HANG])

    async def run():
        front = Front(app, config=Config(), loop=asyncio.get_running_loop())
        sock = socket.create_server(("127.0.0.1", 0))
        await front.serve(sock)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(front.close)
            reader, writer = await stack.enter_async_context(connection(sock.getsockname()[1]))
            writer.write(post(body(stream=True)))
            await reader.readuntil(b'"a"')
            writer.write_eof()
            rest = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := await reader.read(65536):
                    rest += piece
            return rest

    rest = uvloop.run(run())
    assert b"0\r\n\r\n" not in rest
    assert not pipeline.running
    assert app.observer.seen == [("POST", "/v1/chat/completions", 499)]


@pytest.mark.parametrize("watched", [True, False])
def test_a_client_that_leaves_a_running_stream_ends_the_run(watched, monkeypatch):
    """The next write finds out too, where the watch has not begun."""
    if not watched:
        monkeypatch.setattr(exchange_module, "WATCH_AFTER_S", 60.0)
    endless = [[STARTED], *[[Content(0, "a")]] * 100_000]
    app, pipeline = make_app(endless)

    async def run():
        async with serving(app) as port, connection(port) as (reader, writer):
            writer.write(post(body(stream=True)))
            await reader.readuntil(b'"a"')
            watch = Stopwatch()
            writer.transport.abort()
            await until(lambda: not pipeline.running and not app.inflight)
            return watch.seconds(until_s=pipeline.closed[0])

    assert asyncio.run(run()) < LEAVES_S
