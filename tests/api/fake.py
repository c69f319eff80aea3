"""A pipeline that yields what a test wrote down, and the little else that handlers ask of their services."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import SimpleNamespace

import msgspec

from smg.api.base import Control, Handler, Reply, Request, Services, StreamReply
from smg.api.openai.chat_request import ChatReader
from smg.config import Config
from smg.errors import ClientGone, ModelNotFound, NoEngine
from smg.types.event import Content, Event, Finished, Started, Usage
from smg.types.job import ChatInput, Job, TextInput, TokenInput
from smg.worker import EngineState

HANG = "hang"
Step = list[Event] | Exception | str

STARTED = Started(engine="grpc://e", prompt_ids=[1, 2, 3], prompt_text="Hi!")
USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1, reasoning_tokens=0)
HELLO: list[Step] = [[STARTED], [Content(0, "Hel")], [Content(0, "lo")], [Finished(0, "stop")], [USAGE]]


class FakePipeline:
    """`script`: the steps of every job, or a function of the job. Keeps the jobs it got, and when each run was closed."""

    def __init__(self, script: list[Step] | Callable[[Job], list[Step]] = HELLO) -> None:
        self.script = script
        self.jobs: list[Job] = []
        self.closed: list[float] = []
        self.running = 0

    async def run(self, job: Job) -> AsyncIterator[list[Event]]:
        self.jobs.append(job)
        self.running += 1
        try:
            for step in self.script(job) if callable(self.script) else self.script:
                if isinstance(step, Exception):
                    raise step
                if step == HANG:
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                yield step
        finally:
            self.running -= 1
            self.closed.append(time.monotonic())

    async def whole(self, job: Job, *, take: Callable[[list[Event]], object], take_text: object = None) -> None:
        async with aclosing(self.run(job)) as batches:
            async for step in batches:
                take(step)

    async def stream(self, job: Job, write: Callable[[bytes], bool], *, renderer) -> bytes:
        async with aclosing(self.run(job)) as batches:
            async for step in batches:
                if (chunk := renderer.feed(step)) and not write(chunk):
                    raise ClientGone("gone")
        return renderer.end()

    async def prompt(self, model: str, source: ChatInput | TextInput | TokenInput) -> SimpleNamespace:
        text = source.text if isinstance(source, TextInput) else repr(source)
        return SimpleNamespace(ids=list(text.encode()), text=text)


class FakeTokenizer:
    vocab_size = 256

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")


class FakeModels:
    """One model, `m`, also called `alias` and `m`."""

    def cards(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(id="org/m", aliases=("alias",), context_length=4096, created=7)]

    def resolve(self, name: str) -> str:
        if name in ("", "m", "org/m", "alias"):
            return "org/m"
        raise ModelNotFound(f"the model {name!r} does not exist", param="model")

    def none_yet(self) -> NoEngine:
        return NoEngine("none yet")

    async def get(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(id=self.resolve(name), tokenizer=FakeTokenizer())


class FakeView:
    def __init__(self) -> None:
        self.states = {0: EngineState.READY}

    def relayed(self) -> frozenset[str]:
        return frozenset()

    def models(self) -> dict[str, list[SimpleNamespace]]:
        return {"org/m": [SimpleNamespace(slot=slot, model="org/m", role="regular") for slot in self.states]}

    def registered(self) -> list[SimpleNamespace]:
        return self.models()["org/m"]

    def state(self, slot: int) -> EngineState:
        return self.states[slot]


def services(pipeline: FakePipeline | None = None, config: Config | None = None, control: Control | None = None) -> Services:
    """The services of a data worker, all fake."""
    return Services(
        config=config or Config(),
        pipeline=pipeline or FakePipeline(),
        relay=None,
        models=FakeModels(),
        view=FakeView(),
        pool=None,
        chats=ChatReader(),
        control=control,
    )


def request(body: object, *, headers: dict[str, str] | None = None, own_id: bool = True, params: dict[str, str] | None = None) -> Request:
    """A request with a JSON body; bytes are taken as they are."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)

    async def read() -> bytes:
        return data

    return Request(
        method="POST",
        path="/x",
        headers=headers or {},
        request_id="chatcmpl-1" if own_id else "mine",
        received_s=time.monotonic(),
        read=read,
        params=params,
        own_id=own_id,
    )


def call(handler: Handler, body: object, made: Services | None = None, **kwargs: object) -> tuple[bytes, list[bytes]]:
    """Runs a handler; gives the whole body, and for a stream its writes."""

    async def run() -> tuple[bytes, list[bytes]]:
        reply = await handler(request(body, **kwargs), made or services())
        if isinstance(reply, Reply):
            return reply.body, []
        writes: list[bytes] = []
        if last := await reply.pump(lambda chunk: writes.append(chunk) or True):
            writes.append(last)
        return b"".join(writes), writes

    return asyncio.run(run())


async def first_write(reply: StreamReply) -> bytes:
    """Cancels the stream after its first write, which is given."""
    wrote: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    pump = asyncio.ensure_future(reply.pump(lambda chunk: wrote.done() or wrote.set_result(chunk) or True))
    chunk = await wrote
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)
    return chunk


def answer(handler: Handler, body: object, made: Services | None = None) -> dict[str, object]:
    """The JSON of a whole answer."""
    return msgspec.json.decode(call(handler, body, made)[0])


def events(data: bytes) -> list[dict[str, object]]:
    """The JSON of all events of a stream, which must end with [DONE]."""
    blocks = data.decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(block.removeprefix("data: ")) for block in blocks[:-2]]
