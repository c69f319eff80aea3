"""What a handler gets and gives: the request as it came over HTTP, the parts of the data worker, and the reply.

Handlers are `async (Request, Services) -> Reply | StreamReply`; they raise SmgError, which the application renders.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from smg.config import Config
from smg.errors import ClientGone

if TYPE_CHECKING:
    from smg.api.openai.chat_request import ChatReader
    from smg.pipeline import ModelDirectory, Pipeline, Relay
    from smg.worker import EnginePool, WorkerView

__all__ = [
    "EVENT_STREAM",
    "JSON",
    "Control",
    "Handler",
    "Headers",
    "Pump",
    "Reply",
    "Request",
    "Services",
    "StreamReply",
    "Write",
    "pumped",
]

JSON: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


EVENT_STREAM = (("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Write(Protocol):
    """Where the body of a response goes; the calls besides are for answers that are passed on (`smg.pipeline.pour.Out`)."""

    def __call__(self, chunk: bytes, /) -> bool:
        """Writes one chunk; False when the client is gone."""

    def begin(self, status: int, headers: tuple[tuple[str, str], ...], *, comments: bool) -> bool:
        """Says what the head is to be, which leaves with the first chunk; False when it has left already."""

    def whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> bool:
        """Sends a whole response instead; False when a head has left already."""

    def backlog(self) -> int:
        """Gives the bytes that the client has not read yet, 0 where that is not known."""


# Writes a body, all but its last bytes, which it gives: they leave together with the end of the response.
Pump: TypeAlias = Callable[[Write], Awaitable[bytes]]


class Headers(Protocol):
    """Request headers by lower-case name."""

    def get(self, key: str, default: str | None = None, /) -> str | None:
        """Gives the first value of a header."""


class Request(Struct, kw_only=True):
    """One HTTP request. `params` are the named parts of the path; `received_s` is on the clock of `time.monotonic`.

    `read` gives the body; `own_id`: the id was made here, and so is unique, which one that a client sent need not be.
    """

    method: str
    path: str
    headers: Headers
    request_id: str
    received_s: float
    read: Callable[[], Awaitable[bytes]]
    query: str = ""
    client: str = ""
    params: dict[str, str] = {}
    own_id: bool = True

    def body(self) -> Awaitable[bytes]:
        """Gives the whole body. Raises BodyTooLarge before it is buffered, UnsupportedMedia, ClientGone."""
        return self.read()

    async def peek(self) -> bytes:
        """As `body`, which then gives it once more."""
        body = await self.read()

        async def again() -> bytes:
            return body

        self.read = again
        return body


class Control(Protocol):
    """A call to the control process: gives its answer as msgpack. Raises ControlUnavailable, and what the call itself raises."""

    async def __call__(self, method: str, data: object = None, /) -> bytes:
        """Asks it."""


class Services(Struct, kw_only=True):
    """What a data worker owns while it lives; `smg.server.services` makes it."""

    config: Config
    pipeline: "Pipeline"
    relay: "Relay"
    models: "ModelDirectory"
    view: "WorkerView"
    pool: "EnginePool"
    chats: "ChatReader"
    control: Control
    draining: bool = False


class Reply(Struct, frozen=True, kw_only=True):
    """A whole response."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = JSON


def pumped(chunks: AsyncGenerator[bytes, None]) -> Pump:
    """Gives the pump of a generator of chunks, which is closed whatever happens."""

    async def pump(write: Write) -> bytes:
        async with aclosing(chunks):
            async for chunk in chunks:
                if not write(chunk):
                    raise ClientGone("the client left")
        return b""

    return pump


class StreamReply(Struct, frozen=True, kw_only=True):
    """An event stream; each chunk is one write. The head is held back until the first chunk, so that an error before it has its own status.

    `pump(write)` writes the body and gives its last bytes, or raises; cancelling it tells that the client left. `surface` names the error
    dialect, also for an error in mid-stream. `comments`: the body is events, so that silence may be filled.
    """

    pump: Pump
    surface: str
    status: int = 200
    comments: bool = True
    headers: tuple[tuple[str, str], ...] = EVENT_STREAM


Handler: TypeAlias = Callable[[Request, Services], Awaitable[Reply | StreamReply]]
