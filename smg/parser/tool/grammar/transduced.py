"""Calls as JSON objects in all but spelling: the text becomes JSON on its way into the JSON grammar. Sarashina writes Python literals."""

from functools import partial

from smg.parser.margin import BLANK
from smg.parser.sink import Sink
from smg.parser.tool.grammar.literal import Literal
from smg.parser.tool.reader import MakeReader, Reader

__all__ = ["LiteralCalls", "literal_calls"]

BETWEEN = BLANK + ",;]"  # what stands between and after calls


def literal_calls(inner: MakeReader, *, marks: tuple[str, ...] = ()) -> MakeReader:
    """Gives the maker of readers; `inner` reads the JSON."""
    return partial(LiteralCalls, inner=inner, marks=marks)


class LiteralCalls(Reader):
    """One literal, which is a call or a list of calls."""

    def __init__(self, sink: Sink, opened: str, *, inner: MakeReader, marks: tuple[str, ...]) -> None:
        super().__init__(sink, opened=opened, marks=marks)
        self._inner = inner(sink, opened)
        self._inner.quiet = True
        self._value = Literal()

    def step(self, text: str, at: int) -> int:
        """See Reader."""
        made = self._inner.count
        stop = at + 1  # one character where a call may begin, fail or end
        if self.named and text[at] != "}":
            end = text.find("}", at)
            stop = len(text) if end < 0 else end
        piece, read = self._value.read(text[at:stop], 0)
        self._inner.read(piece, 0)
        self.named = self._inner.named
        if self._inner.count > made:
            self.count = self._inner.count
            self._lead, self._raw = "", []
            self._keep = False
        if self._inner.failed or (self._value.broken and not self.named):
            self.fail()
        elif self._value.done or self._value.broken:
            self.end()
        return at + read

    def finish(self) -> None:
        """See Reader."""
        if self.named:
            self._inner.read(self._value.finish(), 0)
            self._inner.finish()
        elif not self.count or "".join(self._raw).strip(BETWEEN):
            self.cut()
