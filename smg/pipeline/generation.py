"""Generate stage: one engine call, its deltas fed to one stream machine a choice, until every choice is finished or somebody leaves."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from smg.engine import Engine, EngineDelta, EngineRequest
from smg.errors import EngineError, EngineProtocol, EngineTimeout, SmgError
from smg.parser import Parser
from smg.pipeline.deadlines import Deadlines
from smg.pipeline.stream import StreamMachine, StreamSpec, token_logprobs
from smg.pipeline.tending import Tended, Wait
from smg.tokenizer import Decoder
from smg.types.event import Event, PromptLogprobs, Usage

__all__ = ["Aborts", "Generation"]

log = logging.getLogger(__name__)


class Aborts:
    """Abort calls under way. They outlive the request that they end, never the worker; each has the driver's own deadline."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, engine: Engine, request_id: str, *, after_s: float = 0.0) -> None:
        """Starts an Abort, in `after_s`, without waiting for it, so that it can be called from cancelled code."""
        task = asyncio.get_running_loop().create_task(self._abort(engine, request_id, after_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Waits for those under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    async def _abort(engine: Engine, request_id: str, after_s: float) -> None:
        if after_s:
            await asyncio.sleep(after_s)
        try:
            await engine.abort(request_id)
        except EngineError as error:
            log.debug("abort not delivered", extra={"request_id": request_id, "error": error.code})


class Generation(Tended):
    """One engine call. `answered` turns true with the engine's first message: from then on the request must not be sent elsewhere."""

    def __init__(
        self,
        engine: Engine,
        request: EngineRequest,
        *,
        spec: StreamSpec,
        make_decoder: Callable[[], Decoder],
        make_parser: Callable[[], Parser | None],
        deadlines: Deadlines,
        aborts: Aborts,
    ) -> None:
        self.answered = False
        self._engine = engine
        self._request = request
        self._spec = spec
        self._deadlines = deadlines
        self._aborts = aborts
        self._wait = Wait()
        self._cached: dict[int, int] = {}
        self._prompt_tokens = len(request.prompt_ids)
        self._prompt_scored = request.prompt_logprobs is None
        self._machines = [StreamMachine(spec, choice=i, decoder=make_decoder(), parser=make_parser()) for i in range(request.sampling.n)]

    async def batches(self, deadline_s: float) -> AsyncIterator[list[Event]]:
        """Yields the events of each engine message, at last `Usage`. Leaving early aborts the request at the engine."""
        timeout_s = deadline_s - time.monotonic()
        if timeout_s <= 0:
            raise EngineTimeout("the request's deadline passed before an engine was asked")
        finished = False
        tick = self._deadlines.add(self, deadline_s)
        try:
            async with aclosing(self._engine.generate(self._request, timeout_s=timeout_s)) as deltas:  # type: ignore[type-var]
                while (delta := await self._wait.of(anext(deltas, None))) is not None:
                    self.answered = True
                    events = self._take(delta)
                    finished = all(machine.done for machine in self._machines)
                    if events:
                        yield events
                    if finished:
                        break
            if not finished:
                raise EngineProtocol("the engine ended its answer without finishing it")
        finally:
            self._deadlines.discard(self, tick)
            if not finished or any(machine.cut for machine in self._machines):
                self._aborts.send(self._engine, self._request.request_id)
        yield [self._usage()]

    def waits_for(self) -> str:
        """See `Tended`."""
        return "" if self.answered else self._engine.url

    def progress(self) -> int:
        """See `Tended`: the tokens so far."""
        return sum(machine.completion_tokens for machine in self._machines) if self._wait.open and self._request.stream else 0

    def fail(self, error: SmgError) -> None:
        """See `Tended`."""
        self._wait.fail(error)

    def _take(self, delta: EngineDelta) -> list[Event]:
        if not 0 <= delta.choice < len(self._machines):
            raise EngineProtocol("the engine answered for a choice that was not asked for")
        self._prompt_tokens = delta.prompt_tokens or self._prompt_tokens
        self._cached[delta.choice] = max(delta.cached_tokens, self._cached.get(delta.choice, 0))
        events: list[Event] = []
        if delta.prompt_logprobs is not None and not self._prompt_scored:
            self._prompt_scored = True
            events.append(PromptLogprobs(tuple(token_logprobs(delta.prompt_logprobs, self._spec.tokenizer))))
        return events + self._machines[delta.choice].feed(delta)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=sum(machine.completion_tokens for machine in self._machines),
            cached_tokens=min(self._cached.get(0, 0), self._prompt_tokens),
            reasoning_tokens=sum(machine.reasoning_tokens for machine in self._machines),
        )
