"""The id of a request: a client's own where it is harmless, else a new one. Echoed as `x-request-id` on every response."""

import os
import re
from collections.abc import Sequence

from smg.api.base import Headers

__all__ = ["choose_request_id"]

# Goes into logs, response headers and engine calls, so nothing that could end a line or start another field.
HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@~-]{0,127}")


# One call of the kernel gives the bytes of many ids.
ID_BYTES = 12
POOLED = 256


class IdPool:
    """Random ids of 24 hexadecimal digits. A child process starts with none, so that no two processes give the same."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        os.register_at_fork(after_in_child=self._ids.clear)

    def take(self) -> str:
        """Gives an id that nobody can guess. From one thread at a time."""
        if not self._ids:
            digits = os.urandom(ID_BYTES * POOLED).hex()
            self._ids += [digits[at : at + 2 * ID_BYTES] for at in range(0, len(digits), 2 * ID_BYTES)]
        return self._ids.pop()


POOL = IdPool()


def choose_request_id(headers: Headers, names: Sequence[str], *, prefix: str) -> tuple[str, bool]:
    """Gives the id, and whether it was made here. The first of the named headers that holds a harmless value wins."""
    for name in names:
        value = headers.get(name)
        if value and HARMLESS.fullmatch(value):
            return value, False
    return prefix + POOL.take(), True
