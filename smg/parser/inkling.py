"""The parser of Inkling: the whole output is a row of typed blocks.

    <|message_model|>name?<|content_thinking|>…<|end_message|>   (text, or {"name": …, "args": {…}} after <|content_invoke_tool_json|>)

The generation prompt ends with <|message_model|>, so the output begins inside a block's head. Source: smg-inventory section 5.1.
"""

from smg.parser.base import Parser, Piece
from smg.parser.margin import BLANK, Margin
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.json_calls import JsonFormat, json_calls
from smg.parser.tool.reader import Reader
from smg.types.json import JsonObject

__all__ = ["INKLING_MARKS", "INKLING_READER", "Inkling"]

MODEL, THINKING, TEXT, CALL, RAW_CALL, END, STOP = INKLING_MARKS = (
    "<|message_model|>",
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    "<|content_invoke_tool_text|>",
    "<|end_message|>",
    "<|content_model_end_sampling|>",
)
HEAD_MAX = 128
HEAD, SHOWN, THOUGHT, DROPPED = range(4)
INKLING_READER = json_calls(JsonFormat(closes=(END, STOP), arguments=("args", "arguments", "parameters")))


class Inkling(Parser):
    """States: in a block's head, in shown text, in a thought, in a block that nobody reads; or a reader of a call owns the text."""

    def __init__(self, *, schemas: dict[str, JsonObject], thoughts: bool, calls: bool, in_think: bool) -> None:
        self._sink = Sink(schemas=schemas)
        self._text = Margin(self._sink.text)
        self._thought = Margin(self._sink.thought, opened=True) if thoughts else self._text
        self._sink.show, self._sink.mark = self._text.text, self._text.mark
        self._calls = calls
        self._matcher = Matcher(INKLING_MARKS)
        self._reader: Reader | None = None
        self._head = ""
        self._state = THOUGHT if in_think else HEAD

    def feed(self, text: str) -> list[Piece]:
        """See Parser."""
        self._run(text)
        return self._sink.take()

    def _run(self, text: str) -> None:
        at, size = 0, len(text)
        while at < size:
            at = self._call(self._reader, text, at) if self._reader is not None else self._read(text, at)

    def finish(self) -> list[Piece]:
        """See Parser."""
        if self._reader is not None:
            self._reader.finish()
            self._reader = None
        else:
            held, self._head = self._head + self._matcher.take(), ""
            self._state = SHOWN if self._state == HEAD else self._state
            self._take(held)
        self._thought.finish()
        self._text.finish()
        return self._sink.take()

    def _read(self, text: str, at: int) -> int:
        if self._state == HEAD and not self._matcher.pending and (text[at] in BLANK or len(self._head) >= HEAD_MAX):
            held, self._head = self._head, ""  # a head is one word: this is an answer without its marks
            self._state = SHOWN
            self._take(held)
        stop = min(len(text), at + 1) if self._state == HEAD else len(text)
        released, mark, at = self._matcher.scan(text, at, stop)
        if self._state == HEAD:
            self._head += released
        else:
            self._take(released)
        if mark is not None:
            self._mark(mark)
        return at

    def _take(self, text: str) -> None:
        if self._state == SHOWN:
            self._text.text(text)
        elif self._state == THOUGHT:
            self._thought.text(text)

    def _mark(self, mark: str) -> None:
        if self._head and mark in (END, STOP):  # of no block: an answer of one word without its marks
            self._text.text(self._head)
        self._head = ""
        self._text.mark()
        self._thought.mark()
        if mark == CALL and self._calls:
            self._state = SHOWN
            self._reader = INKLING_READER(self._sink, mark)
        else:
            states = {MODEL: HEAD, THINKING: THOUGHT, TEXT: SHOWN, CALL: SHOWN, RAW_CALL: DROPPED}
            self._state = states.get(mark, SHOWN)

    def _call(self, reader: Reader, text: str, at: int) -> int:
        at = reader.read(text, at)
        if reader.done:
            self._reader = None
            self._run(reader.unread)
        return at
