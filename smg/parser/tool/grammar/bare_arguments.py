"""The arguments of a call whose name is known beforehand: what an engine writes that is held to the schema of the one tool to be called."""

from functools import partial

from smg.parser.sink import Sink
from smg.parser.tool.grammar.value import JsonValue
from smg.parser.tool.reader import MakeReader, Reader

__all__ = ["BareArguments", "bare_arguments"]


def bare_arguments(name: str) -> MakeReader:
    """Gives the maker of readers for calls of that tool."""
    return partial(BareArguments, name=name)


class BareArguments(Reader):
    """One JSON object; it is the only call of the output."""

    def __init__(self, sink: Sink, opened: str, *, name: str) -> None:
        super().__init__(sink, opened=opened)
        self._name = name
        self._value = JsonValue()

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        if not self.named:
            if self.sink.calls:
                self.fail()
                return at + 1
            self.name(self._name)
        piece, at = self._value.read(text, at)
        self.sink.arguments(piece)
        if self._value.done or self._value.broken:
            self.close()
            self.end()
        return at

    def finish(self) -> None:
        """See Reader."""
