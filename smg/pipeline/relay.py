"""Requests for engines that are asked over HTTP: routed, counted and retried as all others are, their bytes passed on as they come.

In: a `RelayRequest` from `smg.api.relay`. Out: a whole answer, or a stream poured into `Out` from the very callback that the engine's bytes
came in. Knows neither the surface nor what a body says.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial

from msgspec import Struct

from smg.config import Config
from smg.engine import Head, HttpCall, HttpEngine
from smg.errors import ClientGone, EngineError, EngineProtocol, EngineRejected, SmgError
from smg.obs.metrics import Meter
from smg.obs.requests import RequestMeter, RequestMeters
from smg.pipeline.attempts import Attempt, Attempts
from smg.pipeline.pour import Out, Pour
from smg.pipeline.relay_faults import Busy, Refused, fault_of, kept, said
from smg.pipeline.relay_pairs import RelayPair, RelayPairs
from smg.pipeline.relay_request import RelayRequest, message_for
from smg.pipeline.route import Router
from smg.pipeline.tending import Tended, Tender, Wait
from smg.pipeline.usage import usage_in
from smg.types.account import ACCOUNT, Charge
from smg.worker import EnginePool, EngineRecord, Lease, Role, WorkerView

__all__ = ["Relay", "RelayRequest"]

# An answer that is no stream is kept up to this size, so that it can be asked for again when the engine breaks off, and has a length.
WHOLE_BYTES = 4 << 20
CHARACTERS_PER_TOKEN = 4
UNBUFFERED = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Ledger(Struct, kw_only=True):
    """What one request is counted and charged by."""

    meter: RequestMeter
    charge: Charge | None
    answered: bool = False

    def fail(self, code: str) -> None:
        """It ended with an error."""
        if self.charge is not None:
            self.charge.drop(answered=self.answered)
        self.meter.fail(code)

    def finish(self, prompt: int, completion: int) -> None:
        """The answer is whole, and tells these token counts; where it tells none the estimate stays charged."""
        if self.charge is not None and prompt + completion:
            self.charge.settle(prompt + completion)
        elif self.charge is not None:
            self.charge.drop(answered=True)
        self.meter.finish(prompt_tokens=prompt, completion_tokens=completion)


class Passing(Tended):
    """One request at one engine, see `Tended`: before its `call` has been answered, then while it is poured."""

    def __init__(self, attempt: Attempt, pair: RelayPair | None = None) -> None:
        self.wait = Wait()
        self.call: HttpCall | None = None
        self.pour: Pour | None = None
        self.attempt = attempt
        self._pair = pair

    def waits_for(self) -> str:
        """See `Tended`."""
        asked = self._pair is None or self._pair.claimed
        return "" if self.attempt.answered or not asked else self.attempt.record.address

    def progress(self) -> int:
        """See `Tended`."""
        return self.pour.progress() if self.pour is not None and self.attempt.answered else 0

    def answer(self) -> None:
        """Something has come."""
        self.attempt.answered = True

    def fail(self, error: SmgError) -> None:
        """See `Tended`."""
        self.wait.fail(error)
        if self.call is not None:
            self.call.stop(error)


class Relay:
    """Relays for one data worker."""

    def __init__(self, config: Config, *, view: WorkerView, pool: EnginePool, meter: Meter) -> None:
        self._view = view
        self._pool = pool
        self._router = Router(view, config=config.routing, meter=meter)
        self._attempts = Attempts(view, config=config.resilience, meter=meter)
        self._meters = RequestMeters(meter, mode="http")
        self._tender = Tender(idle_s=config.engines.stream_idle_timeout_s)
        self._passing: set[Tended] = set()
        self._pairs = RelayPairs(router=self._router, pool=pool, view=view, meter=meter, waiting=self._passing)

    def tend(self) -> None:
        """As `Pipeline.tend`."""
        self._tender.look(lambda: list(self._passing), lost=self._view.lost())

    async def run(self, request: RelayRequest, out: Out) -> bytes:
        """Writes the answer; gives its last bytes. Raises SmgError for what the client is to be told in its own dialect: faults of engines
        and of the way to them. What an engine says of the request itself (4xx) is passed on as it is.
        """
        tokens = len(request.text) // CHARACTERS_PER_TOKEN
        account = ACCOUNT.get()
        charge = None if account is None else await account.charge(model=request.model, prompt_tokens=tokens, sampling=request.sampling)
        meter = self._meters.start(model=request.model, endpoint=request.endpoint, streaming=request.stream)
        ledger = Ledger(meter=meter, charge=charge)
        tries = self._attempts.of(
            partial(self._routed, request), endpoint=request.endpoint, deadline_s=request.deadline_s, request_id=request.request_id
        )
        pair = self._pairs.of(request) if self._view.is_paired(request.model) else None
        try:
            async for attempt in tries:
                with attempt:
                    last = await self._attempt(request, attempt, ledger, out, pair)
                    if pair is not None:
                        pair.finish()
                    return last
        except (Busy, Refused) as error:
            ledger.fail(error.code)
            if pair is not None:
                pair.close()
            if not out.whole(error.head.status, kept(error.head), error.body):
                raise
            return b""
        except BaseException as error:
            if pair is not None:
                pair.close()
            left = isinstance(error, asyncio.CancelledError)
            ledger.fail(error.code if isinstance(error, SmgError) else ClientGone.code if left else SmgError.code)
            raise
        raise AssertionError("attempts end with an answer or an error")

    def _routed(self, request: RelayRequest, avoid: frozenset[int]) -> tuple[EngineRecord, Lease]:
        role: Role = "decode" if self._view.is_paired(request.model) else "regular"
        return self._router.route(request.model, prompt_ids=[], text=request.text, routing=request.routing, avoid=avoid, role=role)

    async def close(self) -> None:
        """Ends what is still done for requests that are over."""
        await self._pairs.close()

    async def _attempt(self, request: RelayRequest, attempt: Attempt, ledger: Ledger, out: Out, pair: RelayPair | None) -> bytes:
        ledger.meter.on_answer = attempt.lease.answered
        engine = await self._pool.get(attempt.record)
        assert isinstance(engine, HttpEngine), "the view keeps engines of the two kinds apart"
        message = await message_for(request, attempt.record)
        if pair is None or attempt.record.role == "regular":
            return await self._answered(engine.open(message, keyless=request.keyless), request, Passing(attempt), ledger, out)
        try:
            return await self._answered(pair.open(engine, message, attempt), request, Passing(attempt, pair), ledger, out)
        except EngineError as error:
            cause = await pair.cause(error, attempt)
            raise cause from (error if cause is not error else None)

    async def _answered(self, opening: Awaitable[HttpCall], request: RelayRequest, passing: Passing, ledger: Ledger, out: Out) -> bytes:
        self._passing.add(passing)
        try:
            call = passing.call = await passing.wait.of(opening)
            head = await call.head()
            if (error := await fault_of(call, head, keyless=request.keyless)) is not None:
                error.retryable = error.retryable and self._another(request, passing.attempt)
                raise error
            if head.get("content-type").lower().startswith("text/event-stream") and not head.get("content-encoding"):
                return await _stream(call, head, passing, ledger, out, untold=request.ends and head.until_close)
            return await _whole(call, head, passing, ledger, out)
        finally:
            self._passing.discard(passing)
            if passing.call is not None:
                passing.call.close()

    def _another(self, request: RelayRequest, attempt: Attempt) -> bool:
        """True when an engine may have the request that has not failed it: one that says it is full is not asked again at once."""
        failed = attempt.tries.failed | {attempt.record.slot}
        return request.routing.target_worker is None and self._view.has_other(request.model, role=attempt.record.role, failed=failed)


async def _stream(call: HttpCall, head: Head, passing: Passing, ledger: Ledger, out: Out, *, untold: bool) -> bytes:
    """Pours events, see `Pour`. Until the first of them another engine may be tried."""

    def begun() -> None:
        passing.answer()
        ledger.answered = True
        ledger.meter.answered()
        out.begin(head.status, (*kept(head, but=("cache-control",)), *UNBUFFERED), comments=True)

    pour = passing.pour = Pour(call, out, begun=begun, events=True, untold=untold)
    last = await pour.run()
    ledger.finish(*pour.usage)
    return last


async def _whole(call: HttpCall, head: Head, passing: Passing, ledger: Ledger, out: Out) -> bytes:
    """Reads the answer and sends it as a whole; one that is too large for that is poured."""
    body = await call.read(WHOLE_BYTES)
    passing.answer()
    ledger.meter.answered()
    if body is not None:
        if not out.whole(head.status, kept(head), body):
            raise said(head.status, body)
        last = b""
    else:
        length = (("content-length", str(head.length)),) if head.length is not None else ()
        if not out.begin(head.status, (*kept(head), *length), comments=False):
            raise EngineProtocol("the engine does not answer with a stream")
        passing.pour = Pour(call, out, begun=None, events=False)
        last = await passing.pour.run()
    if head.status < 400:
        ledger.finish(*(usage_in(body) if body else (0, 0)))
    else:
        ledger.fail(EngineRejected.code)
    return last
