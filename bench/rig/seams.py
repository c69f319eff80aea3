"""The stages of a request, each as a call that can be timed: `bench.stages` names them and times them.

Only public functions of the packages are used, and imported where they are needed, so that one whose seam has changed spoils no other.
"""

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from bench.rig.model import BenchModel
from bench.rig.processes import SERVED, BenchEngine
from bench.rig.worker import Exchanged, application, config_of, http_request, open_services, view_of
from smg.api.base import Services
from smg.obs.metrics import Meter
from smg.types.job import ChatInput, Job

__all__ = ["Seams", "Timed"]

ANSWER_TOKENS = 16
SHORT = 50
SINK_TOKENS = 512
TIMEOUT_S = 1800.0
SYSTEM = "You are a helpful assistant."
TEXT = "What is the capital of France, and how long does a train take to it?"
GC_OBJECTS = 10_000
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


@dataclasses.dataclass(frozen=True)
class Timed:
    """What is timed: a call, or a coroutine function if `asynchronous`, that does `units` of the work.

    `prepare` is called before each coroutine, and is not timed.
    """

    call: Callable[[], Any]
    units: int = 1
    asynchronous: bool = False
    prepare: Callable[[], object] = lambda: None


class Seams:
    """Makes the calls, over one model and one engine. Used on a running loop."""

    def __init__(self, model: BenchModel, services: Services, meter: Meter) -> None:
        self._model = model
        self._services = services
        self._meter = meter
        self._numbers = itertools.count(1)
        self._closers = contextlib.ExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, model: BenchModel, engine: BenchEngine) -> AsyncIterator["Seams"]:
        """Gives the seams of a worker in front of an engine."""
        async with open_services(config_of(model), urls=engine.urls, protocol="sglang") as (services, meter):
            gc.collect()
            gc.freeze()  # as a worker does when it has loaded all
            gc.set_threshold(GC_OBJECTS)
            seams = cls(model, services, meter)
            with seams._closers:
                yield seams

    def read(self, *, tokens: int = SHORT, fresh: bool = False) -> Timed:
        """A body to a job; `fresh`: with parameters that no request before had."""
        chats = self._services.chats
        body, http = self._body(tokens=tokens), http_request(b"")

        def call() -> None:
            sent = self._body(tokens=tokens, text=TEXT, temperature=next(self._numbers) / 1e6) if fresh else body
            chats.read(sent, http, answer="chatcmpl-1", timeout_s=TIMEOUT_S)

        return Timed(call)

    async def render(self, *, turns: int = 1, mark: str = "") -> Timed:
        """Messages to text; `mark` stands in each message of the user's."""
        template = (await self._services.models.get(SERVED)).template
        assert template is not None
        chat = self._chat(turns=turns, mark=mark)
        return Timed(lambda: template.render(chat))

    async def encode(self, *, tokens: int = SHORT, text: Literal["seen", "new", "novel"] = "new") -> Timed:
        """Text to ids. A text that is `seen` is in the cache of pieces (L1); a `new` one has words seen before, a `novel` one none."""
        from smg.template import encode_prompt

        model = await self._services.models.get(SERVED)
        assert model.template is not None
        rendered = model.template.render(self._chat(tokens=tokens))

        def call() -> None:
            changed = rendered
            if text != "seen":
                number = f"{next(self._numbers)}"
                words = rendered.text.replace("user\n", f"user\n{number} ", 1)
                if text == "novel":
                    words = rendered.text.replace("e", number)[: len(rendered.text)]
                changed = msgspec.structs.replace(rendered, text=words)
            encode_prompt(model.tokenizer, changed)

        return Timed(call)

    async def prompt(self, *, fresh: bool = False) -> Timed:
        """Messages to ids as the pipeline does it: caches, template, tokenizer."""
        from smg.pipeline.prompt import prepare

        model = await self._services.models.get(SERVED)
        chat = self._chat()

        async def call() -> None:
            for _ in range(100):
                await prepare(self._chat(mark=f"{next(self._numbers)}") if fresh else chat, model, allow_special=False)

        return Timed(call, units=100, asynchronous=True)

    async def plan(self) -> Timed:
        """A job to an engine's request."""
        from smg.engine import ModelInfo
        from smg.pipeline.plan import engine_request

        model, job = await self._services.models.get(SERVED), self._job()
        prompt = await self._services.pipeline.prompt(SERVED, job.input)
        info = ModelInfo(served_name=SERVED)
        return Timed(lambda: engine_request(job, model=model, prompt=prompt, info=info, constraint=None))

    def route(self, *, policy: str, engines: int) -> Timed:
        """Choosing an engine, counting the request there, and taking it off again."""
        from smg.pipeline.route import Router

        urls = [f"grpc://127.0.0.1:{port}" for port in range(1, engines + 1)]
        with tempfile.TemporaryDirectory() as folder:
            view, _ = view_of(Path(folder), urls=urls, protocol="sglang")
            view.refresh()
        router = Router(view, config=config_of(self._model, policy=policy).routing)
        ids, routing = self._model.answer_ids[:SHORT], self._job().routing

        def call() -> None:
            _, lease = router.route(SERVED, prompt_ids=ids, routing=routing, avoid=frozenset())
            lease.release()

        return Timed(call)

    async def write(self, protocol: str, *, tokens: int = SHORT) -> Timed:
        """An engine's request to bytes."""
        from smg.engine import ENGINES, GrpcEngine
        from smg.engine.writer import RequestWriter

        request = await self._request(tokens=tokens)
        driver = cast(GrpcEngine, ENGINES.get(protocol)("grpc://127.0.0.1:1"))
        writer = RequestWriter(driver.service.methods_by_name["Generate"].input_type, driver.encode)
        return Timed(lambda: writer.write(request))

    async def sink(self, *, together: int) -> Timed:
        """Engine messages of one token to chunks, so many in one wake-up; 0: making a sink and ending its answer alone."""
        model, messages = await self._services.models.get(SERVED), self._messages(SINK_TOKENS if together else 0)
        groups = [messages[at : at + together] for at in range(0, len(messages), together)] if together else [messages]
        chunks: list[bytes] = []

        def call() -> None:
            chunks.clear()
            sink = make_sink(model.vocabulary, chunks)
            for group in groups:
                sink.feed(*group)

        return Timed(call, units=SINK_TOKENS if together else 1)

    def whole(self) -> Timed:
        """Events of a whole answer to its body."""
        from smg.api.openai.answer import open_head
        from smg.api.openai.chat_switches import Switches
        from smg.api.openai.chat_whole import ChatWhole
        from smg.types.event import Content, Finished, Usage

        text = self._model.tokenizer.decode(self._model.answer_ids[:ANSWER_TOKENS])
        events = [Content(0, text), Finished(0, "stop"), Usage(prompt_tokens=SHORT, completion_tokens=ANSWER_TOKENS, cached_tokens=0)]
        switches = Switches()

        def call() -> None:
            head = open_head(SERVED, self._services, answer="chatcmpl-1", kind="chat.completion")
            answer = ChatWhole(head, switches)
            answer.feed(events)
            answer.body()

        return Timed(call)

    def exchange(self, *, clients: int) -> Timed:
        """A request that needs nothing, from its scope to its reply: task, route, headers, metrics."""
        return self._exchanges(lambda: Exchanged("GET", "/health"), clients=clients)

    def chat(self, *, clients: int, stream: bool) -> Timed:
        """Chats at once from scope to reply, with the engine calls and their system calls, without HTTP."""

        def exchanged() -> Exchanged:
            return Exchanged("POST", "/v1/chat/completions", self._body(number=next(self._numbers), stream=stream, text=TEXT))

        return self._exchanges(exchanged, clients=clients)

    async def front(self, *, clients: int) -> Timed:
        """HTTP there and back on real connections, with a trivial application. The clients' thread is not counted."""
        from smg.server.front import Front

        class Trivial:
            async def __rsgi__(self, scope: Any, protocol: Any) -> None:
                body = protocol.arrived() or await protocol()
                protocol.response_bytes(200, [("content-type", "application/json")], b'{"length": %d}' % len(body))

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        front = Front(Trivial(), config=self._services.config, loop=asyncio.get_running_loop())
        await front.serve(listening)
        self._closers.callback(front.close)
        connections = [
            self._closers.enter_context(await asyncio.to_thread(socket.create_connection, listening.getsockname())) for _ in range(clients)
        ]
        posted = POST % (len(self._body()), self._body())

        def ask() -> None:
            for connection in connections:
                connection.sendall(posted)
            for connection in connections:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")

        async def call() -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            loop = asyncio.get_running_loop()

            def run() -> None:
                ask()
                loop.call_soon_threadsafe(done.set_result, None)

            threading.Thread(target=run).start()
            await done

        return Timed(call, units=clients, asynchronous=True)

    def _exchanges(self, make: Callable[[], Exchanged], *, clients: int) -> Timed:
        app = application(self._services, self._meter)
        waiting: list[Exchanged] = []

        def prepare() -> None:
            assert all(each.status == 200 and each.size for each in waiting)
            waiting[:] = [make() for _ in range(clients)]

        async def call() -> None:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*[loop.create_task(app.__rsgi__(each.scope, each)) for each in waiting])

        return Timed(call, units=clients, asynchronous=True, prepare=prepare)

    def _body(
        self, *, tokens: int = SHORT, number: int = 0, stream: bool = True, text: str | None = None, temperature: float = 0.7
    ) -> bytes:
        content = text or self._model.text(tokens - 30 if tokens > SHORT else 20)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Request {number}: {content}"}]
        fields: dict[str, object] = {"model": SERVED, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": temperature}
        return msgspec.json.encode(fields | {"stream": True} if stream else fields)

    def _chat(self, *, tokens: int = SHORT, turns: int = 1, mark: str = "") -> ChatInput:
        words = self._model.text(tokens, seed=2) if tokens > SHORT else TEXT
        turn = ({"role": "user", "content": f"{words} {mark}"}, {"role": "assistant", "content": words})
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, *itertools.chain(*[turn] * turns)]
        return ChatInput(messages=tuple(messages[:-1]))

    def _job(self, *, tokens: int = SHORT) -> Job:
        return cast(
            Job, self._services.chats.read(self._body(tokens=tokens), http_request(b""), answer="chatcmpl-1", timeout_s=TIMEOUT_S)[1]
        )

    async def _request(self, *, tokens: int) -> Any:
        from smg.engine import ModelInfo
        from smg.pipeline.plan import engine_request

        job, model = self._job(tokens=tokens), await self._services.models.get(SERVED)
        prompt = await self._services.pipeline.prompt(SERVED, job.input)
        return engine_request(job, model=model, prompt=prompt, info=ModelInfo(served_name=SERVED), constraint=None)

    def _messages(self, count: int) -> list[bytes]:
        """A streamed answer as the engine sends it: so many messages of one token, then the last."""
        from smg.pb.sglang_scheduler_pb2 import GenerateResponse

        ids = list(itertools.islice(itertools.cycle(self._model.answer_ids), count))
        chunks = [
            GenerateResponse(request_id="1", chunk={"token_ids": [each], "prompt_tokens": SHORT, "completion_tokens": at + 1})
            for at, each in enumerate(ids)
        ]
        last = GenerateResponse(
            request_id="1",
            complete={"output_ids": ids[-1:], "finish_reason": "length", "prompt_tokens": SHORT, "completion_tokens": count},
        )
        return [message.SerializeToString() for message in (*chunks, last)]


def make_sink(vocabulary: Any, chunks: list[bytes]) -> Any:
    """Gives the native machine with its chat exit."""
    from smg._ext import ChatSink
    from smg.engine import ENGINES
    from smg.pipeline.native import tables

    return ChatSink(
        tables(ENGINES.get("sglang").service),
        vocabulary,
        None,
        choices=1,
        ends=(),
        reported=(),
        min_tokens=0,
        skip_special=True,
        include_stop=False,
        prompt_tokens=SHORT,
        prefix=b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1,"model":"bench"',
        tail=b"}\n\n",
        write=chunks.append,
        done=lambda error, status, text: None,
    )
