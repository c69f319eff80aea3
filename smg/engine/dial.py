"""Sockets to engines: an address and options in, a connected non-blocking socket out, over TLS with its handshake done.

Called by `smg.engine.native` and `smg.engine.http`. Failures are OSError, ConfigError for files that cannot be used.
"""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import TypeAlias

from smg.engine.base import EngineOptions
from smg.errors import ConfigError

__all__ = ["Address", "Tls", "connect", "handshake", "tls_context"]

# A path, or host and port.
Address: TypeAlias = str | tuple[str, int]
# A TLS connection with what came in and what is to go out, encrypted.
Tls: TypeAlias = tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]

# An engine's machine that is gone is noticed within a minute, without HTTP/2 pings, which some engines count as an attack.
TCP_OPTIONS = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


async def connect(address: Address) -> socket.socket:
    """Connects to the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    if isinstance(address, str):
        return await _dial(loop, socket.AF_UNIX, address)
    host, port = address
    error: OSError | None = None
    for family, _, _, _, found in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return await _dial(loop, family, found)
        except OSError as failed:
            error = failed
    raise error or OSError(f"{host} has no address")


async def handshake(peer: socket.socket, *, host: str, options: EngineOptions) -> Tls:
    """Does the TLS handshake. The engine must prove that it is `host`, and must speak HTTP/2."""
    loop = asyncio.get_running_loop()
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = await asyncio.to_thread(tls_context, options, protocol="h2")  # read anew each time: certificates are replaced while we run
    tls = context.wrap_bio(received, to_send, server_hostname=host)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            await loop.sock_sendall(peer, to_send.read())  # tells the engine why
            raise
        else:
            break
        await loop.sock_sendall(peer, to_send.read())
        data = await loop.sock_recv(peer, 65536)
        if not data:
            raise OSError("closed during the TLS handshake")
        received.write(data)
    await loop.sock_sendall(peer, to_send.read())
    if tls.selected_alpn_protocol() != "h2":
        raise OSError("it does not speak HTTP/2 over TLS")
    return tls, received, to_send


async def _dial(loop: asyncio.AbstractEventLoop, family: int, address: object) -> socket.socket:
    peer = socket.socket(family, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        await loop.sock_connect(peer, address)  # type: ignore[arg-type]  # what getaddrinfo gives, or a path
        if family != socket.AF_UNIX:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in TCP_OPTIONS.items():
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except BaseException:
        peer.close()
        raise
    return peer


def tls_context(options: EngineOptions, *, protocol: str) -> ssl.SSLContext:
    """Gives what a client of `protocol` (its ALPN name) shows and asks for. Raises ConfigError, and OSError for files that are no PEM."""
    if bool(options.client_cert_path) != bool(options.client_key_path):
        raise ConfigError(["a client certificate for engines needs both certificate and key"])
    for path in (options.ca_cert_path, options.client_cert_path, options.client_key_path):
        if path and not Path(path).is_file():
            raise ConfigError([f"cannot read {path!r}"])
    context = ssl.create_default_context(cafile=options.ca_cert_path)
    if options.client_cert_path:
        context.load_cert_chain(options.client_cert_path, options.client_key_path)
    context.set_alpn_protocols([protocol])
    return context
