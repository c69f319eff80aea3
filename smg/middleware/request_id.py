"""The id of a request: a client's own where it is harmless, else a new one. Echoed as `x-request-id` on every response."""

import re
import secrets
from collections.abc import Sequence

from smg.api.base import Headers

__all__ = ["choose_request_id"]

# Goes into logs, response headers and engine calls, so nothing that could end a line or start another field.
HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@~-]{0,127}")


def choose_request_id(headers: Headers, names: Sequence[str], *, prefix: str) -> tuple[str, bool]:
    """Gives the id, and whether it was made here. The first of the named headers that holds a harmless value wins."""
    for name in names:
        value = headers.get(name)
        if value and HARMLESS.fullmatch(value):
            return value, False
    return prefix + secrets.token_hex(12), True
