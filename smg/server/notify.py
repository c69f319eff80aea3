"""What systemd is told: datagrams to the socket that it names in NOTIFY_SOCKET, see sd_notify(3). Used by the supervisor."""

import array
import contextlib
import os
import socket
import time
from collections.abc import Mapping

__all__ = ["Notifier"]


class Notifier:
    """Does nothing when the process was not started by systemd with Type=notify. `watchdog_s`: the longest time between pings, 0 = none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        told_pid = environment.get("WATCHDOG_PID", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        mine = not told_pid or told_pid == str(os.getpid())
        self.watchdog_s = int(microseconds) / 1e6 if mine and microseconds.isdecimal() else 0.0

    def ready(self) -> None:
        """Says that requests are served."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Says that a reload has begun; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Says that the service drains."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Says that all is well."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Sets the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def keep(self, listener: socket.socket, *, name: str) -> None:
        """Leaves a socket in systemd's keeping under a name, in place of what it had by that name; the next run gets it, see FDSTORE=1."""
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")
        self._send(f"FDSTORE=1\nFDNAME={name}", listener)

    def _send(self, message: str, *passed: socket.socket) -> None:
        if not self._address:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [each.fileno() for each in passed]))] if passed else []
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, contextlib.suppress(OSError):
            sender.setblocking(False)
            sender.sendmsg([message.encode()], rights, 0, self._address)
