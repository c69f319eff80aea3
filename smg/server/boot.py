"""What a child process gets from the supervisor, by fork; and how it is forked."""

import ctypes
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from smg.config import Config
from smg.errors import ConfigError
from smg.obs.shm import Shm, now_ms

__all__ = ["Application", "Boot", "MakeApplication", "Phase", "fork", "report_ready"]

log = logging.getLogger(__name__)

PR_SET_NAME = 15
PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8


class Phase:
    """How far a process is, as its row in shared memory says; 0 = no process."""

    STARTING = 1
    READY = 2
    DRAINING = 3


class Boot(Struct, frozen=True, kw_only=True):
    """All that a child inherits. `report`: where it says that it serves; `wake_fd`: eventfd that rouses the control process."""

    config: Config
    shm: Shm
    row: int
    name: str
    state_dir: Path
    runtime_dir: Path
    http: socket.socket
    metrics: socket.socket
    probes: socket.socket | None
    control: socket.socket
    report: socket.socket
    wake_fd: int


class Application(Protocol):
    """What a data worker serves: an RSGI application that knows when it is idle."""

    draining: bool

    def __rsgi__(self, scope: Any, protocol: Any) -> Awaitable[None]:
        """Answers one request."""

    async def drained(self) -> None:
        """Returns when no request is being answered."""

    async def close(self) -> None:
        """Gives back what it holds."""


MakeApplication: TypeAlias = Callable[[Boot], Any]


def fork(run: Callable[[], int], *, name: str, close: Callable[[], None]) -> int:
    """Forks a child that runs `run` and exits with its result; gives the pid. `close` drops, in the child, what is the parent's alone.

    The kernel kills the child when the parent dies. Signals that come before the child has its own handlers end it.
    """
    parent = os.getpid()
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        return pid
    code = 1
    try:
        code = _child(run, parent, name, close)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        os._exit(code)  # never back into the parent's stack


def _child(run: Callable[[], int], parent: int, name: str, close: Callable[[], None]) -> int:
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(PR_SET_NAME, name.encode()[:15])
        if hasattr(libc, "mallopt"):  # glibc's: threads that hardly allocate at the same time need no heaps of their own
            libc.mallopt(M_ARENA_MAX, 1)
        if os.getppid() != parent:
            return 1
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to all; the supervisor says who stops when
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        close()
        return run()
    except ConfigError as error:
        log.error("; ".join(error.mistakes))
        return 1
    except Exception:
        log.exception("%s failed", name)
        return 1
    finally:
        logging.shutdown()


def report_ready(boot: Boot) -> None:
    """Tells the supervisor that this process serves."""
    boot.shm.set_row(boot.row, os.getpid(), Phase.READY, now_ms())
    boot.report.send(f"ready {os.getpid()}".encode())
