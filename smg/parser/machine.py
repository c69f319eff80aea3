"""The parser of one choice for all families that mark thinking and calls inside running text.

Three states: thinking, text, and a call section, which a grammar's reader owns until it ends. What comes in is the model's text in any
division; each character is looked at once. Built by `smg.parser.build`.
"""

import re

from smg.parser.base import Parser, Piece
from smg.parser.citation import Citations
from smg.parser.margin import BLANK, Margin
from smg.parser.matcher import Matcher
from smg.parser.reasoning.spec import ReasoningSpec
from smg.parser.sink import Sink
from smg.parser.tool.reader import Reader
from smg.parser.tool.spec import ToolSpec
from smg.types.json import JsonObject

__all__ = ["Machine"]

# A mark may be made of several special tokens; a part of it that holds a whole one is protocol, however much of it came.
TOKEN = re.compile(r"<[^<>]+>")

NO_REASONING = ReasoningSpec()
NO_TOOLS = ToolSpec()


class Machine(Parser):
    """Splits thinking, text and calls. `in_think`: the prompt already opened the thinking block."""

    def __init__(self, *, reasoning: ReasoningSpec | None, tool: ToolSpec | None, schemas: dict[str, JsonObject], in_think: bool) -> None:
        self._reasoning = reasoning or NO_REASONING
        self._tool = tool or NO_TOOLS
        self._sink = Sink(schemas=schemas, new_id=self._tool.new_id)
        self._citations = Citations(self._sink.text)
        cited = self._reasoning.citations or self._tool.citations
        self._content = Margin(self._citations.text if cited else self._sink.text, spaces=self._reasoning.spaces)
        self._thoughts = Margin(self._sink.thought, opened=True, spaces=self._reasoning.spaces)
        self._sink.show, self._sink.mark, self._sink.begun = self._show, self.mark, self._end_thinking
        think, text = self._reasoning, self._tool
        lines = ("\n",) if text.bare else ()  # where a bare call may begin
        self._in_text = Matcher((*think.starts, *think.ends, *think.layout, *text.opens, *text.strays, *text.drops, *lines))
        self._in_think = Matcher((*think.starts, *think.ends, *think.also_ends, *text.opens))
        self._reader: Reader | None = None
        self._fresh = bool(text.bare)  # only white space since the start of the line
        self._prose = False  # an opening mark was shown as text: so is the closing one that answers it
        self._thinking = in_think and bool(think.ends)
        if self._thinking:
            self._content.mark()

    def feed(self, text: str) -> list[Piece]:
        """Gives the pieces that became certain with this text."""
        self._run(text)
        return self._sink.take()

    def _run(self, text: str) -> None:
        at, size = 0, len(text)
        while at < size:
            at = self._read(text, at)

    def finish(self) -> list[Piece]:
        """Gives what is left: a partial mark is text, a partial call is what its grammar makes of it."""
        if self._reader is not None:
            self._reader.finish()
            self._reader = None
        else:
            self._thoughts.text(_shown(self._in_think.take()))
            self._content.text(_shown(self._in_text.take()))
        self._thoughts.finish()
        self._content.finish()
        self._citations.finish()
        return self._sink.take()

    def _read(self, text: str, at: int) -> int:
        if self._reader is not None:
            return self._read_calls(self._reader, text, at)
        if self._thinking:
            return self._read_thoughts(text, at)
        return self._read_text(text, at)

    def _read_thoughts(self, text: str, at: int) -> int:
        released, mark, at = self._in_think.scan(text, at, len(text))
        self._thoughts.text(released)
        if mark is None or mark in self._reasoning.starts:
            return at
        if mark in self._tool.opens:
            self._open(mark)  # a call ends the block; what only looks like one is a thought
            return at
        self._end_thinking()
        if mark in self._reasoning.also_ends:
            self._text_mark(mark)
        return at

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self._thoughts.mark()
            self._content.mark()
            self._fresh = bool(self._tool.bare)

    def _show(self, text: str) -> None:
        (self._thoughts if self._thinking else self._content).text(text)

    def mark(self) -> None:
        """A mark of the format stands here: of a section of calls, or of what the whole output is in."""
        (self._thoughts if self._thinking else self._content).mark()

    def _read_text(self, text: str, at: int) -> int:
        if self._fresh:
            if text[at] in BLANK:
                self._content.text(text[at])
                return at + 1
            self._fresh = False
            if text[at] in self._tool.bare:
                self._open("")
                return at
        released, mark, at = self._in_text.scan(text, at, len(text))
        self._content.text(released)
        if mark == "\n" and self._tool.bare:
            self._content.text(mark)
            self._fresh = True
        elif mark is not None:
            self._text_mark(mark)
        return at

    def _text_mark(self, mark: str) -> None:
        if mark in self._tool.opens:
            self._open(mark)
        elif mark in self._reasoning.starts:
            self._content.mark()
            self._thoughts.mark()
            self._thinking = True
        elif mark in self._tool.strays and self._prose:
            self._prose = False
            self._content.text(mark)
        elif mark in self._in_text.marks:
            self._content.mark()
        else:
            self._content.text(mark)

    def _open(self, mark: str) -> None:
        assert self._tool.reader is not None
        self._reader = self._tool.reader(self._sink, mark)

    def _read_calls(self, reader: Reader, text: str, at: int) -> int:
        at = reader.read(text, at)
        if reader.done:
            self._reader = None
            self._fresh = bool(self._tool.bare) and not reader.failed
            self._prose = reader.failed
            self._run(reader.unread)
        return at


def _shown(held: str) -> str:
    """What of a partial mark is text when the output ends."""
    return "" if TOKEN.search(held) else held
