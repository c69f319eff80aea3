"""Pieces of a parser in, events of one choice out: thoughts held back where they are wanted whole, ids for calls, tokens' scores.

Used by the stream machine; the native one makes its events in `smg_ext.events`.
"""

import secrets
from collections.abc import Sequence
from itertools import groupby

from msgspec import structs

from smg.parser import Call, CallArguments, Piece, Text, Thought
from smg.types.event import Content, Event, Finished, FinishReason, Reasoning, TokenLogprob, ToolArguments, ToolCall

__all__ = ["EventMaker", "join"]


class EventMaker:
    """One choice. `thinking`: the last piece was a thought; `scores` wait for the event that their tokens' text is in."""

    def __init__(self, choice: int, *, thinking: bool, stream_reasoning: bool) -> None:
        self.thinking = thinking
        self.scores: list[TokenLogprob] = []
        self._choice = choice
        self._stream_reasoning = stream_reasoning
        self._called = False
        self._thoughts: list[str] = []

    def emit(self, pieces: Sequence[Piece], events: list[Event]) -> None:
        """Adds what the pieces say."""
        for piece in pieces:
            self.thinking = isinstance(piece, Thought)
            if isinstance(piece, Thought) and not self._stream_reasoning:
                self._thoughts.append(piece.text)
                continue
            self._release_thoughts(events)
            events.append(self._event(piece))

    def finish(self, reason: FinishReason, matched: str | int | None, events: list[Event], *, thinking: bool = False) -> None:
        """Adds what was held back and the choice's end. `thinking`: where the scores that are left belong."""
        self._release_thoughts(events)
        if self.scores:
            kind = Reasoning if thinking else Content
            events.append(kind(self._choice, "", self._take_scores()))
        events.append(Finished(self._choice, "tool_calls" if reason == "stop" and self._called else reason, matched))

    def _release_thoughts(self, events: list[Event]) -> None:
        if self._thoughts:
            events.append(Reasoning(self._choice, "".join(self._thoughts), self._take_scores()))
            self._thoughts = []

    def _event(self, piece: Piece) -> Event:
        scores = self._take_scores()
        match piece:
            case Text(text):
                return Content(self._choice, text, scores)
            case Thought(text):
                return Reasoning(self._choice, text, scores)
            case Call(index, name, call_id):
                self._called = True
                return ToolCall(self._choice, index, call_id or f"call_{secrets.token_hex(12)}", name, scores)
            case CallArguments(index, text):
                return ToolArguments(self._choice, index, text, scores)

    def _take_scores(self) -> tuple[TokenLogprob, ...]:
        if not self.scores:
            return ()
        scores, self.scores = tuple(self.scores), []
        return scores


def join(events: list[Event]) -> list[Event]:
    """Merges neighbours of one kind, so that one message gives as few events as it has kinds of text. All are of one choice."""
    if len(events) < 2:
        return events
    joined: list[Event] = []
    for kind, run in groupby(events, key=_kind):
        parts = list(run)
        joined += [_merged(parts)] if len(parts) > 1 and kind else parts
    return joined


def _kind(event: Event) -> tuple[type[Event], int] | None:
    """Neighbours with the same are one text; None for what stands alone."""
    if isinstance(event, ToolArguments):
        return ToolArguments, event.index
    return (type(event), 0) if isinstance(event, (Content, Reasoning)) else None


def _merged(parts: list[Event]) -> Event:
    """One event for many; texts are joined once, whatever their number."""
    texts: list[str] = []
    scores: list[TokenLogprob] = []
    for part in parts:
        assert isinstance(part, (Content, Reasoning, ToolArguments))
        texts.append(part.text)
        scores += part.logprobs
    return structs.replace(part, text="".join(texts), logprobs=tuple(scores))
