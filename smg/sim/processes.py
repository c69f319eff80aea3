"""Child processes of the demo and of the tests: started, waited for, ended, with nothing left behind.

In: a command line. Out: the address on its `ready` line, or the end of its log when it fails. The demo, the end-to-end tests and the
tests against real engines run engines and gateway through it.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from types import TracebackType

__all__ = ["Child", "ChildFailed", "free_port", "gateway_command", "python_module", "sim_command", "wait_http"]

PR_SET_PDEATHSIG = 1
LOG_TAIL = 4000
PORTS = range(20_000, 32_768)  # below Linux's own range (net.ipv4.ip_local_port_range)
# Ties a program to the life of its parent. Without it that is done between fork and exec, where a gRPC that is at work in the parent
# brings the child down every now and then.
SETPRIV = shutil.which("setpriv")


class ChildFailed(Exception):
    """A child ended early or was not ready in time; the message holds the end of what it printed."""


def free_port() -> int:
    """Gives a loopback port that nobody listened on a moment ago.

    The kernel gives none of these to a client's connection or to who asks for any port: until it is bound, only chance can take it.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One running program; a context manager that ends it. `name` is the word for it in messages, `log` the file with all it prints.

    It gets its own session, so that Ctrl-C reaches only the parent, which then ends its children in order; the kernel ends it when
    the parent dies without doing so.
    """

    def __init__(self, name: str, *, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        with tempfile.NamedTemporaryFile(prefix=f"smg-{name}-".replace("/", "_"), suffix=".log", delete=False) as log:
            self.log = pathlib.Path(log.name)
            self.process = subprocess.Popen(
                command if SETPRIV is None else [SETPRIV, "--pdeathsig", "TERM", *command],
                env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent if SETPRIV is None else None,
            )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def output(self) -> str:
        """Gives what it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def check(self) -> None:
        """Raises ChildFailed when it has ended."""
        status = self.process.poll()
        if status is not None:
            raise ChildFailed(f"{self.name} ended with status {status}:\n{self.output()[-LOG_TAIL:]}")

    def wait_ready(self, *, within_s: float) -> str:
        """Waits for its line `ready ADDRESS` and gives the address; ChildFailed when it ends or `within_s` pass first."""
        end = time.monotonic() + within_s
        while True:
            for line in self.output().splitlines():
                word, _, address = line.partition(" ")
                if word == "ready" and address:
                    return address.split()[0]
            self.check()
            if time.monotonic() > end:
                raise ChildFailed(f"{self.name} was not ready after {within_s:g} s:\n{self.output()[-LOG_TAIL:]}")
            time.sleep(0.02)

    def stop(self, *, within_s: float = 10.0) -> int:
        """Ends it with SIGTERM, with SIGKILL to its session when that takes longer than `within_s`; gives the exit status. Repeatable."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=within_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self.log.unlink(missing_ok=True)
        return self.process.returncode

    def kill(self) -> None:
        """Ends its whole session with SIGKILL, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def python_module(module: str, *arguments: str) -> list[str]:
    """Gives the command that runs a module with this Python."""
    return [sys.executable, "-m", module, *arguments]


def sim_command(*, protocol: str, flags: Sequence[str] = ()) -> list[str]:
    """Gives the command of a simulated engine on a free port."""
    return python_module("smg.sim", "--protocol", protocol, "--port", "0", *flags)


def gateway_command(*, port: int, engines: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
    """Gives the command of a gateway on loopback in front of the engines at these addresses."""
    place = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", "0")
    named = ("--worker-urls", *engines) if engines else ()
    return python_module("smg", "launch", *place, *named, *flags)


def wait_http(child: Child, *, url: str, within_s: float) -> None:
    """Waits until `url` answers with 200; ChildFailed when the child ends or `within_s` pass first."""
    end = time.monotonic() + within_s
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer = "nothing"
    while True:
        try:
            with opener.open(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError) as error:
            answer = str(error)
        child.check()
        if time.monotonic() > end:
            raise ChildFailed(f"{child.name}: {url} did not answer with 200 in {within_s:g} s ({answer}):\n{child.output()[-LOG_TAIL:]}")
        time.sleep(0.02)
