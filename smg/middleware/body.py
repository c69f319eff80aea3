"""Reads a request body within its limits: refused by its headers before a byte is read, and counted while it is read."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from smg.api.base import Headers
from smg.errors import BodyTimeout, BodyTooLarge, ClientGone, InvalidValue, UnsupportedMedia

__all__ = ["BodySource", "read_body"]

# A client that sends nothing for this long is given up; one that sends steadily may take as long as it needs.
IDLE_S = 30.0
# Up to this size the server collects the body itself, in one step.
ONE_STEP_BYTES = 1 << 16
JSON_MEDIA = "application/json"
FORM_MEDIA = "multipart/form-data"


class BodySource(Protocol):
    """What is used of granian's RSGIHTTPProtocol: a call gives the whole body, iterating gives its chunks."""

    async def __call__(self) -> bytes:
        """Gives the whole body."""

    def __aiter__(self) -> "BodySource":
        """Starts the iteration over chunks."""

    async def __anext__(self) -> bytes:
        """Gives the next chunk; empty at the end and after a failure."""


async def read_body(source: BodySource, headers: Headers, *, limit: int, form: bool = False) -> bytes:
    """Gives the body, which is JSON, or a form where `form` says so.

    Raises UnsupportedMedia, BodyTooLarge (before buffering), BodyTimeout, ClientGone when it breaks off.
    """
    check_media(headers, form=form)
    length = _length(headers)
    if length is not None and length > limit:
        raise BodyTooLarge(f"the body has {length} bytes; the limit is {limit}")
    if length is not None and length <= ONE_STEP_BYTES:
        # One that came in one piece with its head, as most do, needs no wait and no timer. Our own front can tell, granian cannot.
        arrived: Callable[[], bytes | None] | None = getattr(source, "arrived", None)
        return ((arrived() if arrived is not None else None) or await _whole(source)) if length else b""
    body = await _counted(source, limit=limit)
    if length is not None and len(body) < length:
        raise ClientGone("the body broke off")
    return body


def check_media(headers: Headers, *, form: bool = False) -> None:
    """Raises UnsupportedMedia unless the body is plain JSON, or with `form` a form.

    Other types are refused for safety too: a web page may send them to any address without asking the browser's CORS check. Whoever takes
    forms looks at their origin.
    """
    encoding = headers.get("content-encoding")
    if not form and encoding is None and headers.get("content-type") == JSON_MEDIA:
        return
    if encoding and encoding.strip().lower() != "identity":
        raise UnsupportedMedia(f"content-encoding {encoding[:40]!r} is not supported; send the body as it is")
    media = (headers.get("content-type") or "").split(";", 1)[0].strip().lower()
    if form:
        if media != FORM_MEDIA:
            raise UnsupportedMedia("the content-type must be multipart/form-data")
        return
    if media != JSON_MEDIA and not (media.startswith("application/") and media.endswith("+json")):
        raise UnsupportedMedia("the content-type must be application/json")


def _length(headers: Headers) -> int | None:
    value = headers.get("content-length")
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()):
        raise InvalidValue("content-length is not a number")
    return int(value)


async def _whole(source: BodySource) -> bytes:
    try:
        async with asyncio.timeout(IDLE_S):
            return await source()
    except TimeoutError as error:
        raise BodyTimeout("the body did not arrive in time") from error
    except RuntimeError as error:  # granian's protocol errors are RuntimeErrors
        raise ClientGone("the body broke off") from error


async def _counted(source: BodySource, *, limit: int) -> bytes:
    body = bytearray()
    chunks = source.__aiter__()
    while True:
        try:
            async with asyncio.timeout(IDLE_S):
                chunk = await chunks.__anext__()
        except StopAsyncIteration:
            return bytes(body)
        except TimeoutError as error:
            raise BodyTimeout("the body did not arrive in time") from error
        if len(body) + len(chunk) > limit:
            raise BodyTooLarge(f"the body is longer than the limit of {limit} bytes")
        body += chunk
