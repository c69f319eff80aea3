"""The pipeline: a `Job` in, lists of `Event` out. This file names every stage in order; each stage is a file beside it.

    resolve    models.py      name → loaded model (tokenizer, template, parsers, context length)
    prepare    prompt.py      messages or text → prompt text, token ids; refuses what cannot fit
    plan       plan.py        defaults filled in → one engine request
    route      route.py       policy → engine; its load is counted from here on
    generate   generation.py  engine call → deltas
    stream     stream.py      per choice: detokenize, stop, reasoning, tool calls → events

Called by `smg.api`; knows neither surface nor engine protocol.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

from smg.config import Config
from smg.engine import Engine, EngineRequest
from smg.errors import EngineUnavailable
from smg.parser import build, marks
from smg.pipeline.generation import Aborts, Generation
from smg.pipeline.models import ModelDirectory, ServedModel
from smg.pipeline.plan import engine_request
from smg.pipeline.prompt import Prompt, prepare
from smg.pipeline.route import Router
from smg.pipeline.stream import StreamSpec
from smg.policy import POLICIES
from smg.types.event import Event, Started
from smg.types.job import ChatInput, Job, TextInput, TokenInput
from smg.types.json import JsonObject
from smg.worker import EnginePool, EngineRecord, WorkerView

__all__ = ["Pipeline"]

log = logging.getLogger(__name__)

# Engines tried for one request, all before the first of them has answered anything.
ATTEMPTS = 3


class Pipeline:
    """Runs jobs for one data worker."""

    def __init__(self, config: Config, *, models: ModelDirectory, view: WorkerView, pool: EnginePool) -> None:
        self._models = models
        self._view = view
        self._pool = pool
        self._router = Router(view, make_policy=POLICIES.get(config.routing.policy))
        self._aborts = Aborts()
        self._allow_special = config.model.allow_special_tokens_in_text

    async def prompt(self, model: str, source: ChatInput | TextInput | TokenInput) -> Prompt:
        """Renders and tokenizes without generating, as `/v1/tokenize` needs it."""
        return await prepare(source, await self._models.get(model), allow_special=self._allow_special)

    async def run(self, job: Job) -> AsyncIterator[list[Event]]:
        """Yields `Started` at once, then the events of each engine message. Closing the iterator aborts the request at the engine.

        Raises SmgError at any step; before an engine has answered, a request whose engine is gone moves to another one by itself.
        """
        model = await self._models.get(job.model)
        prompt = await prepare(job.input, model, allow_special=self._allow_special)
        avoid: set[int] = set()
        while True:
            record, lease = self._router.route(model.id, prompt_ids=prompt.ids, routing=job.routing, avoid=frozenset(avoid))
            generation = None
            try:
                engine, request = await self._submit(job, model, prompt, record)
                generation = self._generation(job, model, prompt, engine, request)
                if not avoid:
                    yield [Started(engine=record.url, prompt_ids=prompt.ids, prompt_text=prompt.text)]
                async with aclosing(generation.run(deadline_s=job.deadline_s)) as batches:  # type: ignore[type-var]
                    async for events in batches:
                        yield events
                return
            except EngineUnavailable as error:
                self._view.suspect(record.slot)
                avoid.add(record.slot)
                if (generation and generation.answered) or len(avoid) >= min(ATTEMPTS, len(self._view.engines(model.id))):
                    raise
                log.info("engine unavailable, trying another", extra={"request_id": job.request_id, "error": error.code})
            finally:
                lease.release()

    async def close(self) -> None:
        """Waits for the aborts under way."""
        await self._aborts.close()

    async def _submit(self, job: Job, model: ServedModel, prompt: Prompt, record: EngineRecord) -> tuple[Engine, EngineRequest]:
        engine = await self._pool.get(record)
        request = engine_request(job, model=model, prompt=prompt, info=record.info)
        engine.check(request)
        return engine, request

    def _generation(self, job: Job, model: ServedModel, prompt: Prompt, engine: Engine, request: EngineRequest) -> Generation:
        reasoning, tool, tools, stream_reasoning = _parsing(job, model)
        shown = (model.tokenizer.token_id(mark) for mark in marks(reasoning, tool))
        keep = frozenset(token_id for token_id in shown if token_id is not None)
        spec = StreamSpec(
            tokenizer=model.tokenizer,
            stop_strings=job.stops.strings,
            include_stop=job.stops.include_in_output,
            end_ids=frozenset(request.stop_token_ids),
            reported_end_ids=frozenset(job.stops.token_ids),
            min_tokens=job.sampling.min_tokens,
            logprobs=job.logprobs.output is not None,
            stream_reasoning=stream_reasoning,
            starts_thinking=prompt.thinking and reasoning is not None,
        )
        return Generation(
            engine,
            request,
            spec=spec,
            make_decoder=lambda: model.tokenizer.decoder(
                skip_special_tokens=job.skip_special_tokens, keep=keep, prompt_tail=prompt.ids[-8:]
            ),
            make_parser=lambda: build(reasoning=reasoning, tool=tool, tools=tools, in_think=spec.starts_thinking),
            aborts=self._aborts,
        )


def _parsing(job: Job, model: ServedModel) -> tuple[str | None, str | None, tuple[JsonObject, ...], bool]:
    """Which parsers read this job's output: none for plain completions, no tool parser without tools."""
    if not isinstance(job.input, ChatInput):
        return None, None, (), True
    chat = job.input
    tools = () if chat.tool_choice == "none" else chat.tools
    return model.reasoning_parser if chat.separate_reasoning else None, model.tool_parser if tools else None, tools, chat.stream_reasoning
