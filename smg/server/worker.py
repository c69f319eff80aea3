"""A data worker: one process that serves HTTP on an event loop of its own, until the supervisor tells it to end.

SIGTERM: the gateway stops. Readiness says no, connections are taken for a moment more, requests run to their end within the grace period.
SIGHUP: a successor serves already. No connection is taken any more, and those that are open are given up at the end of their request.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import time
from collections.abc import Awaitable

import uvloop

from smg.obs.shm import now_ms
from smg.server.boot import Application, Boot, MakeApplication, Phase, report_ready
from smg.server.crowd import Crowd
from smg.server.granian_front import GranianFront
from smg.server.native_front import NativeFront

__all__ = ["DataWorker", "make_application", "run_worker"]

log = logging.getLogger(__name__)

BEAT_S = 1.0
# Load balancers learn of the end from the readiness probe; meanwhile nobody is refused.
ACCEPT_AFTER_TERM_S = 0.25
# A connection that is taken has this long to send its request, and one that rests between requests to be given up politely.
SETTLE_AFTER_TERM_S = 0.5
SETTLE_AFTER_HUP_S = 2.0
POLL_S = 0.02
# Requests leave hardly any cycles behind, so the collector need not look after every few hundred objects.
GC_OBJECTS = 10_000
# What clients have at least to read the answers of finished requests to the end, and what closing may take: less than the supervisor waits.
FLUSH_S = 1.0
CLOSE_S = 1.0


def run_worker(boot: Boot, *, make_application: MakeApplication) -> int:
    """Serves until told to end; gives the exit code."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(DataWorker(boot, make_application=make_application).run())  # the process ends with the loop


async def make_application(boot: Boot) -> Application:
    """Makes what the gateway serves."""
    from smg.server.data import DataApplication

    return await DataApplication.make(boot)


class DataWorker:
    """One worker's life."""

    def __init__(self, boot: Boot, *, make_application: MakeApplication) -> None:
        self._boot = boot
        self._make_application = make_application
        self._application: Application
        self._front: GranianFront | NativeFront
        self._told: asyncio.Future[signal.Signals]

    async def run(self) -> int:
        """Boots, serves, drains; gives the exit code."""
        loop = asyncio.get_running_loop()
        self._told = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._tell, number)
        self._beat(loop)
        self._application = await self._make_application(self._boot)
        settle_memory()
        front = NativeFront if self._boot.config.server.http_front == "native" else GranianFront
        self._front = front(
            self._application, config=self._boot.config, number=self._boot.row, crowd=Crowd(self._boot.shm, row=self._boot.row)
        )
        await self._front.start(self._boot.http)
        report_ready(self._boot)
        number = await self._told
        deadline = time.monotonic() + self._boot.config.server.shutdown_grace_period_s
        drained = await self._drain(number, deadline)
        await self._front.stop(within_s=max(FLUSH_S, deadline - time.monotonic()) if drained else 0.0)
        await bounded(self._application.close(), CLOSE_S)
        return 0

    def _tell(self, number: signal.Signals) -> None:
        if not self._told.done():
            self._told.set_result(number)
        elif number == signal.SIGTERM:  # the gateway stops while this worker makes room for its successor
            self._application.draining = True

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._boot.shm.beat(self._boot.row, now_ms())
        loop.call_later(BEAT_S, self._beat, loop)

    async def _drain(self, number: signal.Signals, deadline: float) -> bool:
        """False when requests were still running at the deadline."""
        log.debug("draining", extra={"signal": number.name})
        self._boot.shm.set_row(self._boot.row, os.getpid(), Phase.DRAINING, now_ms())
        self._front.say_close()
        if number == signal.SIGTERM:
            self._application.draining = True
            await asyncio.sleep(min(ACCEPT_AFTER_TERM_S, max(0.0, deadline - time.monotonic())))
        self._front.stop_accepting()
        settle = SETTLE_AFTER_TERM_S if number == signal.SIGTERM else SETTLE_AFTER_HUP_S
        await bounded(self._settled(settle), deadline - time.monotonic())
        drained = await bounded(self._application.drained(), deadline - time.monotonic())
        if drained and number == signal.SIGHUP:  # who was answered last was not told that the connection ends: its next request may come
            await bounded(self._settled(SETTLE_AFTER_TERM_S), deadline - time.monotonic())
            drained = await bounded(self._application.drained(), deadline - time.monotonic())
        if not drained:
            log.warning("the grace period is over; requests are cut")
        return drained

    async def _settled(self, seconds: float) -> None:
        """Waits for what was accepted and not read yet; a gateway that stops meanwhile does not wait for the politeness of a reload."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < self._settle_s(seconds):  # noqa: ASYNC110  the target moves
            await asyncio.sleep(min(POLL_S, seconds - waited))

    def _settle_s(self, seconds: float) -> float:
        return SETTLE_AFTER_TERM_S if self._application.draining else seconds


def settle_memory() -> None:
    """Takes what is loaded out of the garbage collector's sight: it lives as long as the process, and is looked at for nothing.

    What loading freed goes back to the kernel: the text of a vocabulary and what was made of it on the way are tens of megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if trim is not None:
        trim(ctypes.c_size_t(0))


async def bounded(waiting: Awaitable[object], seconds: float) -> bool:
    """False when the time was not enough."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return False
    return True
