"""The prefill engine's part of one relayed request: asked, read to its end, and ended early when nobody wants it any more.

Made by `relay_pairs.py`. It runs beside the request, so that it can be ended gently: an engine that had finished just then has said so, and
where its KV cache lies; cut off, nobody would ever fetch that.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from smg.engine import HttpCall, HttpEngine, HttpRequest
from smg.errors import ClientGone, EngineProtocol, SmgError
from smg.pipeline.relay_faults import Refused, fault_of
from smg.pipeline.tending import Tended
from smg.worker import EngineRecord, Lease

__all__ = ["Leg"]

# Of an answer of one token, with whatever else was asked for.
ANSWER_BYTES = 16 << 20
# What an engine may take to close a connection on whose other end nobody is.
PARTING_S = 0.8


class Handed(Struct, frozen=True):
    """What is read of vLLM's answer."""

    kv_transfer_params: Raw = Raw(b"null")


HANDED = msgspec.json.Decoder(Handed)


class Leg(Tended):
    """`error`: what ended it, unless it was left; `params`: where the engine keeps the prompt's KV cache, as it says so itself, else empty.

    `done` is called at its end, with the seconds that it took if it went well, else None; it gives the lease back. `another()` says
    whether a further engine may be asked in place of one that refuses now.
    """

    def __init__(
        self,
        record: EngineRecord,
        lease: Lease,
        *,
        another: Callable[[], bool],
        done: Callable[["Leg", float | None], object],
    ) -> None:
        self.record = record
        self.error: SmgError | None = None
        self.params = b""
        self.task: asyncio.Task[None] | None = None
        self.lease = lease
        self._another = another
        self._done = done
        self._call: HttpCall | None = None
        self._left = False
        self._took_s: float | None = None
        self._told: Callable[[Exception], object] | None = None

    @property
    def over(self) -> bool:
        """True when the engine has no more work with it."""
        return self.task is None or self.task.done()

    @property
    def computed(self) -> bool:
        """True when the engine has computed the prompt."""
        return self._took_s is not None

    def start(self, engine: HttpEngine, message: HttpRequest, *, keyless: bool) -> None:
        """Asks the engine."""
        self.task = asyncio.get_running_loop().create_task(self._run(engine, message, keyless=keyless))
        self.task.add_done_callback(self._settle)

    async def ended(self, *, within_s: float | None = None) -> None:
        """Waits for its end, or so long. The wait's own end leaves it alone."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=within_s)

    async def beside(self, other: "asyncio.Future[Any]") -> None:
        """Waits for the other's end, or for an error of ours."""
        while not other.done() and self.error is None:
            mine = [] if self.task is None or self.task.done() else [self.task]
            await asyncio.wait([other, *mine], return_when=asyncio.FIRST_COMPLETED)

    def on_error(self, told: Callable[[Exception], object]) -> None:
        """Calls `told` with what ends it, also if that was before."""
        self._told = told
        if self.error is not None:
            told(self.error)

    def waits_for(self) -> str:
        """See `Tended`."""
        return self.record.address

    def progress(self) -> int:
        """See `Tended`."""
        return 0

    def fail(self, error: SmgError) -> None:
        """See `Tended`."""
        if not self.over and not self._left:
            self.error = error
            self._cancel()

    async def leave(self) -> None:
        """Tells the engine that nobody waits, by closing our side; returns when it has ended, within a second."""
        self._left = True
        if self.task is None:  # it was not begun after all
            self.lease.release()
        if self.over:
            return
        if self._call is None or not self._call.part():
            self._cancel()
        await self.ended(within_s=PARTING_S)
        self._cancel()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def _run(self, engine: HttpEngine, message: HttpRequest, *, keyless: bool) -> None:
        began_s = time.monotonic()
        try:
            self.params = await self._ask(engine, message, keyless=keyless)
        except SmgError as error:
            self.error = None if self._left else error  # else it is the answer to our leaving
        else:
            self._took_s = time.monotonic() - began_s

    def _settle(self, task: "asyncio.Task[None]") -> None:
        """Tells how it went. A task that is cancelled before it has begun ends here too."""
        self._done(self, self._took_s)
        if self.error is not None and self._told is not None:
            self._told(self.error)

    async def _ask(self, engine: HttpEngine, message: HttpRequest, *, keyless: bool) -> bytes:
        call = await engine.open(message, keyless=keyless, sent=self._sent)
        try:
            head = await call.head()
            if (error := await fault_of(call, head, keyless=keyless)) is not None:
                error.retryable = error.retryable and self._another()
                raise error
            body = await call.read(ANSWER_BYTES)
            if head.status >= 400:
                raise Refused(head, body or b"")
            if body is None:
                raise EngineProtocol("the prefill engine's answer is too long")
        finally:
            call.close()
        return params_in(body)

    def _sent(self, call: HttpCall) -> None:
        if self._left:
            raise ClientGone("nobody waits any more")
        self._call = call


def params_in(body: bytes) -> bytes:
    """Gives the value of `kv_transfer_params`, byte for byte; empty where there is none."""
    if not body.startswith(b"{"):
        return b""
    try:
        params = bytes(HANDED.decode(body).kv_transfer_params)
    except (msgspec.DecodeError, RecursionError):
        return b""
    return b"" if params == b"null" else params
