"""Where grammars put what they find: collects pieces, joins neighbours, counts calls. One a parser."""

from collections.abc import Callable

from smg.parser.base import Call, CallArguments, Piece, Text, Thought
from smg.types.json import JsonObject

__all__ = ["Sink"]


class Sink:
    """`schemas`: parameter schema of each known tool. `new_id` makes an id where the output names none; None leaves that to the caller.

    `show` and `mark` lead to the channel's margin: text that a grammar gives back, and the place of a protocol mark. `begun` says that a
    call begins.
    """

    def __init__(self, *, schemas: dict[str, JsonObject], new_id: Callable[[], str] | None = None) -> None:
        self.schemas = schemas
        self.calls = 0
        self.has_arguments = False  # of the last call
        self.show: Callable[[str], None] = self.text
        self.mark: Callable[[], None] = lambda: None
        self.begun: Callable[[], None] = lambda: None
        self._new_id = new_id
        self._pieces: list[Piece] = []
        self._kind = 0
        self._parts: list[str] = []

    def text(self, text: str) -> None:
        """Visible text, as it is to be shown."""
        self._add(1, text)

    def thought(self, text: str) -> None:
        """Text of the thinking block."""
        self._add(2, text)

    def call(self, name: str, *, call_id: str | None = None) -> None:
        """A call begins; its whole name is known."""
        self.begun()
        self.mark()
        self._flush()
        if call_id is None and self._new_id is not None:
            call_id = self._new_id()
        self._pieces.append(Call(self.calls, name, call_id))
        self.calls += 1
        self.has_arguments = False

    def arguments(self, text: str) -> None:
        """The next piece of the last call's arguments."""
        if text:
            self.has_arguments = True
            self._add(3, text)

    def close(self) -> None:
        """The last call is complete: one that never had arguments has none, and says so in JSON."""
        if not self.has_arguments:
            self.arguments("{}")

    def take(self) -> list[Piece]:
        """Gives what was collected since the last time."""
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add(self, kind: int, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        if self._parts:
            text = "".join(self._parts)
            self._parts = []
            if self._kind == 1:
                self._pieces.append(Text(text))
            elif self._kind == 2:
                self._pieces.append(Thought(text))
            else:
                self._pieces.append(CallArguments(self.calls - 1, text))
        self._kind = 0
