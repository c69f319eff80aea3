"""Generate and stream stages of the native data plane, for streamed chats whose output needs no parser.

In: engine messages; out: finished chunks, the same bytes that `generation.py` and the surface's renderer give (a differential test compares
them). What a job needs beyond that (tool calls, reasoning, log probabilities, other vocabularies) takes the other way. Called by
`smg.pipeline.run`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from msgspec import Struct

from smg._ext import ChatSink, FieldTable, StopStrings
from smg.engine import EngineRequest, GrpcEngine, error_of_call, field_table, leave_call
from smg.errors import ClientGone, EngineError, EngineProtocol, EngineTimeout
from smg.pipeline.generation import Aborts
from smg.pipeline.models import ServedModel
from smg.types.event import Event, Usage
from smg.types.job import Job

__all__ = ["ChatFrame", "ChatRenderer", "NativeChat", "Write"]

# Takes one chunk; False when the client is gone.
Write = Callable[[bytes], bool]


class ChatFrame(Struct, frozen=True, kw_only=True):
    """How the surface frames a chunk: `prefix` up to the choices, `tail` after them."""

    prefix: bytes
    tail: bytes


class ChatRenderer(Protocol):
    """A surface's way to say events; `frame` is what the native way needs of it."""

    @property
    def frame(self) -> ChatFrame:
        """Gives the bytes around each chunk."""

    def feed(self, events: Sequence[Event]) -> bytes:
        """Gives the chunks of these events; empty when they say nothing to the client."""

    def usage(self, usage: Usage) -> bytes:
        """Gives the chunk with the usage; empty when it was not asked for."""


@cache
def tables(kind: type[GrpcEngine]) -> FieldTable:
    """Gives the field table of a protocol."""
    return FieldTable(field_table(kind.service.methods_by_name["Generate"].output_type))


class NativeChat:
    """One engine call. `answered` turns true with the engine's first message."""

    def __init__(self, engine: GrpcEngine, request: EngineRequest, *, job: Job, model: ServedModel, frame: ChatFrame, write: Write) -> None:
        assert model.vocabulary is not None
        self._engine = engine
        self._request = request
        self.write = write
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._sink = ChatSink(
            tables(type(engine)),
            model.vocabulary,
            StopStrings(job.stops.strings) if job.stops.strings else None,
            choices=request.sampling.n,
            ends=request.stop_token_ids,
            reported=job.stops.token_ids,
            min_tokens=request.sampling.min_tokens,
            skip_special=job.skip_special_tokens,
            include_stop=job.stops.include_in_output,
            prompt_tokens=len(request.prompt_ids),
            prefix=frame.prefix,
            tail=frame.tail,
            write=self._pass,
            done=self._done,
        )

    @property
    def answered(self) -> bool:
        """True once the engine has sent anything."""
        return self._sink.answered

    async def run(self, *, deadline_s: float, aborts: Aborts) -> Usage:
        """Returns when every choice is finished and its chunks are written. Leaving early aborts the request at the engine."""
        timeout_s = deadline_s - time.monotonic()
        if timeout_s <= 0:
            raise EngineTimeout("the request's deadline passed before an engine was asked")
        call = await self._engine.generate_into(self._sink, self._request, timeout_s=timeout_s)
        timer = self._loop.call_later(timeout_s, self._expire)
        whole = False
        try:
            await self._over
            whole = self._sink.whole
        finally:
            timer.cancel()
            leave_call(call, whole=whole)
            if not whole or self._sink.cut:
                aborts.send(self._engine, self._request.request_id)
        prompt, completion, cached = self._sink.usage
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)

    def _pass(self, chunk: bytes) -> None:
        if not self.write(chunk):
            self._fail(ClientGone("the client left"))

    def _done(self, error: str, status: int, text: str) -> None:
        if error and status:  # the engine said that it failed
            self._fail(EngineError(error))
        elif status:
            self._fail(error_of_call(status, text))
        elif error:
            self._fail(EngineProtocol(error))
        elif not self._over.done():
            self._over.set_result(None)

    def _expire(self) -> None:
        self._fail(EngineTimeout("the engine did not answer in time"))

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)
