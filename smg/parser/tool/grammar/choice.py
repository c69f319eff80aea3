"""A section whose first characters tell which of two grammars it is in: Mistral's list or named form, pythonic calls or JSON."""

from collections.abc import Callable
from functools import partial

from smg.parser.margin import BLANK
from smg.parser.sink import Sink
from smg.parser.tool.reader import BLANKS_MAX, MakeReader, Reader

__all__ = ["Choice", "choice"]


def choice(decide: Callable[[str], MakeReader | None], *, marks: tuple[str, ...] = ()) -> MakeReader:
    """Gives the maker of readers that ask `decide` with the first characters, blanks left out, until it names a grammar."""
    return partial(Choice, decide=decide, marks=marks)


class Choice(Reader):
    """Waits for the decision, then is the chosen reader."""

    def __init__(self, sink: Sink, opened: str, *, decide: Callable[[str], MakeReader | None], marks: tuple[str, ...]) -> None:
        super().__init__(sink, opened=opened, marks=marks)
        self._decide = decide
        self._first = ""
        self._size = 0
        self._chosen: Reader | None = None

    def read(self, text: str, at: int) -> int:
        """See Reader."""
        if self._chosen is None:
            at = super().read(text, at)
        if self._chosen is not None:
            at = self._chosen.read(text, at)
            self.done, self.failed, self.unread = self._chosen.done, self._chosen.failed, self._chosen.unread
        return at

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        self._size += 1
        if text[at] not in BLANK:
            self._first += text[at]
            make = self._decide(self._first)
            if make is not None:
                self._chosen = self._handed(make, text[at])
                self.done = True  # leaves the loop; `read` goes on with the chosen one
        elif self._size > BLANKS_MAX:
            self.fail()
        return at + 1

    def _handed(self, make: MakeReader, last: str) -> Reader:
        reader = make(self.sink, self._opened)
        reader.read("".join(self._raw[1:]) + last, 0)
        return reader

    def finish(self) -> None:
        """See Reader."""
        if self._chosen is not None:
            self._chosen.finish()
        elif self._opened:
            self.cut()
        else:
            self.sink.show("".join(self._raw))
