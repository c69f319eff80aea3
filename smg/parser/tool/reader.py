"""What every tool-call grammar has in common: it reads one section of the output, from its opening mark to where the section ends."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from smg.parser.sink import Sink

__all__ = ["BLANKS_MAX", "MakeReader", "Reader"]

# No format puts more white space than this before the next part of a call; a model that runs on in blanks has lost the thread.
BLANKS_MAX = 256


class Reader(ABC):
    """One section. Until the name of a call is known, what was read since the last call is kept, so that what is no call can be given back.

    `marks`: the family's marks, taken out when the output ends before the name is known. `done`: the section is over.
    """

    def __init__(self, sink: Sink, *, opened: str, marks: tuple[str, ...]) -> None:
        self.sink = sink
        self.done = False
        self.failed = False
        self.named = False
        self._marks = marks
        self._raw = [opened]

    def read(self, text: str, at: int) -> int:
        """Reads `text` from `at`; gives where it stopped: at the end, or where the section ended."""
        size = len(text)
        while at < size and not self.done:
            begin = at
            at = self.step(text, at)
            if not self.named and not self.done:
                self._raw.append(text[begin:at])
        return at

    @abstractmethod
    def step(self, text: str, at: int) -> int:
        """Reads at least one character, or changes state; gives where it stopped."""

    @abstractmethod
    def finish(self) -> None:
        """The output ends here."""

    def name(self, name: str, *, call_id: str | None = None) -> None:
        """Begins a call."""
        self.named = True
        self._raw = []
        self.sink.call(name, call_id=call_id)

    def close(self) -> None:
        """Ends the call."""
        self.sink.close()
        self.named = False
        self._raw = []

    def fail(self, more: str = "") -> None:
        """This is no call: gives back what was read, as it was, with `more` of the current step."""
        self.done = self.failed = True
        self.sink.show("".join(self._raw) + more)

    def cut(self) -> None:
        """The output ended before the name was known: gives back what was read, without the marks."""
        self.done = True
        raw = "".join(self._raw)
        for mark in self._marks:
            raw = raw.replace(mark, "")
        self.sink.mark()
        self.sink.show(raw)


MakeReader: TypeAlias = Callable[[Sink, str], Reader]
