"""Records of the native stream machine in, events out: what is left to do in Python is to run parsers, once a message and not once a token.

The same events as `smg.pipeline.stream.StreamMachine` gives for the same messages. Made by `smg.pipeline.native`, one reader a call.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias, cast

from smg.parser import Call, Parser, Piece
from smg.pipeline.parsing import MarkPatterns, Parsing, mark_patterns
from smg.pipeline.pieces import EventMaker, join
from smg.types.event import Content, Event, Finished, FinishReason, Reasoning

__all__ = ["ChoiceReader", "Record", "RecordReader"]

# What a message showed of a choice and how the choice ended, if it did. Shown is text; or texts of its tokens and the rest, where tokens
# are counted here; or, where the machine split thoughts from text, runs: (thought, text).
End: TypeAlias = tuple[str, str | int | None]
Shown: TypeAlias = str | list[str] | list[tuple[bool, str]]
Record: TypeAlias = tuple[int, Shown, End | None]


# Longer texts that a parser holds back are not followed.
LONGEST_HELD = 256


class RecordReader:
    """All choices of one call. `marks`: what the machine must split thoughts by, so that there is nothing left to parse.

    `split`: records must hold the texts of single tokens, as those inside a thinking block are counted.
    """

    def __init__(self, parsing: Parsing, *, choices: int, thinking: bool) -> None:
        self._choices: list[ChoiceReader] = []
        self.split = False
        self.marks = parsing.thought_marks
        if parsing.plain or self.marks is not None:
            return
        for choice in range(choices):
            parser = parsing.parser(in_think=thinking)
            if parser is None:
                return
            self.split = parsing.reasoning is not None
            maker = EventMaker(choice, thinking=thinking, stream_reasoning=parsing.stream_reasoning)
            self._choices.append(ChoiceReader(parser, maker, marks=mark_patterns(parsing.reasoning, parsing.tool)))

    @property
    def reasoning_tokens(self) -> int:
        """Tokens inside thinking blocks that were counted here, so far."""
        return sum(choice.reasoning_tokens for choice in self._choices)

    def read(self, records: Iterable[Record]) -> list[Event]:
        """Gives the events of one wake-up."""
        events: list[Event] = []
        for index, shown, end in records:
            if self._choices:
                events += self._choices[index].read(cast("str | list[str]", shown), end)
                continue
            if isinstance(shown, list):
                events += [(Reasoning if thought else Content)(index, text) for thought, text in cast("list[tuple[bool, str]]", shown)]
            elif shown:
                events.append(Content(index, shown))
            if end is not None:
                events.append(Finished(index, cast(FinishReason, end[0]), end[1]))
        return events


class ChoiceReader:
    """One choice with a parser."""

    def __init__(self, parser: Parser, maker: EventMaker, *, marks: MarkPatterns) -> None:
        self.reasoning_tokens = 0
        self._parser = parser
        self._maker = maker
        self._marks = marks
        self._held: str | None = None  # what the parser took and did not show, None where that is not known

    def read(self, shown: str | list[str], end: End | None) -> list[Event]:
        """Gives the events of one record."""
        events: list[Event] = []
        if isinstance(shown, str):
            self._feed(shown, events)
        else:
            if len(shown) == 2:  # one token
                self._feed(shown[0], events)
                self.reasoning_tokens += self._maker.thinking
                self._held = None
            else:
                self._tokens(shown[:-1], events)
            self._feed(shown[-1], events)
        if end is not None:
            self._maker.emit(self._parser.finish(), events)
            self._maker.finish(cast(FinishReason, end[0]), end[1], events)
        return join(events)

    def _feed(self, text: str, events: list[Event]) -> Sequence[Piece]:
        if not text:
            return ()
        pieces = self._parser.feed(text)
        self._maker.emit(pieces, events)
        return pieces

    def _follow(self, text: str, pieces: Sequence[Piece]) -> None:
        shown = "" if not pieces else None if len(pieces) > 1 or isinstance(pieces[0], Call) else pieces[0].text
        if self._held is not None and shown is not None and len(self._held) < LONGEST_HELD:
            text = self._held + text
            self._held = text[len(shown) :] if text.startswith(shown) else None
        elif text and shown == text and self._marks.first.search(text) is None:
            self._held = ""
        else:
            self._held = None

    def _tokens(self, texts: list[str], events: list[Event]) -> None:
        """Many tokens: one by one only where the thinking block may begin or end, which takes a mark."""
        whole = "".join(texts)
        ends = list(accumulate(map(len, texts)))
        at = 0
        while at < len(texts):
            stop = at
            if self._held == "":
                found = self._marks.whole.search(whole, ends[at - 1] if at else 0)
                stop = bisect_right(ends, found.start()) if found else len(texts)
            count = max(1, stop - at)
            text = "".join(texts[at : at + count])
            self._follow(text, self._feed(text, events))
            self.reasoning_tokens += count * self._maker.thinking
            at += count
