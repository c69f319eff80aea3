"""Which addresses engines may have that are added at run time: entries of `engines.worker_url_allow` in, networks and schemes out.

An entry is `SCHEME://`, `NETWORK` (an address or a prefix like 10.0.0.0/8) or `SCHEME://NETWORK`. Link-local networks, where clouds keep
the credentials of machines, are allowed only by an entry that lies inside them. Read by `smg.config.check` and `smg.worker.allowed`.
"""

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

__all__ = ["Address", "Allowance", "is_allowed", "plain_address", "read_allowance"]

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

SCHEMES = ("grpc", "grpcs", "unix", "http", "https")
# Link-local (RFC 3927, RFC 4291), and where AWS answers machines that have no IPv4.
GUARDED: tuple[Network, ...] = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128")))
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in its last four bytes


class Allowance(Struct, frozen=True):
    """One entry; an empty scheme or no network stands for all."""

    scheme: str
    network: Network | None

    def covers(self, scheme: str, address: Address | None) -> bool:
        """True when the entry allows this. `address` None: the scheme has none."""
        if self.scheme and self.scheme != scheme:
            return False
        if self.network is None:
            return True
        if address is None or address not in self.network:
            return False
        guard = guard_of(address)
        return guard is None or (guard.version == self.network.version and guard.supernet_of(self.network))  # type: ignore[arg-type]


def read_allowance(entry: str) -> Allowance:
    """Reads an entry. Raises ValueError, which says what is wrong."""
    scheme, mark, rest = entry.rpartition("://") if "://" in entry else ("", "", entry)
    if mark and scheme not in SCHEMES:
        raise ValueError(f"{scheme!r} is not one of {', '.join(SCHEMES)}")
    if not rest and mark:
        return Allowance(scheme, None)
    if scheme == "unix":
        raise ValueError("unix:// has no network")
    return Allowance(scheme, ipaddress.ip_network(rest.replace("[", "").replace("]", "")))


def plain_address(text: str) -> Address:
    """Gives an address of a resolver's answer. One of IPv6 that stands for one of IPv4 is that: traffic ends there."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return inner
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_allowed(scheme: str, address: Address | None, allowances: Iterable[Allowance]) -> bool:
    """True when an engine may be there. Without any entry all may be but those at guarded addresses."""
    entries = list(allowances)
    if not entries:
        return address is None or guard_of(address) is None
    guarded = address is not None and guard_of(address) is not None
    return any(entry.covers(scheme, address) for entry in entries if entry.network is not None or not guarded)


def guard_of(address: Address) -> Network | None:
    """Gives the guarded network that an address is in."""
    return next((network for network in GUARDED if address in network), None)
