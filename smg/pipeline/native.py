"""Generate and stream stages of the native data plane: one engine call, read by the native stream machine.

In: engine messages. Out, by the call's exit: finished chunks of a chat whose output is only text (`NativeChat`, the bytes that
`generation.py` and the surface's renderer give), or events for any surface (`NativeEvents`, the events of `generation.py`). Log
probabilities and vocabularies of other kinds take the other way. Called by `smg.pipeline.run`.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache, lru_cache
from typing import Protocol, TypedDict

from google.protobuf.descriptor import ServiceDescriptor
from msgspec import Struct

from smg._ext import Call, ChatSink, EventShapes, EventSink, FieldTable, Machine, NativeStream, StopStrings, ThoughtMarks
from smg.engine import CAUSE_S, Engine, EngineRequest, error_of_call, field_table, leave_call
from smg.errors import ClientGone, EngineError, EngineProtocol, EngineTimeout, SmgError
from smg.pipeline.deadlines import Deadlines
from smg.pipeline.generation import Aborts
from smg.pipeline.models import ServedModel
from smg.pipeline.parsing import Parsing
from smg.pipeline.prompt import Prompt
from smg.pipeline.tending import Tended
from smg.types.event import Content, Event, Finished, Reasoning, ToolArguments, ToolCall, Usage
from smg.types.job import Job

__all__ = [
    "Asked",
    "ChatFrame",
    "ChatRenderer",
    "NativeCall",
    "NativeChat",
    "NativeEvents",
    "NativeText",
    "Take",
    "TakeText",
    "Write",
    "natively",
]

# Takes one chunk; False when the client is gone.
Write = Callable[[bytes], bool]
# Takes the events of one wake-up.
Take = Callable[[list[Event]], object]
# Takes the one choice of a whole answer as JSON.
TakeText = Callable[[bytes, Usage], object]

EVENTS = EventShapes(
    content=Content,
    reasoning=Reasoning,
    call=ToolCall,
    arguments=ToolArguments,
    finished=Finished,
    new_id=lambda: f"call_{secrets.token_hex(12)}",
)
NOTHING_KEPT: frozenset[int] = frozenset()
# Batches that may wait for a reader before the engine is held back.
HELD_BATCHES = 16


class ChatFrame(Struct, frozen=True, kw_only=True):
    """How the surface frames a chunk: `prefix` up to the choices, `tail` after them. `hide_thoughts`: it does not tell them."""

    prefix: bytes
    tail: bytes
    hide_thoughts: bool = False


class ChatRenderer(Protocol):
    """A surface's way to say events; `frame` is what the native way needs of it."""

    @property
    def frame(self) -> ChatFrame:
        """Gives the bytes around each chunk."""

    def feed(self, events: Sequence[Event]) -> bytes:
        """Gives the chunks of these events; empty when they say nothing to the client."""

    def usage(self, usage: Usage) -> bytes:
        """Gives the chunk with the usage; empty when it was not asked for."""

    def end(self) -> bytes:
        """Gives what closes a stream that went well."""


class Asked(Struct, frozen=True):
    """What one engine was asked for one job."""

    job: Job
    model: ServedModel
    prompt: Prompt
    parsing: Parsing
    request: EngineRequest

    @property
    def thinking(self) -> bool:
        """True when the output begins inside a thinking block: the prompt opened one, and no constraint binds the output inside it."""
        free = self.request.constraint is None or self.request.reasoning_first
        return self.prompt.thinking and self.parsing.reasoning is not None and free


class Options(TypedDict):
    """What every exit of the machine is made with."""

    choices: int
    ends: Sequence[int]
    reported: Sequence[int]
    min_tokens: int
    skip_special: bool
    include_stop: bool
    prompt_tokens: int
    done: Callable[[str, int, str], object]
    kept: frozenset[int]
    prompt_tail: Sequence[int]
    unary: bool
    marks: ThoughtMarks | None
    in_think: bool
    stream_thoughts: bool


def natively(engine: Engine, job: Job, model: ServedModel) -> bool:
    """True when the native machine can read the answer."""
    if model.vocabulary is None or job.logprobs.output is not None or job.logprobs.prompt is not None:
        return False
    return engine.native


@cache
def tables(service: ServiceDescriptor) -> FieldTable:
    """Gives the field table of a protocol."""
    return FieldTable(field_table(service.methods_by_name["Generate"].output_type))


@lru_cache(maxsize=8)
def automaton(strings: tuple[str, ...]) -> StopStrings | None:
    """Gives the automaton of these stop strings; the latest few are kept."""
    return StopStrings(strings) if strings else None


class NativeCall(Tended):
    """One engine call. `answered` turns true with the engine's first message. A subclass makes the machine with its exit."""

    machine: Machine

    def __init__(self, engine: Engine, request: EngineRequest, *, deadlines: Deadlines, aborts: Aborts) -> None:
        self._engine = engine
        self._request = request
        self._deadlines = deadlines
        self._aborts = aborts
        self._call: Call | None = None
        self._tick = 0
        self._over = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def answered(self) -> bool:
        """True once the engine has sent anything."""
        return self.machine.answered

    async def run(self, deadline_s: float) -> Usage:
        """Returns when every choice is finished and the exit has told all. Leaving early aborts the request at the engine."""
        await self._start(deadline_s)
        try:
            while not self._over:
                await self._next()
        finally:
            self._leave()
        return self._end()

    def waits_for(self) -> str:
        """See `Tended`."""
        return "" if self.answered else self._engine.url

    def progress(self) -> int:
        """See `Tended`: the tokens so far."""
        return self.machine.usage[1] if self._request.stream else 0

    def fail(self, error: SmgError) -> None:
        """See `Tended`."""
        self._fail(error)

    async def _start(self, deadline_s: float) -> None:
        timeout_s = deadline_s - time.monotonic()
        if timeout_s <= 0:
            raise EngineTimeout("the request's deadline passed before an engine was asked")
        self._call = await self._engine.generate_into(self.machine, self._request, timeout_s=timeout_s, failed=self._fail)
        self._tick = self._deadlines.add(self, deadline_s)

    def _next(self) -> "asyncio.Future[None]":
        """Gives the next thing that happens; a future by itself, since each coroutine more is gone through at every wake-up."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _leave(self) -> None:
        """Ends the call in any state."""
        self._deadlines.discard(self, self._tick)
        whole = self._over and self._error is None and self.machine.whole
        unheard = self._engine.patient and not self.answered
        if self._call is not None and not self.machine.over:
            leave_call(self._call, whole=whole or unheard)
        self._over = True  # what comes of a call that is left a moment is for nobody
        if not whole or self.machine.cut:
            self._aborts.send(self._engine, self._request.request_id, after_s=CAUSE_S if unheard else 0.0)

    def _end(self) -> Usage:
        """Gives the counts of an answer that is whole; raises what went wrong with one that is not."""
        if self._error is not None:
            raise self._error
        prompt, completion, cached = self.machine.usage
        reasoning = self.machine.reasoning_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, reasoning_tokens=reasoning)

    def _done(self, error: str, status: int, text: str) -> None:
        if error and status:  # the engine said that it failed
            self._fail(EngineError(error))
        elif status:
            self._fail(error_of_call(status, text))
        elif error:
            self._fail(EngineProtocol(error))
        else:
            self._over = True
            self._wake()

    def _fail(self, error: Exception) -> None:
        if not self._over:
            self._over, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _options(self, asked: Asked) -> Options:
        job, request = asked.job, asked.request
        return Options(
            choices=request.sampling.n,
            ends=request.stop_token_ids,
            reported=job.stops.token_ids,
            min_tokens=request.sampling.min_tokens,
            skip_special=job.skip_special_tokens,
            include_stop=job.stops.include_in_output,
            prompt_tokens=len(request.prompt_ids),
            done=self._done,
            kept=asked.parsing.kept(asked.model.tokenizer) if asked.parsing.read else NOTHING_KEPT,
            prompt_tail=asked.prompt.ids[-8:],
            unary=not request.stream,
            marks=asked.parsing.thought_marks,
            in_think=asked.thinking,
            stream_thoughts=asked.parsing.stream_reasoning,
        )


class NativeChat(NativeCall):
    """Writes chunks of text, each wake-up's in one `write`."""

    def __init__(
        self,
        engine: Engine,
        asked: Asked,
        *,
        frame: ChatFrame,
        write: Write,
        begun: Callable[[], object],
        deadlines: Deadlines,
        aborts: Aborts,
    ) -> None:
        super().__init__(engine, asked.request, deadlines=deadlines, aborts=aborts)
        assert asked.model.vocabulary is not None
        self._write = write
        self._begun: Callable[[], object] | None = begun
        stops = automaton(asked.job.stops.strings)
        self._sink = ChatSink(
            tables(engine.service),
            asked.model.vocabulary,
            stops,
            prefix=frame.prefix,
            tail=frame.tail,
            write=self._pass,
            hide_thoughts=frame.hide_thoughts,
            **self._options(asked),
        )
        self.machine = self._sink

    @property
    def last(self) -> bytes:
        """The chunks of the last wake-up, which are not written."""
        return self._sink.last

    def _pass(self, chunk: bytes) -> None:
        """Writes a chunk. Those after the first go straight into the client's stream, where `write` has a native one."""
        if self._over:
            return
        if not self._write(chunk):
            self._fail(ClientGone("the client left"))
        elif self._begun is not None:
            self._begun()
            self._begun = None
            stream = getattr(self._write, "stream", None)
            if isinstance(stream, NativeStream):
                self._sink.write_into(stream)


class NativeText(NativeCall):
    """Gives the one choice of an answer that is not streamed, as JSON in OpenAI's shape."""

    def __init__(self, engine: Engine, asked: Asked, *, deadlines: Deadlines, aborts: Aborts) -> None:
        super().__init__(engine, asked.request, deadlines=deadlines, aborts=aborts)
        assert asked.model.vocabulary is not None
        self._sink = ChatSink(
            tables(engine.service),
            asked.model.vocabulary,
            automaton(asked.job.stops.strings),
            prefix=b"",
            tail=b"",
            write=_never,
            whole=True,
            **self._options(asked),
        )
        self.machine = self._sink

    @property
    def choice(self) -> bytes:
        """The choice, once the answer is whole."""
        return self._sink.last


def _never(chunk: bytes) -> None:
    """A whole answer has no chunks."""


class NativeEvents(NativeCall):
    """Gives events, each wake-up's in one list and `Usage` last; those of an answer that is not streamed in one list, when it is whole.

    With `take`, `run` hands them over; without, `batches` gives them one by one, and holds the engine back while nobody takes them.
    """

    def __init__(self, engine: Engine, asked: Asked, *, deadlines: Deadlines, aborts: Aborts, take: Take | None = None) -> None:
        super().__init__(engine, asked.request, deadlines=deadlines, aborts=aborts)
        assert asked.model.vocabulary is not None
        self._take = take or self._hold
        self._held: deque[list[Event]] = deque()
        self._paused = False
        self._gathered: list[Event] = []
        self.machine = EventSink(
            tables(engine.service),
            asked.model.vocabulary,
            automaton(asked.job.stops.strings),
            take=self._tell if asked.job.stream else self._gathered.extend,
            shapes=EVENTS,
            parsers=asked.parsing.native_parsers(asked.request.sampling.n, in_think=asked.thinking),
            split=asked.parsing.by_token,
            gather=not asked.job.stream,
            **self._options(asked),
        )

    async def batches(self, deadline_s: float) -> AsyncIterator[list[Event]]:
        """Yields the events. Closing the iterator early aborts the request at the engine."""
        await self._start(deadline_s)
        try:
            while not self._over:
                while self._held:
                    yield self._held.popleft()
                self._resume()
                if not self._over:
                    await self._next()
        finally:
            self._leave()
        while self._held:
            yield self._held.popleft()
        self._end()
        yield self._held.popleft()

    def progress(self) -> int:
        """See `Tended`."""
        return 0 if self._paused else super().progress()

    def _end(self) -> Usage:
        usage = super()._end()
        events = self._gathered
        events.append(usage)
        self._take(events)
        return usage

    def _tell(self, events: list[Event]) -> None:
        if self._over:
            return
        try:
            self._take(events)
        except SmgError as error:
            self._fail(error)

    def _hold(self, events: list[Event]) -> None:
        self._held.append(events)
        if len(self._held) > HELD_BATCHES and self._call is not None and not self._paused:
            self._paused = True
            self._call.pause()
        self._wake()

    def _resume(self) -> None:
        if self._paused and self._call is not None:
            self._paused = False
            self._call.resume()
