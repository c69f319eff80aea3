"""A booted guest: systemd as PID 1 in a container of systemd-nspawn, with a network of its own that reaches nobody."""

import contextlib
import ctypes
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import TracebackType

from cgroup import Groups

__all__ = ["Guest", "Unbootable", "why_not"]

PR_SET_PDEATHSIG = 1
BOOT_S = 180.0
COMMAND_S = 180.0
# As Debian 12 and 13 boot on a machine of their own, whatever the host has mounted.
CGROUP_2 = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
LOAD = pathlib.Path(__file__).with_name("load.py")


def _end_with_parent() -> None:
    """The kernel ends this child when the driver is killed, so that no guest stays behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Unbootable(Exception):
    """This machine boots no container."""


def why_not() -> str:
    """Says what this machine lacks to boot a container, or nothing."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [
        name for name in ("systemd-nspawn", "nsenter", "debootstrap") if subprocess.run(["which", name], capture_output=True).returncode
    ]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install -y systemd-container debootstrap util-linux"
    return ""


class Guest:
    """Runs commands in the guest, and clients in its network. A context manager; leaving it powers the guest off."""

    def __init__(self, root: pathlib.Path, *, log: pathlib.Path) -> None:
        self.root = root
        self._log = log
        self._nspawn: subprocess.Popen[bytes]
        self.leader = 0
        self._init = -1  # a pidfd: numbers are used again
        self._groups: Groups

    def __enter__(self) -> "Guest":
        command = [
            "systemd-nspawn",
            "--register=no",
            "--keep-unit",
            "--quiet",
            "--boot",
            "--private-network",
            "--console=pipe",
            "-D",
            str(self.root),
        ]
        try:
            self._groups = Groups()
        except OSError as error:
            raise Unbootable(f"no control group can be made: {error}") from error
        with self._log.open("wb") as log:
            self._nspawn = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **CGROUP_2}, preexec_fn=self._begin
            )
        try:
            self._wait_booted()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            self.run("systemctl poweroff", check=False)
            self._nspawn.wait(timeout=30)
        self._kill()

    def _begin(self) -> None:
        """In the child, before it becomes systemd-nspawn."""
        _end_with_parent()
        self._groups.join()

    def _kill(self) -> None:
        if self._nspawn.poll() is None:
            if self._init >= 0:  # the guest's PID 1 would outlive its container's manager
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
            self._nspawn.kill()
            self._nspawn.wait()
        if self._init >= 0:
            os.close(self._init)
            self._init = -1
        self._groups.close()

    def _wait_booted(self) -> None:
        end = time.monotonic() + BOOT_S
        while time.monotonic() < end:
            if self._nspawn.poll() is not None:
                raise Unbootable(f"systemd-nspawn ended: {self._log.read_text(errors='replace')[-500:]}")
            children = pathlib.Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
            self.leader = int(children[0]) if children else 0
            if self.leader and self.run("systemctl is-system-running", check=False).strip() in ("running", "degraded"):
                self._init = os.pidfd_open(self.leader)
                return
            time.sleep(0.1)
        raise Unbootable(f"the guest did not boot: {self._log.read_text(errors='replace')[-500:]}")

    def run(self, script: str, *, check: bool = True, timeout_s: float = COMMAND_S) -> str:
        """Runs a shell script as the guest's root; gives what it printed. AssertionError when it fails and `check` is set."""
        command = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--", "/usr/bin/env", "-i"]
        command += [
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C.UTF-8",
            "HOME=/root",
            "DEBIAN_FRONTEND=noninteractive",
            "SYSTEMD_PAGER=",
        ]
        done = subprocess.run(
            [*command, "/bin/bash", "-c", script], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
        if check:
            assert done.returncode == 0, f"{script!r} gave {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
        return done.stdout

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Writes a file of the guest, also where it has mounted something of its own."""
        quoted = shlex.quote(path)
        self.run(f"mkdir -p $(dirname {quoted}) && printf %s {shlex.quote(text)} > {quoted} && chmod {mode:o} {quoted}")

    def wait(self, script: str, *, within_s: float, what: str) -> float:
        """Polls until the script succeeds; gives the seconds that took."""
        began = time.monotonic()
        while True:
            if self.run(f"({script}) > /dev/null 2>&1 && echo yes", check=False).strip() == "yes":
                return time.monotonic() - began
            assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
            time.sleep(0.05)

    @contextlib.contextmanager
    def load(self, *flags: str, settle_s: float = 1.5) -> Iterator[dict[str, dict[str, object]]]:
        """Clients ask from here to the end of the block, and for a moment before and after; then the dictionary holds what became of it."""
        command = ["nsenter", "-t", str(self.leader), "-n", "--", sys.executable, str(LOAD), *flags]
        clients = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=_end_with_parent)
        result: dict[str, dict[str, object]] = {}
        try:
            time.sleep(settle_s)
            yield result
            time.sleep(settle_s)
            clients.terminate()
            result.update(json.loads(clients.communicate(timeout=180)[0]))
        finally:
            if clients.poll() is None:
                clients.kill()
                clients.wait()
