"""Prefill and decode apart where engines are asked over HTTP: two requests, both the client's own but for a few fields. Called by relay.py.

vLLM: the prefill engine makes one token; its `kv_transfer_params` go to the decode engine word for word. SGLang: both get the request at
once and meet in a room of their own. The answer is the decode engine's; whatever ends one part ends the other.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from smg.engine import CAUSE_S, RELEASE_S, HttpCall, HttpEngine, HttpRequest, meeting_host
from smg.errors import EngineError, InvalidValue, RequestError, SmgError, Unimplemented
from smg.obs.metrics import Meter
from smg.pipeline.attempts import Attempt, Tries
from smg.pipeline.relay_leg import Leg
from smg.pipeline.relay_request import RelayRequest, changed, message_for
from smg.pipeline.route import Router
from smg.pipeline.tending import Tended
from smg.worker import EnginePool, EngineRecord, WorkerView

__all__ = ["RelayPair", "RelayPairs"]

log = logging.getLogger(__name__)

RELEASED_BYTES = 1 << 20
# What a vLLM prefill engine gets to end by itself when the client leaves. One that computes the prompt just as it is told to stop keeps the
# cache, and nobody hears where: most prompts are computed sooner than that.
PATIENCE_S = 0.3
# Each of them has a room, named in the body.
MOST_ROOMS = 4096
ROOM_BITS = 63

ONE_TOKEN = {"max_tokens": b"1", "stream": b"false"}
# Only where the body has them: each would forbid the above.
ONE_TOKEN_TOO = {"max_completion_tokens": b"1", "min_tokens": b"0", "stream_options": b"null"}
EMPTY: Mapping[str, bytes] = {}
# A client's own words would have an engine keep a cache that nobody fetches, or fetch one from anywhere.
NO_TRANSFER = {"kv_transfer_params": b"null"}
REMOTE_DECODE = {"kv_transfer_params": b'{"do_remote_decode":true,"do_remote_prefill":false}'}


class RelayPairs:
    """Makes pairs for one data worker. `waiting`: what is looked after, see `Tender`."""

    def __init__(self, *, router: Router, pool: EnginePool, view: WorkerView, meter: Meter, waiting: set[Tended]) -> None:
        self.router = router
        self.pool = pool
        self.view = view
        self.meter = meter
        self.waiting = waiting
        self._ending: set[asyncio.Task[None]] = set()

    def of(self, request: RelayRequest) -> "RelayPair":
        """Gives the pair for the attempts of one request."""
        return RelayPair(self, request)

    def afterwards(self, work: Coroutine[Any, Any, None]) -> None:
        """Does what is left to do when the client has its answer, or has left."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Gives up what is left to do."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


class RelayPair:
    """One request at two engines. `finish` or `close` ends it. `claimed`: a decode engine was asked, which fetches the cache."""

    def __init__(self, pairs: RelayPairs, request: RelayRequest) -> None:
        self._pairs = pairs
        self._request = request
        self._leg: Leg | None = None
        self.claimed = False
        self._decode: tuple[HttpEngine, HttpRequest] | None = None

    async def open(self, engine: HttpEngine, message: HttpRequest, attempt: Attempt) -> HttpCall:
        """Gives the decode engine's call. Raises what ends either part; `attempt.blamed` is the prefill engine's slot where that does.

        A prompt that an attempt before has computed, and no decode engine was asked to fetch, is not computed again.
        """
        self._decode = engine, message
        runtime, request = attempt.record.runtime, self._request
        if runtime == "vllm":
            if not request.apart or request.scored or request.batch > 1:
                return await self._asked_alone(engine, message)
            return await self._one_after_the_other(engine, message, attempt)
        if runtime != "sglang":
            raise RequestError(
                f"{runtime} engines cannot compute prefill and decode apart over HTTP: name their --backend if it is another"
            )
        if not request.apart:
            raise Unimplemented(f"{request.target.partition('?')[0]} is not built for SGLang engines with prefill and decode apart")
        return await self._both_at_once(engine, message, attempt)

    async def cause(self, error: SmgError, attempt: Attempt) -> SmgError:
        """Gives what ended an attempt: the decode engine feels the prefill engine's failure, and may tell of it first."""
        leg = self._leg
        if leg is None or attempt.answered:
            return error
        if self.claimed:
            await leg.ended(within_s=CAUSE_S)
        if leg.error is None:
            attempt.blamed = None
            return error
        self._blame(leg, attempt)
        return leg.error

    def finish(self) -> None:
        """The client has its answer."""
        if self._leg is not None and not self._leg.over:
            self._pairs.afterwards(self._linger(self._leg))

    def close(self) -> None:
        """The request has ended without an answer: neither engine shall work on it, or keep anything for it."""
        if self._leg is not None:
            self._pairs.afterwards(self._give_up(self._leg))

    async def _one_after_the_other(self, engine: HttpEngine, message: HttpRequest, attempt: Attempt) -> HttpCall:
        leg = self._leg
        if leg is None or self.claimed or not leg.computed:
            leg = await self._routed(attempt)
            attempt.blamed = leg.record.slot  # also for what ends the wait
            await self._start(leg, ONE_TOKEN | REMOTE_DECODE, too=ONE_TOKEN_TOO)
            await leg.ended()
            if leg.error is not None:
                self._blame(leg, attempt)
                raise leg.error
            attempt.blamed = None
        if not leg.params:
            log.warning("the prefill engine says nothing of its KV cache; the prompt is computed twice", extra={"engine": leg.record.url})
            return await self._asked_alone(engine, message)
        return await self._fetched(engine, await changed(self._request, message, {"kv_transfer_params": leg.params}))

    async def _both_at_once(self, engine: HttpEngine, message: HttpRequest, attempt: Attempt) -> HttpCall:
        leg = await self._routed(attempt)
        place = rendezvous(leg.record, rooms=self._request.batch)
        rank = leg.record.rank
        asked = await changed(self._request, message, place if rank is None else place | {"disagg_prefill_dp_rank": b"%d" % rank})
        await self._start(leg, place)
        opening = asyncio.get_running_loop().create_task(self._asked(engine, asked))
        try:
            await leg.beside(opening)
        except BaseException:
            await _closed(opening)
            raise
        if leg.error is not None:
            await _closed(opening)
            self._blame(leg, attempt)
            raise leg.error
        call = opening.result()
        leg.on_error(call.stop)
        return call

    async def _routed(self, attempt: Attempt) -> Leg:
        """Chooses a prefill engine and counts the request there. Raises NoEngine, and as `Tries.choose`."""
        request, tries, before = self._request, attempt.tries, self._leg
        self.claimed, self._leg = False, None
        if before is not None:
            self._pairs.afterwards(before.leave())
            attempt.blamed = before.record.slot  # for what ends the wait until that engine is asked again
        routing, runtime = request.routing, attempt.record.runtime
        route = partial(
            self._pairs.router.route, request.model, prompt_ids=[], text=request.text, routing=routing, role="prefill", runtime=runtime
        )
        record, lease = await tries.choose(route)
        attempt.blamed = None
        another = partial(self._pairs.view.has_other, request.model, role="prefill", failed=tries.failed | {record.slot})
        self._leg = Leg(record, lease, another=another, done=partial(self._done, tries, record.slot in tries.failed))
        return self._leg

    async def _start(self, leg: Leg, values: Mapping[str, bytes], too: Mapping[str, bytes] = EMPTY) -> None:
        engine = await self._pairs.pool.get(leg.record)
        assert isinstance(engine, HttpEngine), "the view keeps engines of the two kinds apart"
        message = await changed(self._request, await message_for(self._request, leg.record), values, too)
        leg.start(engine, message, keyless=self._request.keyless)
        self._pairs.waiting.add(leg)

    async def _asked_alone(self, engine: HttpEngine, message: HttpRequest) -> HttpCall:
        """The decode engine computes the prompt too."""
        if self._request.splice is not None:
            message = await changed(self._request, message, EMPTY, NO_TRANSFER)
        return await self._asked(engine, message)

    async def _asked(self, engine: HttpEngine, message: HttpRequest) -> HttpCall:
        return await engine.open(message, keyless=self._request.keyless, sent=self._claim)

    async def _fetched(self, engine: HttpEngine, message: HttpRequest) -> HttpCall:
        """The decode engine fetches a cache. It gets a moment to hear of that when the client leaves: who never does cannot give it up."""
        opening = asyncio.get_running_loop().create_task(self._asked(engine, message))
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            self._pairs.afterwards(_closed(opening, within_s=CAUSE_S if self.claimed else 0.0))
            raise
        return opening.result()

    def _claim(self, call: HttpCall) -> None:
        self.claimed = True

    def _blame(self, leg: Leg, attempt: Attempt) -> None:
        attempt.blamed = leg.record.slot
        if isinstance(leg.error, EngineError):
            leg.error.engine = leg.record.url

    def _done(self, tries: Tries, again: bool, leg: Leg, took_s: float | None) -> None:
        self._pairs.waiting.discard(leg)
        tries.judge(leg.record, leg.lease, None if leg.computed else leg.error or asyncio.CancelledError(), again=again)
        leg.lease.release()
        if took_s is not None:
            labels = ("http", leg.record.model, leg.record.runtime)
            self._pairs.meter.histogram("smg_pd_prefill_duration_seconds", labels).observe(took_s)
        elif leg.error is not None:
            self._pairs.meter.add("smg_pd_kv_transfer_failures_total", ())

    async def _linger(self, leg: Leg) -> None:
        await leg.ended(within_s=CAUSE_S)
        await leg.leave()

    async def _give_up(self, leg: Leg) -> None:
        """Ends the part; has a cache fetched that lies at the prefill engine: that is how it learns that nobody else will come for it."""
        if leg.record.runtime == "vllm":
            await leg.ended(within_s=PATIENCE_S)
        await leg.leave()
        if not leg.params or self.claimed or self._decode is None:
            return
        engine, message = self._decode
        asked = await changed(self._request, message, ONE_TOKEN | {"kv_transfer_params": leg.params}, ONE_TOKEN_TOO)
        try:
            async with asyncio.timeout(RELEASE_S):
                call = await engine.open(asked, keyless=self._request.keyless)
                try:
                    await call.read(RELEASED_BYTES)
                finally:
                    call.close()
        except (SmgError, TimeoutError) as error:
            log.warning("a KV cache that nobody wants stays at its engine for as long as that keeps it: %s", error)


async def _closed(opening: "asyncio.Task[HttpCall]", *, within_s: float = 0.0) -> None:
    """Ends a call that is open, or is being opened and is not open within a time."""
    if within_s:
        await asyncio.wait([opening], timeout=within_s)
    opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def rendezvous(record: EngineRecord, *, rooms: int) -> dict[str, bytes]:
    """Gives what both SGLang engines are told: the prefill engine's host and port, and a room for each prompt's each choice, in lists
    where there are several. Without a port SGLang takes its own. Raises InvalidValue for too many.

    Its load balancer without a rank of the request's own takes the room's remainder for one (sglang/srt/managers/data_parallel_controller).
    """
    if rooms > MOST_ROOMS:
        raise InvalidValue(f"a request may have {MOST_ROOMS} prompts and choices")
    size, rank = record.server.data_parallel_size or 1, record.rank
    numbers = [secrets.randbits(ROOM_BITS - 1) for _ in range(rooms)]
    if rank is not None:
        numbers = [number - number % size + rank for number in numbers]
    values: dict[str, list[Any]] = {
        "bootstrap_host": [meeting_host(record.address)] * rooms,
        "bootstrap_port": [record.handover_port or None] * rooms,
        "bootstrap_room": numbers,
    }
    return {name: msgspec.json.encode(value if rooms > 1 else value[0]) for name, value in values.items()}
