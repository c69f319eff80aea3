"""The parser of Muse Glimmer: the output is a row of messages with a recipient: oneself for thoughts, the user, or a tool.

    to=recipient<|message|>body<|eom|><|start|>assistant to=…   (or <|eot|>)

The prompt ends with `<|start|>assistant`, so that the output begins inside a header. A tool's body is a section of calls, which the
family's own grammar reads. Built by `smg.parser.build`.
"""

import re

from smg.parser.base import CallArguments, Parser, Piece, Text, Thought
from smg.parser.machine import Machine
from smg.parser.margin import Margin
from smg.parser.matcher import Matcher
from smg.parser.tool.reader import NAME_MAX
from smg.parser.tool.spec import TOOLS
from smg.types.json import JsonObject

__all__ = ["MUSE_MARKS", "Muse"]

START, MESSAGE, END, STOP = MUSE_MARKS = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
SELF = "to=self"
IN_HEADER = re.compile(r"[\w .:=-]*\Z")


class Muse(Parser):
    """States: in a header, in a thought, in text or calls. `calls`: tool calls are wanted; without, their bodies are text."""

    def __init__(self, *, schemas: dict[str, JsonObject], thoughts: bool, calls: bool, in_think: bool) -> None:
        tool = TOOLS.get("muse_glimmer") if calls else None
        self._body = Machine(reasoning=None, tool=tool, schemas=schemas, in_think=False)
        self._pieces: list[Piece] = []
        self._thoughts = Margin(lambda text: self._pieces.append(Thought(text)), opened=True)
        self._splits = thoughts
        self._matcher = Matcher(MUSE_MARKS)
        self._header: list[str] = []
        self._size = 0
        self._kind = "thought" if in_think and thoughts else "header"
        self._messages = {"thought": 0, "text": 0}

    def feed(self, text: str) -> list[Piece]:
        """See Parser."""
        at, size = 0, len(text)
        while at < size:
            at = self._in_header(text, at) if self._kind == "header" else self._in_body(text, at)
        return self._taken()

    def finish(self) -> list[Piece]:
        """See Parser. A header that was cut is protocol, unless it is not a header at all."""
        held = self._matcher.take()
        if self._kind == "header":
            header = "".join(self._header)
            held = "" if "to=" in header or header.strip() in ("assistant", "") else header + held
            self._kind = "text"
        self._take(held)
        self._thoughts.finish()
        self._pieces += self._body.finish()
        return self._taken()

    def _in_header(self, text: str, at: int) -> int:
        begin = at
        released, mark, at = self._matcher.scan(text, at, min(len(text), at + NAME_MAX + 1 - self._size))
        self._header.append(released)
        self._size += at - begin
        header = "".join(self._header)
        no_header = mark not in (None, MESSAGE) and "to=" not in header and header.strip() not in ("", "assistant")
        if no_header or not IN_HEADER.match(released) or (mark is None and self._size > NAME_MAX):
            self._open("text")
            self._take(header)
            self._end(mark)
        elif mark == MESSAGE:
            self._open("thought" if self._splits and SELF in header else "text")
        elif mark is not None:
            self._begin_header()
        return at

    def _begin_header(self) -> None:
        self._header, self._size, self._kind = [], 0, "header"

    def _open(self, kind: str) -> None:
        self._kind = kind
        self._mark()
        if self._messages[kind]:
            self._take("\n")
        self._messages[kind] += 1

    def _in_body(self, text: str, at: int) -> int:
        released, mark, at = self._matcher.scan(text, at, len(text))
        self._take(released)
        self._end(mark)
        return at

    def _end(self, mark: str | None) -> None:
        if mark is not None and mark != MESSAGE:
            self._mark()
            self._begin_header()

    def _mark(self) -> None:
        if self._kind == "thought":
            self._thoughts.mark()
        else:
            self._body.mark()

    def _take(self, text: str) -> None:
        if not text:
            return
        if self._kind == "thought":
            self._thoughts.text(text)
        else:
            self._pieces += self._body.feed(text)

    def _taken(self) -> list[Piece]:
        """Neighbours of one kind are joined."""
        pieces, self._pieces = self._pieces, []
        joined: list[Piece] = []
        for piece in pieces:
            last = joined[-1] if joined else None
            if isinstance(piece, Text) and isinstance(last, Text):
                joined[-1] = Text(last.text + piece.text)
            elif isinstance(piece, Thought) and isinstance(last, Thought):
                joined[-1] = Thought(last.text + piece.text)
            elif isinstance(piece, CallArguments) and isinstance(last, CallArguments):
                joined[-1] = CallArguments(last.index, last.text + piece.text)
            else:
                joined.append(piece)
        return joined
