"""The control process: everything of which a gateway must have only one. Engines and their health, load polling, metrics, admin calls."""

import asyncio
import signal

import uvloop

from smg.obs.shm import now_ms
from smg.server.boot import Boot, report_ready

__all__ = ["Control", "run_control"]

BEAT_S = 1.0


def run_control(boot: Boot) -> int:
    """Runs until told to end; gives the exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Control(boot).run())


class Control:
    """One control process's life."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot

    async def run(self) -> int:
        """Starts everything, says that it serves, ends with SIGTERM."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, told.set)
        self._beat(loop)
        report_ready(self._boot)
        await told.wait()
        return 0

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._boot.shm.beat(self._boot.row, now_ms())
        loop.call_later(BEAT_S, self._beat, loop)
