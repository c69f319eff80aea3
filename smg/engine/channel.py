"""An engine's URL and options in, a grpc.aio channel out. Called by `smg.engine.grpc` when a driver starts, and by `smg.engine.detect`.

URLs: `grpc://HOST:PORT`, `grpcs://HOST:PORT` (TLS, mutual if a client certificate is given), `unix:PATH` or `unix:///PATH`.
"""

import asyncio
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import grpc

from smg.engine.base import EngineOptions
from smg.engine.status import error_of_status
from smg.errors import ConfigError

__all__ = ["call_metadata", "connected", "open_channel", "split_url"]

# Pings are counted as an attack by servers that do not say otherwise (three of the five) when they come more often than every 5 minutes
# while no data flows, as in a long prefill: https://github.com/grpc/grpc/blob/master/doc/keepalive.md
KEEPALIVE_MS = 310_000
KEEPALIVE_TIMEOUT_MS = 20_000


def split_url(url: str) -> tuple[str, bool]:
    """Gives (target for gRPC, whether TLS is used). Raises ConfigError, naming what is wrong."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path or path == "/":
            raise ConfigError([f"engine URL {url!r} names no socket"])
        return f"unix:{path}", False
    try:
        parts = urlsplit(url)
        return f"{_host(parts, url)}:{parts.port}", parts.scheme == "grpcs"
    except ValueError as error:
        raise ConfigError([f"engine URL {url!r} is not valid: {error}"]) from None


def _host(parts: SplitResult, url: str) -> str:
    if parts.scheme not in ("grpc", "grpcs"):
        raise ConfigError([f"engine URL {url!r} must start with grpc://, grpcs:// or unix:"])
    if not parts.hostname or parts.port is None:
        raise ConfigError([f"engine URL {url!r} must name host and port"])
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError([f"engine URL {url!r} must hold nothing but host and port"])
    return f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname


def call_metadata(options: EngineOptions) -> tuple[tuple[str, str], ...]:
    """Gives what goes with every call: the API key, where there is one."""
    return (("authorization", f"Bearer {options.api_key}"),) if options.api_key else ()


async def open_channel(url: str, *, options: EngineOptions) -> grpc.aio.Channel:
    """Opens a channel of its own, without connecting yet. Raises ConfigError for a bad URL or an unreadable PEM file."""
    target, secure = split_url(url)
    arguments = [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),  # a retry is the pipeline's choice: it may take another engine
        ("grpc.initial_reconnect_backoff_ms", 200),
        # gRPC's name for the shortest time that one attempt to connect is given
        ("grpc.min_reconnect_backoff_ms", max(1, int(options.connect_timeout_s * 1000))),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),  # so that closing a driver closes its connection
    ]
    if not secure:
        return grpc.aio.insecure_channel(target, options=arguments)
    return grpc.aio.secure_channel(target, await _credentials(options), options=arguments)


async def connected(channel: grpc.aio.Channel, *, timeout_s: float, connect_timeout_s: float) -> None:
    """Waits until a channel is connected. EngineUnavailable when it cannot be, EngineTimeout when `timeout_s` is over first."""
    try:
        async with asyncio.timeout(min(timeout_s, connect_timeout_s)):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    raise error_of_status(grpc.StatusCode.UNAVAILABLE, f"no connection: {state.name}")
                await channel.wait_for_state_change(state)
    except TimeoutError as error:
        status = grpc.StatusCode.DEADLINE_EXCEEDED if timeout_s < connect_timeout_s else grpc.StatusCode.UNAVAILABLE
        raise error_of_status(status, "no connection in time") from error


async def _credentials(options: EngineOptions) -> grpc.ChannelCredentials:
    if bool(options.client_cert_path) != bool(options.client_key_path):
        raise ConfigError(["a client certificate for engines needs both certificate and key"])
    paths = (options.ca_cert_path, options.client_key_path, options.client_cert_path)
    roots, key, chain = [await asyncio.to_thread(_pem, path) for path in paths]
    return grpc.ssl_channel_credentials(root_certificates=roots, private_key=key, certificate_chain=chain)


def _pem(path: str | None) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigError([f"cannot read {path!r}: {error.strerror}"]) from error
