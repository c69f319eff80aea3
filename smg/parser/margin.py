"""White space beside protocol marks: layout of the model's format, not of its answer. One policy for text and thoughts, in every mode.

Newlines next to a mark are dropped at the outer ends of a channel, and kept where text stands on both sides; spaces are kept, unless the
family says that they too are layout. Without a mark nothing is dropped.
"""

from collections.abc import Callable

__all__ = ["BLANK", "Margin"]

BLANK = " \t\r\n"


class Margin:
    """One channel's filter: `text` and `mark` in the order of the output, what is to be shown goes to `emit`."""

    def __init__(self, emit: Callable[[str], None], *, opened: bool = False, spaces: bool = False) -> None:
        self._emit = emit
        self._spaces = spaces
        self._held: list[str] = []
        self._started = False
        self._marked = opened

    def mark(self) -> None:
        """A mark stands here."""
        self._marked = True

    def text(self, text: str) -> None:
        """More of the channel's text."""
        body = text.rstrip(BLANK)
        if not body:
            self._blank(text)
            return
        self._release(body)
        self._started, self._marked = True, False
        self._blank(text[len(body) :])

    def _release(self, body: str) -> None:
        held = "".join(self._held)
        self._held = []
        if not self._started and self._marked:
            first = len(body) - len(body.lstrip(BLANK))
            held, body = held + body[:first], body[first:]
            held = "" if self._spaces else held[held.rfind("\n") + 1 :]
        self._emit(held + body)

    def _blank(self, text: str) -> None:
        if not text:
            return
        if self._held or self._marked or self._spaces or not self._started:
            self._held.append(text)
            return
        line = text.find("\n")
        if line < 0:
            self._emit(text)
            return
        if line:
            self._emit(text[:line])
        self._held.append(text[line:])

    def finish(self) -> None:
        """The output has ended: held white space is shown unless a mark stands beside it."""
        if self._held and not self._marked:
            self._emit("".join(self._held))
        self._held = []
