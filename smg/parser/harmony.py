"""The parser of gpt-oss: the whole output is a row of messages, each with a header that says where it goes.

    <|start|>role<|channel|>channel to=recipient <|constrain|>type<|message|>body<|end|>   (or <|call|>, or <|return|>)

Source: OpenAI's harmony response format. Recipient before or after the channel; a header that makes no sense costs nothing but itself.
"""

import re

from smg.parser.base import Parser, Piece
from smg.parser.margin import Margin
from smg.parser.matcher import Matcher
from smg.parser.sink import Sink
from smg.parser.tool.grammar.value import JsonValue
from smg.parser.tool.reader import NAME_MAX
from smg.types.json import JsonObject

__all__ = ["HARMONY_MARKS", "Harmony", "destination", "is_header_word", "recipients", "said_before"]

START, END, MESSAGE, CHANNEL, CONSTRAIN, RETURN, CALL = HARMONY_MARKS = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
)
RECIPIENT = re.compile(r"to=([^\s<]+)")
CHANNEL_NAME = re.compile(r"analysis|commentary|final")
HEADER_WORD = re.compile(r"[\w\s.=?-]{0,64}")
ROLES = frozenset({"", "assistant"})
NOBODY = frozenset({"assistant", "user", "system", "all"})
PREFIX = "functions."


def destination(words: list[str], channels: list[str], schemas: dict[str, JsonObject]) -> tuple[str, bool]:
    """Gives where a header sends its body: the name of a tool, "" for none, and whether it is a thought."""
    name = next((found[1] for word in words if (found := RECIPIENT.search(word)) and found[1] not in NOBODY), "")
    channel = next((found[0] for word in channels if (found := CHANNEL_NAME.search(word))), "")
    wanted = name.startswith(PREFIX) or name in schemas or (name and channel != "analysis")
    return name.removeprefix(PREFIX) if wanted else "", channel == "analysis"


def said_before(word: str) -> str | None:
    """Gives the text that stands where a role should; None when it is one, or nothing but a recipient."""
    text = RECIPIENT.sub("", word)
    return text if text.strip() not in ROLES else None


def recipients(words: list[str]) -> list[str]:
    """Gives those of a header's words that name one."""
    return [word for word in words if RECIPIENT.search(word)]


def is_header_word(word: str) -> bool:
    """True for what may stand in a header; anything else is text."""
    return HEADER_WORD.fullmatch(word) is not None


class Harmony(Parser):
    """States: in a header, in the body of a thought, a text or a call. `calls`: tool calls are wanted; without, their bodies are text."""

    def __init__(self, *, schemas: dict[str, JsonObject], thoughts: bool, calls: bool, in_think: bool) -> None:
        self._sink = Sink(schemas=schemas)
        text = Margin(self._sink.text)
        self._margins = {"text": text, "thought": Margin(self._sink.thought) if thoughts else text}
        self._sink.mark = text.mark
        self._calls = calls
        self._matcher = Matcher(HARMONY_MARKS)
        self._shown: set[str] = set()  # kinds that have had a message
        self._kind = ""  # of the body; "" = in a header
        self._begin_header()
        if in_think:
            self._begin_body("thought")

    def _begin_header(self) -> None:
        self._kind = ""
        self._size = 0
        self._words: list[str] = [""]
        self._channels: list[str] = []
        self._in_channel = False
        self._started = False  # the header has its own begin, which a role follows

    def feed(self, text: str) -> list[Piece]:
        """See Parser."""
        at, size = 0, len(text)
        while at < size:
            at = self._body(text, at) if self._kind else self._header(text, at)
        return self._sink.take()

    def finish(self) -> list[Piece]:
        """See Parser. A header that was cut is protocol, unless it is not a header at all."""
        rest = self._matcher.take()
        if self._kind:
            self._take(rest)
        elif not self._channels and len(self._words) == 1:
            self._begin_body("text")
            self._take(self._words[0] + rest)
        for margin in self._margins.values():
            margin.finish()
        return self._sink.take()

    def _header(self, text: str, at: int) -> int:
        begin = at
        released, mark, at = self._matcher.scan(text, at, min(len(text), at + NAME_MAX + 1 - self._size))
        self._size += at - begin
        self._words[-1] += released
        if mark is not None and len(self._words) == 1 and not self._in_channel:
            self._said_before()
        if mark == MESSAGE:
            self._open()
        elif mark == START and not self._channels:
            self._started = True
            self._words = [*recipients(self._words), ""]
        elif mark in (END, CALL, RETURN):
            self._end_header()
        elif mark is not None:
            self._close_word(mark)
        elif self._size > NAME_MAX:
            words = "".join(self._words)
            self._begin_body("text")
            self._take(words)
        return at

    def _end_header(self) -> None:
        """A message without a body, unless its body only lacks its mark: then it is text."""
        last = self._words[-1] if len(self._words) > 1 else ""
        self._begin_header()
        if not is_header_word(last):
            self._begin_body("text")
            self._take(last)
            self._margins["text"].mark()
            self._begin_header()

    def _said_before(self) -> None:
        """What stands before a message, where no role does, is no header: a text without one."""
        words = self._words
        said = said_before(words[0])
        if not self._started and said is not None:
            self._begin_body("text")
            self._take(said)
            self._margins["text"].mark()
            self._begin_header()
            self._words = [*recipients(words), ""]

    def _close_word(self, mark: str) -> None:
        if self._in_channel:
            self._channels.append(self._words[-1])
        self._in_channel = mark == CHANNEL
        self._words.append("")

    def _open(self) -> None:
        self._close_word(MESSAGE)
        name, thought = destination(self._words, self._channels, self._sink.schemas)
        if self._calls and name:
            self._kind = "call"
            self._value = JsonValue()
            self._sink.call(name)
            return
        self._begin_body("thought" if thought else "text")

    def _begin_body(self, kind: str) -> None:
        self._kind = kind
        self._margins[kind].mark()
        if kind in self._shown:
            self._margins[kind].text("\n")

    def _body(self, text: str, at: int) -> int:
        if self._kind == "call" and not self._value.done and not self._value.broken:
            piece, at = self._value.read(text, at)  # marks inside a JSON text are text
            self._sink.arguments(piece)
            return at
        released, mark, at = self._matcher.scan(text, at, len(text))
        self._take(released)
        if mark in (END, CALL, RETURN, START, CHANNEL):
            self._close()
            self._in_channel = mark == CHANNEL
        return at

    def _take(self, text: str) -> None:
        if self._kind != "call":
            self._margins[self._kind].text(text)
            if text.strip():
                self._shown.add(self._kind)
        elif self._value.broken:
            self._sink.arguments(text)

    def _close(self) -> None:
        if self._kind == "call":
            self._sink.close()
        else:
            self._margins[self._kind].mark()
        self._begin_header()
