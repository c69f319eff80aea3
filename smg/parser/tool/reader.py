"""What every tool-call grammar has in common: it reads one section of the output, from its opening mark to where the section ends."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from smg.parser.matcher import Matcher
from smg.parser.sink import Sink

__all__ = ["BLANKS_MAX", "NAME_MAX", "MakeReader", "Reader", "expect", "without_marks"]

# No format puts more white space than this before the next part of a call; a model that runs on in blanks has lost the thread.
BLANKS_MAX = 256
# Longest text between a call's begin and its arguments: name, id, attributes. OpenAI's own limit for a name is 64.
NAME_MAX = 256


# Special tokens that a longer mark is made of.
TOKEN = re.compile(r"<\|[^<>|]+\|>")
# What a failed section read, up to this size, is looked through again for marks; more is text at once, so that the work stays linear.
AGAIN_MAX = 512


def expect(matcher: Matcher, text: str, at: int, tolerated: str) -> tuple[int, str | None, str]:
    """Reads one character where only marks and `tolerated` characters should come. Gives where it stopped, a mark, and what is neither."""
    if not matcher.pending and text[at] in tolerated:
        return at + 1, None, ""
    released, mark, at = matcher.scan(text, at, at + 1)
    return at, mark, released


def without_marks(text: str, opened: str, marks: tuple[str, ...]) -> str:
    """Gives what is text of a call that was cut before its name was known: `opened` is the mark that it began with, "" for none."""
    every = (opened, *marks) if opened else marks
    for mark in every:
        text = text.replace(mark, "")
    for token in {token for mark in every for token in TOKEN.findall(mark)}:
        text = text.replace(token, "")  # of a mark that came in part
    return text


class Reader(ABC):
    """One section. Until the name of a call is known, what was read since the last call is kept, so that what is no call can be given back.

    `marks`: the family's marks, taken out when the output ends before the name is known. `done`: the section is over; `unread`: what was
    read and is not its.
    """

    def __init__(self, sink: Sink, *, opened: str, marks: tuple[str, ...] = ()) -> None:
        self.sink = sink
        self.done = False
        self.failed = False
        self.named = False
        self.quiet = False  # inside another reader, which gives back for both
        self.unread = ""
        self.count = 0  # complete calls of this section
        self._marks = marks
        self._opened = self._lead = opened
        self._raw = [opened]
        self._keep = True

    def read(self, text: str, at: int) -> int:
        """Reads `text` from `at`; gives where it stopped: at the end, or where the section ended."""
        size = len(text)
        while at < size and not self.done:
            begin = at
            self._keep = not self.named
            at = self.step(text, at)
            if self._keep:
                self._raw.append(text[begin:at])
            if self.failed:
                self._give_back("".join(self._raw))
        return at

    def _give_back(self, raw: str) -> None:
        if self.quiet:
            return
        again = len(raw) - len(self._lead) <= AGAIN_MAX
        self.sink.show(self._lead if again else raw)
        self.unread = raw[len(self._lead) :] if again else ""

    @abstractmethod
    def step(self, text: str, at: int) -> int:
        """Reads at least one character, or changes state; gives where it stopped."""

    @abstractmethod
    def finish(self) -> None:
        """The output ends here."""

    def name(self, name: str, *, call_id: str | None = None) -> None:
        """Begins a call. The caller has seen that the name is not blank."""
        self.named, self._keep = True, False
        self._raw = []
        self._lead = ""
        self.sink.call(name.strip(), call_id=call_id)

    def close(self) -> None:
        """Ends the call."""
        self.sink.close()
        self.named = self._keep = False
        self.count += 1
        self._raw = []

    def fail(self) -> None:
        """This is no call: what was read is given back as it was, with what the current step has read."""
        self.done = self.failed = True

    def end(self, rest: str = "") -> None:
        """The section is over; `rest` was read, and is not its. An empty section leaves nothing."""
        self.done = True
        self.sink.mark()
        self.unread = rest

    def cut(self) -> None:
        """The output ended before the name was known: gives back what was read, without the marks."""
        self.done = True
        self.sink.mark()
        self.sink.show(without_marks("".join(self._raw), self._opened, self._marks))


MakeReader: TypeAlias = Callable[[Sink, str], Reader]
