"""The pipeline: a `Job` in, lists of `Event` out. This file names every stage in order; each stage is a file beside it.

    resolve    models.py      name → loaded model (tokenizer, template, parsers, context length)
    prepare    prompt.py      messages or text → prompt text, token ids; refuses what cannot fit
    plan       plan.py        defaults filled in → one engine request
    route      route.py       policy → engine; its load is counted from here on
    attempt    attempts.py    engine by engine until one answers; each end is told to the engine's breaker
    pair       pairs.py       where prefill and decode are computed apart: the other engine
    generate   generation.py  engine call → deltas
    stream     stream.py      per choice: detokenize, stop, reasoning, tool calls → events

`native.py` is the last two for engines of the native data plane: without Python objects up to the parsers, and up to the client's bytes
where a streamed chat needs none. Called by `smg.api`; knows neither surface nor engine protocol.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import partial

from msgspec import Struct, structs

from smg.config import Config
from smg.engine import Engine
from smg.errors import ClientGone, EngineError, SmgError
from smg.obs.metrics import Meter
from smg.obs.requests import RequestMeter, RequestMeters
from smg.pipeline.attempts import Attempt, Attempts, Tries
from smg.pipeline.deadlines import Deadlines
from smg.pipeline.forced import is_forced, take_tags
from smg.pipeline.generation import Aborts, Generation
from smg.pipeline.models import ModelDirectory, ServedModel
from smg.pipeline.native import Asked, ChatRenderer, NativeCall, NativeChat, NativeEvents, NativeText, Take, TakeText, Write, natively
from smg.pipeline.pairs import Pair, Pairs
from smg.pipeline.parsing import Parsing, parsing_of
from smg.pipeline.plan import engine_request
from smg.pipeline.prompt import Prompt, prepare
from smg.pipeline.route import Router
from smg.pipeline.stream import StreamSpec
from smg.pipeline.tending import Tender
from smg.types.account import ACCOUNT, Charge
from smg.types.event import Event, Started, Usage
from smg.types.job import ChatInput, Job, TextInput, TokenInput
from smg.worker import EnginePool, Role, WorkerView

__all__ = ["Pipeline"]


class Submission(Struct, kw_only=True):
    """One job on its way: what stays the same whichever engine is tried. `pair`: the engines of the last attempt, where there are two."""

    job: Job
    model: ServedModel
    prompt: Prompt
    parsing: Parsing
    meter: RequestMeter
    charge: Charge | None = None
    answered: bool = False
    pair: Pair | None = None

    def fail(self, error: BaseException) -> None:
        """The answer ended with an error, or its reader left."""
        if self.charge is not None:
            self.charge.drop(answered=self.answered)
        left = isinstance(error, asyncio.CancelledError | GeneratorExit)
        self.meter.fail(error.code if isinstance(error, SmgError) else ClientGone.code if left else SmgError.code)

    def count(self, usage: Usage) -> None:
        """The answer is whole."""
        if self.charge is not None:
            self.charge.settle(usage.prompt_tokens + usage.completion_tokens)
        self.meter.finish(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)


class Turn(Struct):
    """One attempt's part of the way: the engine, and what it is asked."""

    submission: Submission
    attempt: Attempt
    engine: Engine
    asked: Asked
    pair: Pair | None = None


@types.coroutine
def together() -> Generator[None, None, None]:
    """Lets the requests that came together go the next part of their way together: what a stage touches is still in the processor's caches
    for the next of them, which a whole request, one after the other, would drive out (4 to 15 % less time a request at 32 clients).
    """
    yield


def _feed(renderer: ChatRenderer, write: Write, events: list[Event]) -> None:
    if (chunk := renderer.feed(events)) and not write(chunk):
        raise ClientGone("the client left")


# What is done with one engine; gives the bytes that are left to be written.
Work = Callable[[Turn], Awaitable[bytes]]


class Pipeline:
    """Runs jobs for one data worker."""

    def __init__(self, config: Config, *, models: ModelDirectory, view: WorkerView, pool: EnginePool, meter: Meter) -> None:
        self._models = models
        self._view = view
        self._pool = pool
        self._router = Router(view, config=config.routing, meter=meter)
        self._attempts = Attempts(view, config=config.resilience, meter=meter)
        self._meters = RequestMeters(meter)
        self._aborts = Aborts()
        self._pairs = Pairs(router=self._router, pool=pool, view=view, aborts=self._aborts, meter=meter)
        self._deadlines = Deadlines()
        self._tender = Tender(idle_s=config.engines.stream_idle_timeout_s)
        self._under_way = 0
        self._allow_special = config.model.allow_special_tokens_in_text
        self._tags = config.model.structural_tags

    async def prompt(self, model: str, source: ChatInput | TextInput | TokenInput) -> Prompt:
        """Renders and tokenizes without generating, as `/v1/tokenize` needs it."""
        return await prepare(source, await self._models.get(model), allow_special=self._allow_special)

    async def run(self, job: Job) -> AsyncIterator[list[Event]]:
        """Yields `Started` at once, then events as they come, `Usage` last. Closing the iterator aborts the request at the engine.

        Raises SmgError at any step; before an engine has answered, a request whose engine is gone moves to another one by itself.
        """
        submission = await self._prepared(job)
        tries = self._tries(submission)
        try:
            async for attempt in tries:
                with attempt:
                    turn = await self._turn(submission, attempt)
                    if tries.count == 1:
                        yield [Started(engine=attempt.record.url, prompt_ids=submission.prompt.ids, prompt_text=submission.prompt.text)]
                    try:
                        async with aclosing(self._batches(turn)) as batches:  # type: ignore[type-var]
                            async for events in batches:
                                yield events
                    except EngineError as error:
                        await self._pairs.judge(error, pair=turn.pair, attempt=attempt)
                        raise
        except BaseException as error:
            self._give_up(submission, error)
            raise

    def whole(self, job: Job, *, take: Take, take_text: TakeText | None = None) -> Awaitable[object]:
        """Calls `take` with the events of the answer, `Usage` last; once only where the engine is native and the job does not stream.

        With `take_text`, an answer of one choice that is only text and thoughts goes there instead, as JSON in OpenAI's shape. Returns when
        the answer is whole. Raises as `run` does.
        """
        return self._complete(job, partial(self._take_all, take=take, take_text=take_text))

    def stream(self, job: Job, write: Write, *, renderer: ChatRenderer) -> Awaitable[bytes]:
        """Writes the chunks of a streamed chat as they come, each wake-up's in one `write`; natively where the output is only text.

        Gives the last chunks unwritten, so that they can leave together with the end of the response. Raises as `run` does, and ClientGone
        once `write` gives False.
        """
        return self._complete(job, partial(self._write_all, renderer=renderer, write=write))

    def tend(self) -> None:
        """Sees to requests that wait in vain; called a few times a second. Those that nothing has come for leave an engine that does not
        answer checks any more, and may go to others; those whose engine falls silent in mid-stream end.
        """
        self._tender.look(lambda: [*self._deadlines.calls(), *self._pairs.parts], lost=self._view.lost())

    async def close(self) -> None:
        """Waits for the aborts under way."""
        self._deadlines.close()
        await self._aborts.close()

    async def _prepared(self, job: Job) -> Submission:
        """Makes the prompt; see `together` for the pauses here and below."""
        if self._under_way > 1:
            await together()
        model = await self._models.get(job.model)
        prompt = await prepare(job.input, model, allow_special=self._allow_special, content=job.content)
        if self._under_way > 1:
            await together()
        forced = isinstance(job.input, ChatInput) and bool(job.input.tools) and is_forced(job.input)
        tags = forced and self._tags and take_tags(record.runtime for record in self._view.engines(model.id))
        parsing = parsing_of(job, model, tags=tags)
        account = ACCOUNT.get()
        charge = None if account is None else await account.charge(model=model.id, prompt_tokens=len(prompt.ids), sampling=job.sampling)
        meter = self._meters.start(model=model.id, endpoint=job.surface, streaming=job.stream)
        return Submission(job=job, model=model, prompt=prompt, parsing=parsing, meter=meter, charge=charge)

    async def _complete(self, job: Job, work: Work) -> bytes:
        """Does the work with one engine after another, until one has answered. Few coroutines: each is gone through at every wake-up."""
        self._under_way += 1
        submission: Submission | None = None
        try:
            submission = await self._prepared(job)
            async for attempt in self._tries(submission):
                with attempt:
                    turn = await self._turn(submission, attempt)
                    try:
                        return await work(turn)
                    except EngineError as error:
                        await self._pairs.judge(error, pair=turn.pair, attempt=attempt)
                        raise
        except BaseException as error:
            if submission is not None:
                self._give_up(submission, error)
            raise
        finally:
            self._under_way -= 1
        raise AssertionError("attempts end with an answer or an error")

    def _give_up(self, submission: Submission, error: BaseException) -> None:
        submission.fail(error)
        if submission.pair is not None:
            self._pairs.give_up(submission.pair, request_id=submission.job.request_id)

    def _tries(self, submission: Submission) -> Tries:
        job, prompt = submission.job, submission.prompt
        role: Role = "decode" if self._view.is_paired(submission.model.id) else "regular"
        route = partial(self._router.route, submission.model.id, prompt_ids=prompt.ids, routing=job.routing, role=role)
        return self._attempts.of(route, endpoint=job.surface, deadline_s=job.deadline_s, request_id=job.request_id)

    async def _turn(self, submission: Submission, attempt: Attempt) -> Turn:
        submission.meter.on_answer = attempt.lease.answered
        engine = await self._pool.get(attempt.record)
        if attempt.record.role == "regular":
            return Turn(submission, attempt, engine, self._asked(submission, attempt, engine))
        job, ids = submission.job, submission.prompt.ids
        pair = await self._pairs.make(engine, attempt, job=job, prompt_ids=ids, before=submission.pair)
        submission.pair = pair
        return Turn(submission, attempt, pair, self._asked(submission, attempt, pair), pair)

    def _asked(self, submission: Submission, attempt: Attempt, engine: Engine) -> Asked:
        job, model, prompt, parsing = submission.job, submission.model, submission.prompt, submission.parsing
        record = attempt.record
        rank = record.rank
        if rank is None and attempt.lease.rank >= 0 and engine.features.data_parallel_rank:
            rank = attempt.lease.rank
        request = engine_request(job, model=model, prompt=prompt, info=record.info, constraint=parsing.constraint, rank=rank)
        computed = submission.pair is not None and submission.pair.prefill.unclaimed is not None  # under the request's own id
        if attempt.tries.count > 1 and not computed:  # an abort of an attempt before, still on its way, must not end this one
            request = structs.replace(request, request_id=f"{request.request_id}-{attempt.tries.count}")
        engine.check(request)
        if request.reasoning_first and not engine.features.reasoning_first:
            request = structs.replace(request, reasoning_first=False)  # bound from its first token, the model does not think
        return Asked(job, model, prompt, parsing, request)

    async def _take_all(self, turn: Turn, *, take: Take, take_text: TakeText | None = None) -> bytes:
        engine, asked = turn.engine, turn.asked
        if not natively(engine, asked.job, asked.model):
            async with aclosing(self._batches(turn)) as batches:  # type: ignore[type-var]
                async for events in batches:
                    take(events)
            return b""

        if take_text is not None and asked.parsing.by_machine and asked.request.sampling.n == 1:
            text = NativeText(engine, asked, deadlines=self._deadlines, aborts=self._aborts)
            usage = await self._run_natively(turn, text)
            take_text(text.choice, usage)
            return b""

        def told(events: list[Event]) -> None:
            turn.submission.meter.answered()
            take(events)

        call = NativeEvents(engine, asked, take=told, deadlines=self._deadlines, aborts=self._aborts)
        await self._run_natively(turn, call)
        return b""

    async def _write_all(self, turn: Turn, *, renderer: ChatRenderer, write: Write) -> bytes:
        engine, asked = turn.engine, turn.asked
        if not (asked.parsing.by_machine and natively(engine, asked.job, asked.model)):
            await self._take_all(turn, take=partial(_feed, renderer, write))
            return renderer.end()

        chat = NativeChat(
            engine,
            asked,
            frame=renderer.frame,
            write=write,
            begun=turn.submission.meter.answered,
            deadlines=self._deadlines,
            aborts=self._aborts,
        )
        usage = await self._run_natively(turn, chat)
        return chat.last + renderer.usage(usage) + renderer.end()

    async def _run_natively(self, turn: Turn, call: NativeCall) -> Usage:
        submission = turn.submission
        try:
            usage = await call.run(submission.job.deadline_s)
        finally:
            turn.attempt.answered = submission.answered = call.answered
        submission.meter.answered()
        submission.count(usage)
        return usage

    async def _batches(self, turn: Turn) -> AsyncIterator[list[Event]]:
        call: NativeEvents | Generation
        engine, asked, submission = turn.engine, turn.asked, turn.submission
        if natively(engine, asked.job, asked.model):
            call = NativeEvents(engine, asked, deadlines=self._deadlines, aborts=self._aborts)
        else:
            call = self._generation(engine, asked)
        try:
            async with aclosing(call.batches(submission.job.deadline_s)) as batches:  # type: ignore[type-var]
                async for events in batches:
                    submission.meter.answered()
                    if isinstance(events[-1], Usage):
                        submission.count(events[-1])
                    yield events
        finally:
            turn.attempt.answered = submission.answered = call.answered

    def _generation(self, engine: Engine, asked: Asked) -> Generation:
        job, model, prompt, parsing = asked.job, asked.model, asked.prompt, asked.parsing
        keep = parsing.kept(model.tokenizer)
        spec = StreamSpec(
            tokenizer=model.tokenizer,
            stop_strings=job.stops.strings,
            include_stop=job.stops.include_in_output,
            end_ids=frozenset(asked.request.stop_token_ids),
            reported_end_ids=frozenset(job.stops.token_ids),
            min_tokens=job.sampling.min_tokens,
            logprobs=job.logprobs.output is not None,
            stream_reasoning=parsing.stream_reasoning,
            starts_thinking=asked.thinking,
        )
        return Generation(
            engine,
            asked.request,
            spec=spec,
            make_decoder=lambda: model.tokenizer.decoder(
                skip_special_tokens=job.skip_special_tokens, keep=keep, prompt_tail=prompt.ids[-8:]
            ),
            make_parser=lambda: parsing.parser(in_think=asked.thinking, native=False),
            deadlines=self._deadlines,
            aborts=self._aborts,
        )
