"""A data worker: one process that serves HTTP with Granian on an event loop of its own, until the supervisor tells it to end.

SIGTERM: the gateway stops. Readiness says no, connections are taken for a moment more, requests run to their end within the grace period.
SIGHUP: a successor serves already. No connection is taken any more, and those that are open are given up at the end of their request.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from typing import Any

import uvloop
from granian import _futures, _granian
from granian.http import HTTP1Settings, HTTP2Settings

from smg.config import Config
from smg.obs.shm import now_ms
from smg.server.boot import Application, Boot, MakeApplication, Phase, report_ready
from smg.server.closing import ClosingProtocol

__all__ = ["DataWorker", "make_application", "run_worker"]

log = logging.getLogger(__name__)

# Granian 2.8.9 as it is; its stubs are of an earlier version.
FUTURES: Any = _futures
NATIVE: Any = _granian

BEAT_S = 1.0
# Load balancers learn of the end from the readiness probe; meanwhile nobody is refused.
ACCEPT_AFTER_TERM_S = 0.25
# A connection that is taken has this long to send its request, and one that is in use to be given up politely.
SETTLE_AFTER_TERM_S = 0.1
SETTLE_AFTER_HUP_S = 2.0
# What clients have at least to read the answers of finished requests to the end, and what closing may take: less than the supervisor waits.
FLUSH_S = 1.0
CLOSE_S = 1.0
POLL_S = 0.02
CONNECTIONS = 1 << 16


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
        self._closing = False
        self._told: asyncio.Future[signal.Signals]
        self._stopped = asyncio.Event()
        # Granian owns its descriptor, and it is exchanged for another when no more connections shall be taken.
        self._listener = os.dup(boot.http.fileno())

    async def run(self) -> int:
        """Boots, serves, drains; gives the exit code."""
        loop = asyncio.get_running_loop()
        self._told = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._tell, number)
        self._beat(loop)
        self._application = await self._make_application(self._boot)
        quit_signal = self._serve(loop)
        report_ready(self._boot)
        number = await self._told
        deadline = time.monotonic() + self._boot.config.server.shutdown_grace_period_s
        drained = await self._drain(number, deadline)
        quit_signal.set()
        await self._bounded(self._stopped.wait(), max(FLUSH_S, deadline - time.monotonic()) if drained else 0.0)
        await self._bounded(self._application.close(), CLOSE_S)
        return 0

    def _tell(self, number: signal.Signals) -> None:
        if not self._told.done():
            self._told.set_result(number)
        elif number == signal.SIGTERM:  # the gateway stops while this worker makes room for its successor
            self._application.draining = True

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._boot.shm.beat(self._boot.row, now_ms())
        loop.call_later(BEAT_S, self._beat, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Starts Granian's threads; what is returned ends them when it is set."""
        config = self._boot.config
        quit_signal = NATIVE.WorkerSignal()
        quit_signal.add_cb(lambda: loop.call_soon_threadsafe(self._stopped.set))
        worker = NATIVE.RSGIWorker(
            self._boot.row,
            (None, NATIVE.SocketHolder(self._listener, False, config.server.backlog)),
            None,  # ipc
            1,  # threads of the HTTP runtime
            64,  # its blocking threads
            1,  # Python threads
            30,  # seconds that these may be idle
            CONNECTIONS,
            "auto",
            HTTP1Settings(),
            HTTP2Settings(max_concurrent_streams=1000),
            True,  # websockets
            None,  # static files
            *tls_settings(config),
            (None, None),  # metrics
        )
        scheduler = FUTURES._new_cbscheduler(loop, FUTURES._future_watcher_wrapper(self._call), impl_asyncio=True)
        worker.serve_str(scheduler, loop, quit_signal)
        return quit_signal

    async def _call(self, scope: Any, protocol: Any) -> None:
        if self._closing and scope.proto == "http" and scope.http_version.startswith("1"):
            protocol = ClosingProtocol(protocol)
        await self._application.__rsgi__(scope, protocol)

    async def _drain(self, number: signal.Signals, deadline: float) -> bool:
        """False when requests were still running at the deadline."""
        log.debug("draining", extra={"signal": number.name})
        self._boot.shm.set_row(self._boot.row, os.getpid(), Phase.DRAINING, now_ms())
        self._closing = True
        if number == signal.SIGTERM:
            self._application.draining = True
            await asyncio.sleep(min(ACCEPT_AFTER_TERM_S, max(0.0, deadline - time.monotonic())))
        self._stop_accepting()
        settle = SETTLE_AFTER_TERM_S if number == signal.SIGTERM else SETTLE_AFTER_HUP_S
        await self._bounded(self._settled(settle), deadline - time.monotonic())
        drained = await self._bounded(self._application.drained(), deadline - time.monotonic())
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

    def _stop_accepting(self) -> None:
        """Puts a socket that nobody connects to in the listener's place: Granian has no way to stop accepting and still serve."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.bind("")  # an abstract address that the kernel chooses
            silent.listen(1)
            silent.setblocking(False)
            os.dup2(silent.fileno(), self._listener, inheritable=False)
        self._boot.http.close()

    @staticmethod
    async def _bounded(waiting: Any, seconds: float) -> bool:
        """False when the time was not enough."""
        try:
            async with asyncio.timeout(seconds):
                await waiting
        except TimeoutError:
            return False
        return True


def tls_settings(config: Config) -> tuple[Any, ...]:
    """Gives Granian's TLS arguments: on, certificate, key, its password, lowest version, CA, revocations, client certificates wanted."""
    tls = config.tls
    if not tls.cert_path:
        return (False, None, None, None, "tls1.2", None, [], False)
    return (True, tls.cert_path, tls.key_path, None, "tls1.2", None, [], False)
