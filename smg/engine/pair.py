"""Two engines that compute one request: the prompt at one, the answer at the other. To the pipeline they are one `Engine`.

Sequential (vLLM): the prefill engine computes the prompt and says where its KV cache lies; the decode engine is told that, word for word.
Parallel (SGLang, TokenSpeed): both get the request at once and meet in a room. The answer is the decode engine's; scores of the prompt are
the prefill engine's. Whatever ends one leg ends the other. Made by `smg.pipeline` for each attempt; `Prefill` outlives attempts.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import TypeAlias

from msgspec.structs import replace

from smg._ext import Call, Sink
from smg.engine.base import Engine, EngineDelta, EngineRequest, Failed, KvTransfer, Load, ModelInfo, ServerInfo, TokenScores
from smg.engine.transfer import Handover, handover_of, rendezvous
from smg.errors import EngineError, EngineTimeout, EngineUnavailable, UnsupportedParameter

__all__ = ["CAUSE_S", "RELEASE_S", "PairedEngine", "Prefill"]

# What a decode engine may take to fetch a cache that nobody wants any more, so that the prefill engine can give it up.
RELEASE_S = 30.0
# How much later than the decode engine's failure the prefill engine's may be known, if it is the cause; and its end, if all went well. Also
# the time that a decode engine gets to hear of a request whose client has left.
CAUSE_S = 0.5
Step: TypeAlias = "asyncio.Future[EngineDelta | None]"


class Prefill:
    """The prefill engine's part of one request. `done` is called once the engine has no more work with it; True = the prompt is computed.

    `claimed`: a decode engine may have been asked, which fetches the cache, or gives it up: no other one may. `given_up`: no further
    attempt follows. `error`: what ended the leg, unless it was left before. `rank`: which of the engine's data-parallel ranks to ask.
    `send_abort` tells an engine to drop a request, without being waited for.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        server: ServerInfo,
        bootstrap_port: int,
        rank: int | None = None,
        send_abort: Callable[[Engine, str], object],
        done: Callable[[bool], object],
    ) -> None:
        self.engine = engine
        self.error: EngineError | None = None
        self.scores: TokenScores | None = None
        self._server = server
        self._port = bootstrap_port
        self._rank = rank
        self._send_abort = send_abort
        self._done: Callable[[bool], object] | None = done
        self.claimed = False
        self.given_up = False
        self._left = False
        self._handover: KvTransfer | None = None
        self._leg: asyncio.Task[None] | None = None
        self._wait: asyncio.Timeout | None = None
        self._lost: EngineError | None = None

    async def first(self, request: EngineRequest, *, timeout_s: float) -> KvTransfer:
        """Computes the prompt, unless an attempt before has; gives what to tell the decode engine."""
        if self._handover is None:
            words: Handover = handover_of(self._server, url=self.engine.url, port=self._port)
            sampling = replace(request.sampling, max_tokens=1, min_tokens=0, n=1)
            leg = replace(request, sampling=sampling, transfer=words.prefill, stream=False, constraint=None, logprobs=None)
            leg = replace(leg, data_parallel_rank=self._rank)
            # An answer that crosses the deadline tells where the cache lies, which can then be given up: `leave` waits as long for it.
            self._leg = asyncio.get_running_loop().create_task(self._before(leg, words, timeout_s=timeout_s + CAUSE_S))
            try:
                await asyncio.wait([self._leg])
            except asyncio.CancelledError:
                self.leave(request.request_id)
                raise
            self._leg.result()
        if self._handover is None:
            raise self.error or EngineError("the prefill engine was left before it said anything")
        return self._handover

    def beside(self, request: EngineRequest, *, timeout_s: float, failed: Failed) -> KvTransfer:
        """Starts to compute the prompt; gives the place where the decode engine will find it. `failed` is called when it will not."""
        place = rendezvous(self.engine.url, port=self._port)
        leg = replace(request, transfer=place, stream=False, data_parallel_rank=self._rank)
        self._leg = asyncio.get_running_loop().create_task(self._alongside(leg, timeout_s=timeout_s, failed=failed))
        return place

    async def ended(self, *, within_s: float | None = None) -> None:
        """Waits for the end of the leg, if it was begun."""
        if self._leg is not None:
            await asyncio.wait([self._leg], timeout=within_s)

    def leave(self, request_id: str) -> None:
        """Ends the leg in any state. A cache that waits for a decode engine is given up.

        The call itself is left a moment: its failure may be on its way, and be what the decode engine failed of; or the word that the
        prompt is computed, without which nobody could give its cache up.
        """
        self._left = True
        if self._leg is not None and not self._leg.done():
            asyncio.get_running_loop().call_later(CAUSE_S, self._leg.cancel)
            self._leg.add_done_callback(lambda leg: self._send_abort(self.engine, request_id))  # the first may overtake the request
        self._send_abort(self.engine, request_id)
        self.close()

    def fail(self, error: EngineError) -> None:
        """Ends the leg with an error, if it runs: the engine is lost, and would never say so itself."""
        if self._wait is not None and self._lost is None and not self._left:
            self._lost = error
            self._wait.reschedule(0.0)

    def close(self) -> None:
        """Says that nothing more will come of the leg, if it has not ended."""
        self._end(computed=False)

    @property
    def unclaimed(self) -> KvTransfer | None:
        """What lies at the prefill engine for a decode engine that was not asked yet."""
        return None if self.claimed else self._handover

    @property
    def taken(self) -> bool:
        """True when a decode engine may have been asked for a cache at the prefill engine, and has to fetch it or to give it up."""
        return self.claimed and self._handover is not None and bool(self._handover.params)

    @property
    def ending(self) -> bool:
        """True while an engine that was left may still say that it has computed the prompt."""
        return self._left and self._leg is not None and not self._leg.done()

    async def _run(self, request: EngineRequest, *, timeout_s: float) -> str:
        """Runs the leg to its end; gives what the engine says to the decode engine."""
        computed = False
        try:
            async with asyncio.timeout(None) as self._wait:
                told = await self._told(request, timeout_s=timeout_s)
            computed = True
        except EngineError as error:
            if not self._left or isinstance(error, EngineUnavailable):  # else it is the answer to our abort
                self.error = error
            raise
        except TimeoutError:
            assert self._lost is not None, "nothing but `fail` ends the wait"
            self.error = self._lost
            raise self.error from None
        finally:
            self._wait = None
            self._end(computed=computed)
        return told

    async def _told(self, request: EngineRequest, *, timeout_s: float) -> str:
        told, finish = "", None
        try:
            async with aclosing(self.engine.generate(request, timeout_s=timeout_s)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    told, finish = delta.transfer or told, delta.finish or finish
                    self.scores = delta.prompt_logprobs or self.scores
        except asyncio.CancelledError:
            self._send_abort(self.engine, request.request_id)
            raise
        if finish == "abort":
            raise EngineError("the prefill engine gave the request up")
        return told

    def _end(self, *, computed: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(computed)

    async def _before(self, request: EngineRequest, words: Handover, *, timeout_s: float) -> None:
        with suppress(EngineError):  # `first` raises it
            self._handover = words.decode(await self._run(request, timeout_s=timeout_s))

    async def _alongside(self, request: EngineRequest, *, timeout_s: float, failed: Failed) -> None:
        try:
            await self._run(request, timeout_s=timeout_s)
        except EngineError as error:
            failed(error)


class PairedEngine(Engine):
    """A decode engine together with one request's prefill."""

    def __init__(self, prefill: Prefill, decode: Engine) -> None:
        super().__init__(decode.url, options=decode.options)
        self.runtime, self.features = decode.runtime, decode.features
        self.prefill = prefill
        self._decode = decode
        self._asked: EngineRequest | None = None
        self._parting: tuple[Step, AsyncIterator[EngineDelta]] | None = None
        if decode.native:
            self.service = decode.service

    @property
    def native(self) -> bool:
        return self._decode.native

    @property
    def patient(self) -> bool:
        """See `Engine.patient`: what the decode engine never hears of keeps its cache at the prefill engine (known bug B121)."""
        return self.prefill.taken

    async def start(self) -> None:
        """Both engines are running."""

    async def close(self) -> None:
        """Both engines go on."""

    async def reach(self, *, timeout_s: float) -> None:
        """Waits for the decode engine; the prefill engine is asked before it."""
        await self._decode.reach(timeout_s=timeout_s)

    def check(self, request: EngineRequest) -> None:
        """Raises UnsupportedParameter when the request cannot be computed by two engines of this protocol, or by one."""
        self._decode.check(request)
        if self.features.disaggregation == "parallel" and request.sampling.n > 1:
            raise UnsupportedParameter(f"{self.runtime} engines with prefill and decode apart do not support n", param="n")

    async def generate(self, request: EngineRequest, *, timeout_s: float) -> AsyncIterator[EngineDelta]:
        """Runs the request at both engines; see `Engine.generate`."""
        deadline_s = time.monotonic() + timeout_s
        failure: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        asked = await self._open(request, timeout_s=timeout_s, failed=failure.set_result)
        await self._decode.reach(timeout_s=max(0.0, deadline_s - time.monotonic()))
        self.prefill.claimed = True
        deltas = self._decode.generate(asked, timeout_s=max(0.0, deadline_s - time.monotonic()))
        begun = False
        async with aclosing(self._fetched(deltas) if self.patient else _unless(failure, deltas)) as found:
            async for delta in found:
                if not begun and request.prompt_logprobs is not None:
                    await self.prefill.ended()
                    if self.prefill.scores is not None:
                        yield EngineDelta(choice=delta.choice, prompt_logprobs=self.prefill.scores)
                begun = True
                yield delta

    async def generate_into(self, sink: Sink, request: EngineRequest, *, timeout_s: float, failed: Failed | None = None) -> Call:
        """Runs the request at both engines; see `Engine.generate_into`."""
        deadline_s = time.monotonic() + timeout_s
        asked = await self._open(request, timeout_s=timeout_s, failed=failed or (lambda error: None))
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise EngineTimeout("the engine did not answer in time")
        try:
            call = await self._decode.generate_into(sink, asked, timeout_s=left_s)
        except BaseException:
            if self.features.disaggregation == "parallel":
                self.prefill.leave(request.request_id)
            raise
        self.prefill.claimed = True
        return call

    async def abort(self, request_id: str) -> None:
        """Tells both engines to drop the request."""
        if self.prefill.given_up:
            await self.prefill.ended()  # soon, as it was left
            if self._asked is not None and (cache := self.prefill.unclaimed) is not None:
                await self._release(self._asked, cache)
            return
        if self.prefill.unclaimed is None:
            self.prefill.leave(request_id)
        if self._parting is not None:
            await _end(*self._parting, within_s=CAUSE_S)
        await self._decode.abort(request_id)

    async def _fetched(self, deltas: AsyncIterator[EngineDelta]) -> AsyncGenerator[EngineDelta, None]:
        """Yields deltas. The call of who leaves before the first of them is ended by `abort`, see `patient`."""
        first: Step = asyncio.ensure_future(anext(deltas, None))
        try:
            await asyncio.wait([first])
        except asyncio.CancelledError:
            self._parting = first, deltas
            raise
        try:
            delta = first.result()
            while delta is not None:
                yield delta
                delta = await anext(deltas, None)
        finally:
            await deltas.aclose()  # type: ignore[attr-defined]

    async def _release(self, request: EngineRequest, transfer: KvTransfer) -> None:
        """Lets the decode engine fetch a cache that nobody wants any more: that is how the prefill engine learns that it may give it up."""
        self.prefill.claimed = True
        if not transfer.params:  # nothing was said that could be fetched
            return
        sampling = replace(request.sampling, max_tokens=1, min_tokens=0, n=1)
        asked = replace(request, sampling=sampling, stream=False, transfer=transfer, constraint=None, logprobs=None, prompt_logprobs=None)
        async with aclosing(self._decode.generate(asked, timeout_s=RELEASE_S)) as deltas:  # type: ignore[type-var]
            async for _ in deltas:
                pass

    async def cause(self, error: EngineError) -> EngineError:
        """Gives what ended the request: the decode engine feels the prefill engine's failure, and may tell of it first."""
        if self.prefill.error is None:
            await self.prefill.ended(within_s=CAUSE_S)
        return self.prefill.error or error

    async def health(self) -> bool:
        return await self._decode.health()

    async def model_info(self) -> ModelInfo:
        return await self._decode.model_info()

    async def server_info(self) -> ServerInfo:
        return await self._decode.server_info()

    async def loads(self) -> list[Load]:
        return await self._decode.loads()

    async def tokenizer_archive(self) -> bytes:
        return await self._decode.tokenizer_archive()

    async def _open(self, request: EngineRequest, *, timeout_s: float, failed: Failed) -> EngineRequest:
        """Starts the prefill leg; gives what to ask the decode engine."""
        self._asked = request
        asked = request if request.prompt_logprobs is None else replace(request, prompt_logprobs=None)
        if self.features.disaggregation == "parallel":
            return replace(asked, transfer=self.prefill.beside(request, timeout_s=timeout_s, failed=failed))
        if request.sampling.n > 1:  # a cache is fetched once: each choice would want it
            self.prefill.close()
            return request
        return replace(asked, transfer=await self.prefill.first(request, timeout_s=timeout_s))


async def _end(step: Step, deltas: AsyncIterator[EngineDelta], *, within_s: float) -> None:
    """Ends a call in any state, once it has said something, or `within_s` has passed; what it says is of no interest any more."""
    await asyncio.wait([step], timeout=within_s)
    if not step.done():
        step.cancel()
        await asyncio.wait([step])
    if not step.cancelled():
        step.exception()
    await deltas.aclose()  # type: ignore[attr-defined]


async def _unless(failure: "asyncio.Future[EngineError]", deltas: AsyncIterator[EngineDelta]) -> AsyncGenerator[EngineDelta, None]:
    """Yields deltas until there are no more; raises the failure as soon as it is there."""
    try:
        while True:
            step: Step = asyncio.ensure_future(anext(deltas, None))
            try:
                await asyncio.wait((step, failure), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not step.done():
                    step.cancel()
                    await asyncio.wait([step])
                if not step.cancelled():
                    step.exception()  # told below, or of no interest any more
            if failure.done():
                raise failure.result()
            delta = step.result()
            if delta is None:
                return
            yield delta
    finally:
        await deltas.aclose()  # type: ignore[attr-defined]
