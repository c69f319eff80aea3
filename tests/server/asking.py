"""An application over a scripted pipeline, asked once or more by raw requests."""

import asyncio

import msgspec

from smg.config import Config
from smg.config.tree import Server
from smg.server.app import App
from tests.api.fake import HELLO, FakePipeline, services
from tests.server.serving import exchange, serving


def body(**fields):
    return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields})


class Counter:
    def __init__(self):
        self.seen = []

    def observe(self, method, path, status, seconds):
        assert 0 <= seconds < 60
        self.seen.append((method, path, status))


def make_app(script=HELLO, **server):
    pipeline = FakePipeline(script)
    app = App(services(pipeline, Config(server=Server(**server))), observer=Counter())
    return app, pipeline


def ask(data, script=HELLO, **server):
    """One exchange with a server of its own; gives what came back and the application."""
    app, pipeline = make_app(script, **server)

    async def run():
        async with serving(app) as port:
            return await exchange(port, data)

    status, headers, answer = asyncio.run(run())
    assert headers["x-request-id"]
    assert app.inflight == 0
    assert pipeline.running == 0
    return status, headers, answer, app


def error_of(answer):
    return msgspec.json.decode(answer)["error"]
