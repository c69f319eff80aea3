"""A request as the application sees it: granian's RSGI scope and headers, made by `reader.py` once the head is complete."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["Headers", "Peer", "Scope"]


class Peer(NamedTuple):
    """The two ends of a connection, as `address:port`; the path or nothing for a UNIX socket."""

    client: str
    server: str
    scheme: str


class Headers:
    """Request headers in the order they came, names in lower case. A mapping as granian's: the first value of a name is its value."""

    __slots__ = ("_items", "first")

    def __init__(self, items: list[tuple[str, str]]) -> None:
        """Takes pairs with lower-case names. `first` has the first value of each name."""
        self._items = items
        self.first = dict(items)
        if len(self.first) != len(items):
            self.first = dict(items[::-1])

    @property
    def repeated(self) -> bool:
        """True when a name occurs more than once."""
        return len(self.first) != len(self._items)

    def get(self, key: str, default: str | None = None, /) -> str | None:
        """Gives the first value of a header."""
        return self.first.get(key, default)

    def get_all(self, key: str) -> list[str]:
        """Gives every value of a header."""
        return [value for name, value in self._items if name == key]

    def items(self) -> list[tuple[str, str]]:
        """Gives all pairs, repeated names too."""
        return list(self._items)

    def keys(self) -> list[str]:
        """Gives the names."""
        return [name for name, _ in self._items]

    def values(self) -> list[str]:
        """Gives the values, in the order of `keys`."""
        return [value for _, value in self._items]

    def __getitem__(self, key: str) -> str:
        return self.first[key]

    def __contains__(self, key: object) -> bool:
        return key in self.first

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._items)


class Scope:
    """One request's head. `target` is in origin, absolute or asterisk form (RFC 9112, 3.2); the path is percent-decoded."""

    __slots__ = ("_peer", "authority", "headers", "http_version", "method", "path", "query_string")

    proto = "http"
    rsgi_version = "1.6"

    def __init__(self, *, method: str, target: str, headers: Headers, http_version: str, peer: Peer) -> None:
        self.method = method
        self.headers = headers
        self.http_version = http_version
        self.authority: str | None = None
        self._peer = peer
        if not target.startswith("/"):
            target = self._split_authority(target)
        if "#" in target:
            target = target.partition("#")[0]
        path, _, self.query_string = target.partition("?")
        self.path = unquote(path) if "%" in path else path

    @property
    def client(self) -> str:
        """The other end's address."""
        return self._peer.client

    @property
    def server(self) -> str:
        """Our own address."""
        return self._peer.server

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return self._peer.scheme

    def _split_authority(self, target: str) -> str:
        _, found, rest = target.partition("://")
        if not found:
            return target
        end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
        self.authority = rest[:end]
        return rest[end:] if rest[end : end + 1] == "/" else "/" + rest[end:]
