"""Whether an engine may be added at run time: its address in, with what its name resolves to now; an error out where it may not.

Called by `smg.api.workers`. Engines that the configuration, the watched file or Kubernetes names are the operator's own word.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from smg.config.networks import Address, is_allowed, plain_address, read_allowance
from smg.errors import Forbidden, InvalidValue

__all__ = ["check_allowed", "resolved"]

RESOLVE_S = 5.0
Resolve = Callable[[str], Awaitable[list[str]]]


async def resolved(host: str) -> list[str]:
    """Gives the addresses of a host, which may be an address itself. Raises OSError, TimeoutError."""
    async with asyncio.timeout(RESOLVE_S):
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(place[0]) for _, _, _, _, place in found]


async def check_allowed(url: str, allow: Iterable[str], *, resolve: Resolve = resolved) -> None:
    """Raises Forbidden when one of the addresses that an engine's URL leads to is not allowed by `engines.worker_url_allow`.

    InvalidValue when its name leads nowhere now and there are entries to check it against; without any it may be known later.
    """
    parts = urlsplit(url)
    allowances = [read_allowance(entry) for entry in allow]
    addresses: list[Address | None] = [None]
    if parts.scheme != "unix":
        try:
            addresses = [plain_address(text) for text in await resolve(parts.hostname or "")]
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            if not allowances:
                return
            raise InvalidValue("url: the host has no address now, so that it cannot be checked", param="url") from error
    if not all(is_allowed(parts.scheme, address, allowances) for address in addresses):
        raise Forbidden("url: engines may not be at this address unless --worker-url-allow names it", param="url")
