"""What one client may cost: bytes, fields and seconds. Given to `Front`; the defaults are meant for the open internet."""

from msgspec import Struct

__all__ = ["Limits"]


class Limits(Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds. Times are checked every `tick_s`, so they may be longer by that much."""

    head_bytes: int = 65536  # request line and headers, trailers too
    target_bytes: int = 32768
    head_fields: int = 128
    head_s: float = 10.0  # from the first byte of a request, or from the accept, to its last header
    idle_s: float = 75.0  # between two requests
    unread_bytes: int = 262144  # of a body that the application does not read yet; then the client is held up
    pipelined_bytes: int = 65536  # of requests that wait for an earlier one
    client_buffer_bytes: int = 1 << 20  # of a stream that the client does not read; then it is given up
    linger_bytes: int = 1 << 20  # that a client may still send after a response which closes the connection
    linger_s: float = 1.0
    flush_s: float = 60.0  # that a closing connection may go without sending a byte of what is left
    tick_s: float = 0.5
