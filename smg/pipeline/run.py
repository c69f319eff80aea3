"""The pipeline: a `Job` in, lists of `Event` out. This file names every stage in order; each stage is a file beside it.

    resolve    models.py      name → loaded model (tokenizer, template, parsers, context length)
    prepare    prompt.py      messages or text → prompt text, token ids; refuses what cannot fit
    plan       plan.py        defaults filled in → one engine request
    route      route.py       policy → engine; its load is counted from here on
    generate   generation.py  engine call → deltas
    stream     stream.py      per choice: detokenize, stop, reasoning, tool calls → events

`native.py` is the last two for streamed chats that need no parser, without Python objects. Called by `smg.api`; knows neither surface nor
engine protocol.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from msgspec import Struct

from smg.config import Config
from smg.engine import Engine, EngineRequest, GrpcEngine
from smg.errors import ClientGone, EngineUnavailable, SmgError
from smg.obs.metrics import Meter
from smg.obs.requests import RequestMeter
from smg.parser import build, marks
from smg.pipeline.forced import forced_call
from smg.pipeline.generation import Aborts, Generation
from smg.pipeline.models import ModelDirectory, ServedModel
from smg.pipeline.native import ChatRenderer, NativeChat, Write
from smg.pipeline.plan import engine_request
from smg.pipeline.prompt import Prompt, prepare
from smg.pipeline.route import Router
from smg.pipeline.stream import StreamSpec
from smg.policy import POLICIES
from smg.types.event import Event, Started, Usage
from smg.types.job import ChatInput, Constraint, Job, TextInput, TokenInput
from smg.types.json import JsonObject
from smg.worker import EnginePool, EngineRecord, WorkerView

__all__ = ["Pipeline"]

log = logging.getLogger(__name__)

# Engines tried for one request, all before the first of them has answered anything.
ATTEMPTS = 3


class Parsing(Struct, frozen=True, kw_only=True):
    """Which parsers read a job's output, and what the engine is held to. `named`: the tool whose bare arguments the output is."""

    reasoning: str | None = None
    tool: str | None = None
    tools: tuple[JsonObject, ...] = ()
    stream_reasoning: bool = True
    named: str | None = None
    constraint: Constraint | None = None


class Submission(Struct, kw_only=True):
    """One job on its way: what stays the same, and the engine of the attempt at hand. `answered` ends the attempts."""

    job: Job
    model: ServedModel
    prompt: Prompt
    parsing: Parsing
    avoid: set[int]
    meter: RequestMeter
    done: bool = False
    answered: bool = False


class Attempt(Struct, frozen=True, kw_only=True):
    """One engine, chosen and counted."""

    record: EngineRecord
    engine: Engine
    request: EngineRequest


class Pipeline:
    """Runs jobs for one data worker."""

    def __init__(self, config: Config, *, models: ModelDirectory, view: WorkerView, pool: EnginePool, meter: Meter) -> None:
        self._models = models
        self._view = view
        self._pool = pool
        self._router = Router(view, make_policy=POLICIES.get(config.routing.policy))
        self._meter = meter
        self._aborts = Aborts()
        self._allow_special = config.model.allow_special_tokens_in_text

    async def prompt(self, model: str, source: ChatInput | TextInput | TokenInput) -> Prompt:
        """Renders and tokenizes without generating, as `/v1/tokenize` needs it."""
        return await prepare(source, await self._models.get(model), allow_special=self._allow_special)

    async def run(self, job: Job) -> AsyncIterator[list[Event]]:
        """Yields `Started` at once, then the events of each engine message. Closing the iterator aborts the request at the engine.

        Raises SmgError at any step; before an engine has answered, a request whose engine is gone moves to another one by itself.
        """
        submission = await self._prepared(job)
        with metered(submission):
            while not submission.done:
                async with self._attempt(submission) as attempt:
                    if not submission.avoid:
                        yield [started(submission, attempt)]
                    async with aclosing(self._batches(submission, attempt)) as batches:  # type: ignore[type-var]
                        async for events in batches:
                            yield events
                    submission.done = True

    async def stream(self, job: Job, *, renderer: ChatRenderer, write: Write) -> None:
        """Writes the chunks of a streamed chat as they come, each wake-up's in one `write`; natively where the output is only text.

        Raises as `run` does, and ClientGone once `write` gives False.
        """
        submission = await self._prepared(job)
        native = submission.model.vocabulary is not None and plain(submission)
        with metered(submission):
            while not submission.done:
                async with self._attempt(submission) as attempt:
                    if native and isinstance(attempt.engine, GrpcEngine) and attempt.engine.native:
                        await self._stream_natively(submission, attempt, attempt.engine, renderer, write)
                    else:
                        await self._stream_events(submission, attempt, renderer, write)
                    submission.done = True

    async def close(self) -> None:
        """Waits for the aborts under way."""
        await self._aborts.close()

    async def _prepared(self, job: Job) -> Submission:
        model = await self._models.get(job.model)
        prompt = await prepare(job.input, model, allow_special=self._allow_special)
        meter = RequestMeter(self._meter, model=model.id, endpoint=job.surface, streaming=job.stream)
        return Submission(job=job, model=model, prompt=prompt, parsing=parsing_of(job, model), avoid=set(), meter=meter)

    @asynccontextmanager
    async def _attempt(self, submission: Submission) -> AsyncIterator[Attempt]:
        """Chooses an engine and counts the request there while the body runs. An engine that is gone before it answered is passed over."""
        job, model, prompt, avoid = submission.job, submission.model, submission.prompt, submission.avoid
        record, lease = self._router.route(model.id, prompt_ids=prompt.ids, routing=job.routing, avoid=frozenset(avoid))
        try:
            engine = await self._pool.get(record)
            request = engine_request(job, model=model, prompt=prompt, info=record.info, constraint=submission.parsing.constraint)
            engine.check(request)
            yield Attempt(record=record, engine=engine, request=request)
        except EngineUnavailable as error:
            self._view.suspect(record.slot)
            avoid.add(record.slot)
            if submission.answered or len(avoid) >= min(ATTEMPTS, len(self._view.engines(model.id))):
                raise
            log.info("engine unavailable, trying another", extra={"request_id": job.request_id, "error": error.code})
        finally:
            lease.release()

    async def _stream_natively(
        self, submission: Submission, attempt: Attempt, engine: GrpcEngine, renderer: ChatRenderer, write: Write
    ) -> None:
        job = submission.job

        def first(chunk: bytes) -> bool:
            submission.meter.answered()
            chat.write = write  # the others need not pass here
            return write(chunk)

        chat = NativeChat(engine, attempt.request, job=job, model=submission.model, frame=renderer.frame, write=first)
        try:
            usage = await chat.run(deadline_s=job.deadline_s, aborts=self._aborts)
        finally:
            submission.answered = chat.answered
        submission.meter.finish(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        if chunk := renderer.usage(usage):
            write(chunk)

    async def _stream_events(self, submission: Submission, attempt: Attempt, renderer: ChatRenderer, write: Write) -> None:
        async with aclosing(self._batches(submission, attempt)) as batches:  # type: ignore[type-var]
            async for events in batches:
                if (chunk := renderer.feed(events)) and not write(chunk):
                    raise ClientGone("the client left")

    async def _batches(self, submission: Submission, attempt: Attempt) -> AsyncIterator[list[Event]]:
        generation = self._generation(submission, attempt.engine, attempt.request)
        async with aclosing(generation.run(deadline_s=submission.job.deadline_s)) as batches:  # type: ignore[type-var]
            async for events in batches:
                submission.answered = True
                submission.meter.answered()
                if isinstance(events[-1], Usage):
                    submission.meter.finish(prompt_tokens=events[-1].prompt_tokens, completion_tokens=events[-1].completion_tokens)
                yield events

    def _generation(self, submission: Submission, engine: Engine, request: EngineRequest) -> Generation:
        job, model, prompt = submission.job, submission.model, submission.prompt
        parsing = submission.parsing
        shown = (model.tokenizer.token_id(mark) for mark in marks(parsing.reasoning, parsing.tool))
        keep = frozenset(token_id for token_id in shown if token_id is not None)
        spec = StreamSpec(
            tokenizer=model.tokenizer,
            stop_strings=job.stops.strings,
            include_stop=job.stops.include_in_output,
            end_ids=frozenset(request.stop_token_ids),
            reported_end_ids=frozenset(job.stops.token_ids),
            min_tokens=job.sampling.min_tokens,
            logprobs=job.logprobs.output is not None,
            stream_reasoning=parsing.stream_reasoning,
            starts_thinking=prompt.thinking and parsing.reasoning is not None,
        )
        return Generation(
            engine,
            request,
            spec=spec,
            make_decoder=lambda: model.tokenizer.decoder(
                skip_special_tokens=job.skip_special_tokens, keep=keep, prompt_tail=prompt.ids[-8:]
            ),
            make_parser=lambda: build(
                reasoning=parsing.reasoning,
                tool=parsing.tool,
                tools=parsing.tools,
                in_think=spec.starts_thinking,
                named=parsing.named,
            ),
            aborts=self._aborts,
        )


@contextmanager
def metered(submission: Submission) -> Iterator[None]:
    """Counts how a routed request ends, where it does not end well."""
    try:
        yield
    except SmgError as error:
        submission.meter.fail(error.code)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        submission.meter.fail(ClientGone.code)
        raise


def started(submission: Submission, attempt: Attempt) -> Started:
    """Gives the first event of a job."""
    return Started(engine=attempt.record.url, prompt_ids=submission.prompt.ids, prompt_text=submission.prompt.text)


def plain(submission: Submission) -> bool:
    """True when the output is text and nothing else."""
    parsing, logprobs = submission.parsing, submission.job.logprobs
    return parsing.reasoning is None and parsing.tool is None and logprobs.output is None and logprobs.prompt is None


def parsing_of(job: Job, model: ServedModel) -> Parsing:
    """No parser for plain completions, no tool parser without tools, no reasoning parser for who wants the text as it is."""
    if not isinstance(job.input, ChatInput):
        return Parsing(constraint=job.constraint)
    chat = job.input
    forced = forced_call(chat, tool_parser=model.tool_parser)
    tool = forced.tool if forced else model.tool_parser
    tools = () if chat.tool_choice == "none" or tool is None else chat.tools
    return Parsing(
        reasoning=model.reasoning_parser if chat.separate_reasoning else None,
        tool=tool if tools else None,
        tools=tools,
        stream_reasoning=chat.stream_reasoning,
        named=forced.named if forced else None,
        constraint=forced.constraint if forced else job.constraint,
    )
