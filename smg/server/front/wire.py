"""Response heads and error pages as bytes."""

from email.utils import formatdate
from http import HTTPStatus

from smg.api.errors import error_reply
from smg.errors import SmgError

__all__ = ["CONTINUE", "Fields", "bodiless", "date_line", "error_page", "render_head"]

Fields = list[tuple[str, str]]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
# Framing and persistence are the server's to decide; whatever the application says of them is dropped.
OURS = frozenset({"connection", "content-length", "date", "keep-alive", "transfer-encoding"})


def render_head(status: int, headers: Fields, *, ending: str) -> bytes:
    """Gives status line, headers and blank line; `ending` is the server's own lines. Raises ValueError for a line break in a header."""
    own = [f"{name}: {value}\r\n" for name, value in headers if name not in OURS]
    lines = "".join(own)
    if lines.count("\n") != len(own) or lines.count("\r") != len(own):
        raise ValueError("a response header holds a line break")
    return f"{STATUS_LINES.get(status) or f'HTTP/1.1 {status} Unknown'}{lines}{ending}\r\n".encode("latin-1")


def bodiless(status: int) -> bool:
    """True for a status whose response never has a body (RFC 9110, 6.4.1)."""
    return status in (204, 304) or status < 200


def date_line() -> str:
    """Gives the Date header of this second."""
    return f"date: {formatdate(usegmt=True)}\r\n"


def error_page(error: SmgError) -> tuple[Fields, bytes]:
    """Gives headers and body of an error in OpenAI's shape."""
    reply = error_reply(error, surface="openai")
    return list(reply.headers), reply.body
