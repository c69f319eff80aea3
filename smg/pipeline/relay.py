"""Requests for engines that are asked over HTTP: routed, counted and retried as all others are, their bytes passed on as they come.

In: a `RelayRequest` from `smg.api.relay`. Out: a whole answer, or a stream poured into `Out` from the very callback that the engine's bytes
came in. Knows neither the surface nor what a body says.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from smg.config import Config
from smg.engine import Head, HttpCall, HttpEngine, HttpRequest
from smg.errors import (
    ClientGone,
    EngineBusy,
    EngineError,
    EngineProtocol,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    LoopDetected,
    SmgError,
    Unimplemented,
)
from smg.obs.metrics import Meter
from smg.obs.requests import RequestMeter, RequestMeters
from smg.pipeline.attempts import Attempt, Attempts
from smg.pipeline.pour import Out, Pour
from smg.pipeline.route import Router
from smg.pipeline.tending import Tended, Tender, Wait
from smg.pipeline.usage import usage_in
from smg.types.account import ACCOUNT, Charge
from smg.types.job import Routing, Sampling
from smg.worker import EnginePool, EngineRecord, Lease, WorkerView

__all__ = ["Relay", "RelayRequest"]

# An answer that is no stream is kept up to this size, so that it can be asked for again when the engine breaks off, and has a length.
WHOLE_BYTES = 4 << 20
ERROR_BYTES = 65536
INLINE_BYTES = 65536  # larger bodies are rewritten beside the event loop
QUOTED = 300
CHARACTERS_PER_TOKEN = 4
RETRY_AFTER_S = 1  # of an engine that cannot serve now and does not say when
# Of an answer's headers: what describes its body, and when to try again. The others are about the connection, or the engine's own affair.
KEPT = frozenset({"content-type", "content-encoding", "content-language", "content-disposition", "cache-control", "retry-after"})
UNBUFFERED = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class RelayRequest(Struct, frozen=True, kw_only=True):
    """`model`: the model's own id. `name`: what the body calls it, empty where it does not; `canonical`: the same, with the configuration's
    aliases resolved; `rename(body, name)`: the body for an engine that calls it otherwise. `headers`: whole lines; `keyless`: the client's
    own key is among them. `text`: the prompt, for policies; `sampling`: how much is asked for, for what is charged beforehand.
    """

    request_id: str
    endpoint: str
    model: str
    name: str
    canonical: str
    target: str
    body: bytes
    rename: Callable[[bytes, str], bytes]
    method: str = "POST"
    headers: str = ""
    keyless: bool = False
    text: str = ""
    routing: Routing = Routing()
    sampling: Sampling = Sampling()
    stream: bool = False
    deadline_s: float = float("inf")


class Busy(EngineBusy):
    """An engine's own 429, which the client gets when no other engine has room either."""

    def __init__(self, head: Head, body: bytes) -> None:
        super().__init__("the engine has no room for the request")
        self.head = head
        self.body = body


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

    def __init__(self, attempt: Attempt) -> None:
        self.wait = Wait()
        self.call: HttpCall | None = None
        self.pour: Pour | None = None
        self._attempt = attempt

    def waits_for(self) -> str:
        """See `Tended`."""
        return "" if self._attempt.answered else self._attempt.record.address

    def progress(self) -> int:
        """See `Tended`."""
        return self.pour.progress() if self.pour is not None and self._attempt.answered else 0

    def answer(self) -> None:
        """Something has come."""
        self._attempt.answered = True

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
        self._router = Router(view, config=config.routing)
        self._attempts = Attempts(view, config=config.resilience, meter=meter)
        self._meters = RequestMeters(meter, mode="http")
        self._tender = Tender(idle_s=config.engines.stream_idle_timeout_s)
        self._passing: set[Passing] = set()

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
        try:
            async for attempt in tries:
                with attempt:
                    return await self._attempt(request, attempt, ledger, out)
        except Busy as busy:
            ledger.fail(busy.code)
            if not out.whole(busy.head.status, _kept(busy.head), busy.body):
                raise
            return b""
        except BaseException as error:
            left = isinstance(error, asyncio.CancelledError)
            ledger.fail(error.code if isinstance(error, SmgError) else ClientGone.code if left else SmgError.code)
            raise
        raise AssertionError("attempts end with an answer or an error")

    def _routed(self, request: RelayRequest, avoid: frozenset[int]) -> tuple[EngineRecord, Lease]:
        return self._router.route(request.model, prompt_ids=[], text=request.text, routing=request.routing, avoid=avoid)

    async def _attempt(self, request: RelayRequest, attempt: Attempt, ledger: Ledger, out: Out) -> bytes:
        ledger.meter.on_answer = attempt.lease.answered
        engine = await self._pool.get(attempt.record)
        assert isinstance(engine, HttpEngine), "the view keeps engines of the two kinds apart"
        body, name = request.body, engine_name(request.canonical, attempt.record)
        if name != request.name:
            body = await asyncio.to_thread(request.rename, body, name) if len(body) > INLINE_BYTES else request.rename(body, name)
        message = HttpRequest(method=request.method, target=request.target, headers=request.headers, body=body)
        passing = Passing(attempt)
        self._passing.add(passing)
        try:
            call = passing.call = await passing.wait.of(engine.open(message, keyless=request.keyless))
            head = await call.head()
            if (error := await _fault(call, head, keyless=request.keyless)) is not None:
                error.retryable = error.retryable and self._another(request, attempt)
                raise error
            if head.get("content-type").startswith("text/event-stream") and not head.get("content-encoding"):
                return await _stream(call, head, passing, ledger, out)
            return await _whole(call, head, passing, ledger, out)
        finally:
            self._passing.discard(passing)
            if passing.call is not None:
                passing.call.close()

    def _another(self, request: RelayRequest, attempt: Attempt) -> bool:
        """True when an engine may have the request that has not failed it: one that says it is full is not asked again at once."""
        failed = attempt.tries.failed | {attempt.record.slot}
        free = any(candidate.slot not in failed for candidate in self._view.candidates(request.model))
        return free and request.routing.target_worker is None


def engine_name(name: str, record: EngineRecord) -> str:
    """Gives what an engine calls the model that the client calls `name`. A name that the engine itself lists stays as it is."""
    known = (record.info.served_name, *record.info.names)
    return name if not name or name in known else record.info.served_name


async def _stream(call: HttpCall, head: Head, passing: Passing, ledger: Ledger, out: Out) -> bytes:
    """Pours events. Until the first of them another engine may be tried."""

    def begun() -> None:
        passing.answer()
        ledger.answered = True
        ledger.meter.answered()
        out.begin(head.status, (*_kept(head, but=("cache-control",)), *UNBUFFERED), comments=True)

    pour = passing.pour = Pour(call, out, begun=begun, events=True)
    last = await pour.run()
    ledger.finish(*pour.usage)
    return last


async def _whole(call: HttpCall, head: Head, passing: Passing, ledger: Ledger, out: Out) -> bytes:
    """Reads the answer and sends it as a whole; one that is too large for that is poured."""
    body = await call.read(WHOLE_BYTES)
    passing.answer()
    ledger.meter.answered()
    if body is not None:
        if not out.whole(head.status, _kept(head), body):
            raise _said(head.status, body)
        last = b""
    else:
        length = (("content-length", str(head.length)),) if head.length is not None else ()
        if not out.begin(head.status, (*_kept(head), *length), comments=False):
            raise EngineProtocol("the engine does not answer with a stream")
        passing.pour = Pour(call, out, begun=None, events=False)
        last = await passing.pour.run()
    if head.status < 400:
        ledger.finish(*(usage_in(body) if body else (0, 0)))
    else:
        ledger.fail(EngineRejected.code)
    return last


async def _fault(call: HttpCall, head: Head, *, keyless: bool) -> SmgError | None:
    """Gives what is wrong with an answer that is the engine's fault, or ours; None for what the client is to see."""
    status = head.status
    if status == 429:
        if not head.get("retry-after"):
            head.headers.append(("retry-after", str(RETRY_AFTER_S)))
        return Busy(head, await call.read(ERROR_BYTES) or b"")
    if status < 300 or (400 <= status < 500 and (keyless or status not in (401, 403))):
        return None
    try:
        body = await call.read(ERROR_BYTES) or b""
    except EngineError:
        body = b""
    detail = f"{status}: {body[:QUOTED].decode('utf-8', 'replace')}"
    if status < 400:
        return EngineProtocol("the engine sends the request elsewhere", detail=detail)
    if status < 500:
        return EngineError("the engine does not accept the gateway's credentials", detail=detail)
    if status == 501:
        return Unimplemented("the engine does not offer this", detail=detail)
    if status in (502, 503):
        wait = head.get("retry-after")
        retry_after_s = int(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else RETRY_AFTER_S
        return EngineUnavailable("the engine cannot serve now", retry_after_s=retry_after_s, detail=detail)
    if status == LoopDetected.status and head.get("x-smg-error-code") == LoopDetected.code:
        return LoopDetected("an engine of this gateway is a gateway whose engine it is in turn", detail=detail)
    if status == 504:
        return EngineTimeout("the engine did not answer in time", detail=detail)
    return EngineError("the engine failed while working on the request", detail=detail)


def _said(status: int, body: bytes) -> SmgError:
    """Gives the error for an answer that came too late for its own status: the head of a stream has left."""
    if status < 400:
        return EngineProtocol("the engine does not answer with a stream")
    return EngineRejected("the engine refused the request", detail=f"{status}: {body[:QUOTED].decode('utf-8', 'replace')}")


def _kept(head: Head, *, but: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in head.headers if name in KEPT and name not in but)
