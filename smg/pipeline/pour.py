"""One answer on its way from an HTTP engine to a client, each piece written from the callback that brought it. Made by `relay.py`.

Events leave whole. A client that reads slowly holds up the engine, and is given up when it reads nothing for long.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Protocol

from smg.engine import HttpCall
from smg.errors import ClientGone, EngineUnavailable
from smg.pipeline.usage import KEY, usage_in
from smg.pipeline.whole_events import WholeEvents

__all__ = ["Out", "Pour"]

# Of what the client has not read yet: above this the engine is held up, below a quarter it goes on. Less than a client may leave unread.
HELD_BYTES = 32768
FIRST_LOOK_S, LAST_LOOK_S = 0.001, 0.02  # after which it is looked again whether the client has read; later ones are twice as far apart
PATIENCE_S = 60.0
# Events that servers send before the first token: those of Responses and Messages, and a chat's first chunk, which may be the role alone.
OPENINGS = re.compile(rb'response\.(created|queued|in_progress)"|"(message_start|ping)"|"role": ?"assistant"')
# Events behind which nothing need come: of OpenAI's completions, Responses and Messages, and errors. Lines of events, not parts of strings.
ENDINGS = re.compile(
    rb'"finish_reason": ?"|(?:^|[\r\n])(?:data: ?\[DONE\]|data: ?\{"error"|event: ?error|(?:event: ?|data: ?\{"type": ?")'
    rb"(?:message_stop|response\.(?:completed|failed|incomplete)))"
)
LOOKED_AT = 4096  # bytes of an event, and of those before it, in which that is looked for


class Out(Protocol):
    """Where an answer goes: the client's connection, as `smg.server.transport.Outlet` has it."""

    def __call__(self, chunk: bytes, /) -> bool:
        """Writes one piece of the body; False when the client is gone."""

    def begin(self, status: int, headers: tuple[tuple[str, str], ...], *, comments: bool) -> bool:
        """Says what the head is to be, which leaves with the first piece; False when it has left already.

        `comments`: the body is events, so that silence may be filled.
        """

    def whole(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> bool:
        """Sends a whole answer; False when a head has left already."""

    def backlog(self) -> int:
        """Gives the bytes that the client has not read yet."""


class Pour:
    """`begun` is called before the first piece is written; `usage`: the token counts seen. `untold`: nothing but an event tells whether the
    engine has come to its end, see `ENDINGS`.
    """

    def __init__(self, call: HttpCall, out: Out, *, begun: Callable[[], None] | None, events: bool, untold: bool = False) -> None:
        self._call = call
        self._out = out
        self._begun = begun
        self._events = WholeEvents() if events else None
        self._untold = untold
        self._told: list[bytes] = []
        self._pieces = 0
        self._at_work = not events
        self._timer: asyncio.TimerHandle | None = None
        self._look_s = FIRST_LOOK_S
        self._backlog = 0
        self._moved_s = 0.0

    async def run(self) -> bytes:
        """Returns what is left to be written, once the answer is complete. Raises ClientGone, and what the engine's end raises."""
        try:
            await self._call.pour(self._take)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        rest = self._events.rest if self._events is not None else b""
        if self._untold and ENDINGS.search(rest) is None:
            raise EngineUnavailable("the engine went away before its answer was complete", detail="closed without a last event")
        if self._begun is not None:
            self._begun()
        return rest

    @property
    def usage(self) -> tuple[int, int]:
        """Prompt and completion tokens, 0 where the answer does not tell them."""
        counts = [usage_in(data) for data in self._told]
        return max((prompt for prompt, _ in counts), default=0), max((completion for _, completion in counts), default=0)

    def progress(self) -> int:
        """Gives the number of pieces that have come; 0 before the first token, as far as events tell, and while the engine is held up."""
        return self._pieces if self._at_work and self._timer is None else 0

    def _take(self, data: bytes) -> None:
        self._pieces += 1
        if self._events is not None:
            data = self._events.feed(data)
            if not data:
                return
            if not self._at_work:
                self._at_work = not is_opening(data)
            if KEY in data:
                self._told[1:] = [data]  # the first and the last: Messages tell the prompt's count first
            self._untold = self._untold and ENDINGS.search(data) is None
        if self._begun is not None:
            self._begun()
            self._begun = None
        if not self._out(data):
            raise ClientGone("the client left")
        if self._timer is None and self._out.backlog() > HELD_BYTES:
            self._call.hold()
            self._backlog, self._moved_s, self._look_s = self._out.backlog(), time.monotonic(), FIRST_LOOK_S
            self._look_later()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)
        self._look_s = min(self._look_s * 2, LAST_LOOK_S)

    def _look(self) -> None:
        """Lets the engine go on once the client has caught up."""
        self._timer = None
        backlog = self._out.backlog()
        if backlog <= HELD_BYTES // 4:
            self._call.go_on()
            return
        if backlog < self._backlog:
            self._backlog, self._moved_s = backlog, time.monotonic()
        elif time.monotonic() - self._moved_s > PATIENCE_S:
            self._call.stop(ClientGone("the client does not read"))
            return
        self._look_later()


def is_opening(events: bytes) -> bool:
    """True when the last of these events, which are whole, is one that comes before the first token, or a comment."""
    last = events[-LOOKED_AT:].replace(b"\r\n", b"\n").rstrip(b"\n").rpartition(b"\n\n")[2]
    return last.startswith(b":") or OPENINGS.search(last) is not None
