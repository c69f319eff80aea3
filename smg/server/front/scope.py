"""A request as the application sees it: granian's RSGI scope and headers, made by `reader.py` once the head is complete."""

from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["Headers", "Peer", "Scope"]


class Peer(NamedTuple):
    """The two ends of a connection, as `address:port`; the path or nothing for a UNIX socket."""

    client: str
    server: str
    scheme: str


class Headers(dict[str, str]):
    """Request headers by lower-case name; of a name that came several times, the first value. Made from pairs in the order they came.

    What granian's mapping has besides (every value of a name, and pairs with repeated names) is told by `get_all` and `items`.
    """

    __slots__ = ("_all",)

    def __init__(self, items: list[tuple[str, str]]) -> None:
        """Takes pairs with lower-case names."""
        super().__init__(items)
        self._all = items
        if len(self) != len(items):
            self.update(items[::-1])

    @property
    def repeated(self) -> bool:
        """True when a name occurs more than once."""
        return len(self) != len(self._all)

    def get_all(self, key: str) -> list[str]:
        """Gives every value of a header."""
        return [value for name, value in self._all if name == key]

    def items(self) -> list[tuple[str, str]]:  # type: ignore[override]  # as granian's
        """Gives all pairs, repeated names too."""
        return list(self._all)

    def keys(self) -> list[str]:  # type: ignore[override]  # as granian's
        """Gives the names."""
        return [name for name, _ in self._all]

    def values(self) -> list[str]:  # type: ignore[override]  # as granian's
        """Gives the values, in the order of `keys`."""
        return [value for _, value in self._all]


class Scope:
    """One request's head. `client` is the other end's address.

    `target` is in origin, absolute or asterisk form (RFC 9112, 3.2); the path is percent-decoded.
    """

    __slots__ = ("_peer", "authority", "client", "headers", "http_version", "method", "path", "query_string")

    proto = "http"
    rsgi_version = "1.6"

    def __init__(self, *, method: str, target: str, headers: Headers, http_version: str, peer: Peer) -> None:
        self.method = method
        self.headers = headers
        self.http_version = http_version
        self.authority: str | None = None
        self._peer = peer
        self.client = peer.client
        if not target.startswith("/"):
            target = self._split_authority(target)
        if "#" in target:
            target = target.partition("#")[0]
        path, _, self.query_string = target.partition("?")
        self.path = unquote(path) if "%" in path else path

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
