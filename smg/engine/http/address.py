"""Addresses of HTTP engines: `http://HOST[:PORT][/PREFIX]` and `https://…`. Read by `pool.py`; checked beforehand by `smg.config.check`."""

from urllib.parse import urlsplit

from msgspec import Struct

from smg.errors import ConfigError

__all__ = ["HTTP_SCHEMES", "HttpAddress", "read_address"]

# What the addresses begin with.
HTTP_SCHEMES = ("http://", "https://")

PORTS = {"http": 80, "https": 443}


class HttpAddress(Struct, frozen=True, kw_only=True):
    """`authority` is the Host header's value; `prefix` comes before every path, empty or with a leading and no trailing slash."""

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str = ""


def read_address(url: str) -> HttpAddress:
    """Raises ConfigError, naming what is wrong."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (KeyError, ValueError) as error:
        raise ConfigError([f"engine URL {url!r} is not valid: {error}"]) from None
    if not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError([f"engine URL {url!r} must hold nothing but host, port and path"])
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    authority = host if port == PORTS[parts.scheme] else f"{host}:{port}"
    return HttpAddress(host=parts.hostname, port=port, tls=parts.scheme == "https", authority=authority, prefix=parts.path.rstrip("/"))
