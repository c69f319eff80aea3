"""Listening sockets that systemd hands to the service, see sd_listen_fds(3). Asked by the supervisor before it opens a port itself.

Those of a socket unit are named `http` and `metrics` (FileDescriptorName=). Those that an earlier run left in systemd's keeping
(`Notifier.keep`) are named `kept-http` and `kept-metrics`. Either way connections that come while no process runs wait and are not refused.
"""

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["KEPT", "Activation"]

log = logging.getLogger(__name__)

FIRST = 3
KEPT = "kept-"


class Activation:
    """What was handed over and not taken yet. `first` is the number of the first descriptor; `units`: names that a socket unit holds."""

    def __init__(self, environment: Mapping[str, str], *, first: int = FIRST) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self.units: set[str] = set()
        count = environment.get("LISTEN_FDS", "")
        if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
            return
        names = environment.get("LISTEN_FDNAMES", "").split(":")
        for name, number in zip(names, range(first, first + int(count)), strict=False):
            self._add(name, number)

    def _add(self, name: str, number: int) -> None:
        try:
            made = socket.socket(fileno=number)
        except OSError:  # no socket: nothing of ours
            return
        listens = (
            made.type == socket.SOCK_STREAM and made.family != socket.AF_UNIX and made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )
        if not listens or name in self._sockets:
            made.close()
            return
        made.set_inheritable(False)
        made.setblocking(False)
        self._sockets[name] = made

    def take(self, name: str, *, family: int, address: tuple[object, ...]) -> socket.socket | None:
        """Gives a socket unit's listener wherever it listens, or one that was kept if it is at (host, port); port 0 is any."""
        unit, kept = self._sockets.pop(name, None), self._sockets.pop(KEPT + name, None)
        if kept is not None and (unit is not None or not _is_at(kept, family, address)):
            kept.close()
            kept = None
        if unit is not None:
            self.units.add(name)
        if unit is not None and not _is_at(unit, family, address):
            log.warning(
                "the socket unit's address for %s holds, %s:%s, and not the configured one, %s:%s",
                name,
                *unit.getsockname()[:2],
                *address[:2],
            )
        return unit or kept

    def close(self) -> None:
        """Closes what nobody took."""
        while self._sockets:
            self._sockets.popitem()[1].close()


def _is_at(listener: socket.socket, family: int, address: tuple[object, ...]) -> bool:
    host, port = listener.getsockname()[:2]
    return listener.family == family and host == address[0] and address[1] in (0, port)
