"""Sockets that the supervisor opens once and its children inherit, so that neither a crash nor a reload closes them."""

import contextlib
import os
import socket
from pathlib import Path

from smg.errors import ConfigError
from smg.server.activation import Activation

__all__ = ["listen_tcp", "listen_unix", "shown_address"]


def listen_tcp(host: str, port: int, *, backlog: int, setting: str, name: str = "", activation: Activation | None = None) -> socket.socket:
    """Gives a listening socket: the one that was handed over under `name`, else a new one.

    Raises ConfigError, naming the setting, when the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        given = activation.take(name, family=family, address=address) if activation else None
        return given or _bound(socket.socket(family, kind, protocol), address, backlog)
    except OSError as error:
        raise ConfigError([f"{setting}: cannot listen on {host}:{port}: {error.strerror or error}"]) from error


def _bound(made: socket.socket, address: object, backlog: int) -> socket.socket:
    with contextlib.ExitStack() as on_error:
        on_error.callback(made.close)
        if made.family != socket.AF_UNIX:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        made.listen(backlog)
        made.setblocking(False)
        on_error.pop_all()
    return made


def listen_unix(path: Path, *, backlog: int = 64) -> socket.socket:
    """Gives a listening UNIX socket that only the own user may connect to; what lay at its path is replaced."""
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(path), backlog)
    finally:
        os.umask(before)


def shown_address(listener: socket.socket) -> str:
    """Gives HOST:PORT as it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
