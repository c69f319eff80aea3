"""A gateway with the real supervisor and a trivial application: run as a program by the process tests.

`/pid` says who answers; `/stream?N` sends N lines, 50 ms apart, and then `end`, fewer when the file $TEST_STREAMS_END has come to be; each
counts at engine slot 0 while it runs.
"""

import asyncio
import os
import pathlib
import sys
from typing import Any

from smg.config.load import load
from smg.errors import ConfigError
from smg.server import supervisor
from smg.server.boot import Boot
from smg.worker import WorkerView


def told_to_end() -> bool:
    return pathlib.Path(os.environ.get("TEST_STREAMS_END", "/nowhere")).exists()


class Trivial:
    """Counts its requests, as the real application does."""

    def __init__(self, boot: Boot) -> None:
        self.draining = False
        self.version = boot.config.server.request_id_headers
        self.view = WorkerView(boot.shm, row=boot.row, folder=boot.runtime_dir)
        self.shm = boot.shm
        self._inflight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def drained(self) -> None:
        await self._idle.wait()

    async def close(self) -> None:
        pass

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        self._inflight += 1
        self._idle.clear()
        lease = self.view.acquire(0, 1)
        try:
            await self._answer(scope, protocol)
        finally:
            lease.release()
            self._inflight -= 1
            if not self._inflight:
                self._idle.set()

    async def _answer(self, scope: Any, protocol: Any) -> None:
        headers = [("content-type", "text/plain")]
        if scope.path == "/readiness":
            protocol.response_str(503 if self.draining else 200, headers, "")
        elif scope.path == "/inflight":
            protocol.response_str(200, headers, str(sum(self.shm.held(row, 0, 0) for row in range(self.shm.rows)) - 1))
        elif scope.path == "/stream":
            transport = protocol.response_stream(200, headers)
            for line in range(int(scope.query_string)):
                if told_to_end():
                    break
                await transport.send_str(f"{os.getpid()} {line}\n")
                await asyncio.sleep(0.05)
            await transport.send_str("end\n")
        else:
            protocol.response_str(200, headers, f"{os.getpid()} {','.join(self.version)}")


async def make(boot: Boot) -> Trivial:
    if "die-at-boot" in boot.config.server.request_id_headers:
        os._exit(3)
    if "mistake" in boot.config.server.request_id_headers:
        raise ConfigError(["server.api_key_file: holds no key"])
    return Trivial(boot)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    supervisor.HUNG_AFTER_MS = int(os.environ.get("TEST_HUNG_AFTER_MS", supervisor.HUNG_AFTER_MS))
    sys.exit(supervisor.run(load(arguments).config, reload=lambda: load(arguments).config, make_application=make))
