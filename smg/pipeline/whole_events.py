"""Bytes of an event stream, cut anywhere, in; the same bytes out, cut only between events. Made by `relay.py`, one a stream.

So that what the gateway itself says in a stream, comments while it is silent and the error that ends it, is never inside an event (known
bug B104). Bytes are neither changed nor lost; an event is held back only until its last byte is there.
"""

from smg.errors import EngineProtocol

__all__ = ["WholeEvents"]

# An event ends with an empty line; lines end as the HTML standard has it (server-sent events, 9.2.6).
ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
LONGEST_END = 3
LONGEST_EVENT = 16 << 20


class WholeEvents:
    """`feed` takes what came and gives what may go on; `rest` is what no event's end has followed yet."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        """Raises EngineProtocol for an event that is too long to be held."""
        if not self._held and data.endswith(b"\n\n"):
            return data
        before = b"".join(self._held[-LONGEST_END:])[1 - LONGEST_END :] if self._held else b""
        end = _last_end(before + data) - len(before)
        if end <= 0:
            self._hold(data)
            return b""
        whole = b"".join((*self._held, data[:end]))
        self._held, self._size = [], 0
        self._hold(data[end:])
        return whole

    @property
    def rest(self) -> bytes:
        """What is left: at the end of a stream it belongs to it, whether or not an empty line ends it."""
        return b"".join(self._held)

    def _hold(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > LONGEST_EVENT:
            raise EngineProtocol("an event of the engine's stream is too long")
        if data:
            self._held.append(data)


def _last_end(data: bytes) -> int:
    """Gives the position behind the last event's end, 0 when there is none."""
    return max(found + len(end) if (found := data.rfind(end)) >= 0 else 0 for end in ENDS)
