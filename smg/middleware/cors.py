"""Which web pages may call the gateway from a browser. Without configured origins no CORS header is ever sent."""

from collections.abc import Iterable

from smg.api.base import Headers

__all__ = ["Cors"]

EXPOSED = "x-request-id, x-smg-error-code, retry-after"
MAX_AGE_S = 600


class Cors:
    """Makes the headers for an origin that is allowed; `*` allows any."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)
        self._any = "*" in self._origins

    def headers(self, request: Headers) -> list[tuple[str, str]]:
        """Gives the headers of a response; none for a request of no page or of one that is not allowed."""
        if not self._origins:
            return []
        origin = request.get("origin")
        if origin is None or not (self._any or origin in self._origins):
            return [] if self._any else [("vary", "origin")]
        allowed = [("access-control-allow-origin", "*" if self._any else origin), ("access-control-expose-headers", EXPOSED)]
        return allowed if self._any else [*allowed, ("vary", "origin")]

    def preflight(self, request: Headers, *, methods: str) -> list[tuple[str, str]]:
        """Gives what a preflight needs besides `headers`."""
        if not request.get("access-control-request-method"):
            return []
        wanted = request.get("access-control-request-headers") or "authorization, content-type"
        return [
            ("access-control-allow-methods", methods),
            ("access-control-allow-headers", wanted if wanted.isprintable() and len(wanted) <= 1024 else "authorization, content-type"),
            ("access-control-max-age", str(MAX_AGE_S)),
        ]
