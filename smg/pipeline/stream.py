"""The stream machine of one choice: token ids in, events out. Detokenize, match stops, split reasoning, scan tool calls.

This is the plain-Python specification: the native machine must give the same events. Fed one token at a time inside, so that the events,
joined, do not depend on how the engine cut its stream. Called by `smg.pipeline.run`, one machine a choice.
"""

from collections.abc import Sequence

from msgspec import Struct

from smg.engine import EngineDelta, TokenScores
from smg.parser import Parser, Piece, Text
from smg.pipeline.pieces import EventMaker, join
from smg.pipeline.stop import StopMatcher
from smg.tokenizer import Decoder, Tokenizer
from smg.types.event import Content, Event, FinishReason, TokenLogprob, TopLogprob

__all__ = ["StreamMachine", "StreamSpec", "token_logprobs"]


class StreamSpec(Struct, frozen=True, kw_only=True):
    """What every choice of a job shares. `end_ids` end a choice: EOS ids and the request's own, of which the latter are reported."""

    tokenizer: Tokenizer
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False
    end_ids: frozenset[int] = frozenset()
    reported_end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: bool = False
    stream_reasoning: bool = True
    starts_thinking: bool = False


def token_logprobs(scores: TokenScores, tokenizer: Tokenizer) -> list[TokenLogprob]:
    """Gives one entry a token, with the true bytes of the token and of its alternatives."""
    entries = []
    for i, (token_id, value) in enumerate(zip(scores.ids, scores.values, strict=True)):
        ids, values = scores.top[i] if i < len(scores.top) else ([], [])
        top = tuple(TopLogprob(other, tokenizer.token_bytes(other), score) for other, score in zip(ids, values, strict=True))
        entries.append(TokenLogprob(token_id, tokenizer.token_bytes(token_id), value, top))
    return entries


class StreamMachine:
    """One choice. `feed` takes the engine's deltas in order; once `done`, more of them change nothing.

    `cut` says that the gateway itself ended the choice (stop string, or an end id that the engine ran past): the engine must be aborted.
    Counts: `completion_tokens` up to and with the token that ended the choice, `reasoning_tokens` of them inside the thinking block.
    """

    def __init__(self, spec: StreamSpec, *, choice: int, decoder: Decoder, parser: Parser | None) -> None:
        self.spec = spec
        self.choice = choice
        self.done = False
        self.cut = False
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self._decoder = decoder
        self._parser = parser
        self._stops = StopMatcher(spec.stop_strings, include=spec.include_stop)
        self._plain = parser is None and not spec.stop_strings and not spec.logprobs
        self._maker = EventMaker(choice, thinking=spec.starts_thinking, stream_reasoning=spec.stream_reasoning)
        self._ended_by: int | None = None

    def feed(self, delta: EngineDelta) -> list[Event]:
        """Gives the events that became certain; the last one of the choice is `Finished`."""
        if self.done:
            return []
        events: list[Event] = []
        if self._plain:
            self._bulk(delta.token_ids, events)
            return self._closed(delta, events)
        scores = token_logprobs(delta.logprobs, self.spec.tokenizer) if self.spec.logprobs and delta.logprobs else []
        for i, token_id in enumerate(delta.token_ids):
            if self._ended_by is not None:
                self.cut = True  # the engine does not know this end and runs on
                self._finish("stop", self._reported(), events)
                return join(events)
            self._token(token_id, scores[i : i + 1], events)
            if self._parser is not None and self._parser.ended:
                self._stop(events)
                return join(events)
            if self._stops.matched is not None:
                self.cut = True
                self._finish("stop", self._stops.matched, events)
                return join(events)
        return self._closed(delta, events)

    def _closed(self, delta: EngineDelta, events: list[Event]) -> list[Event]:
        if delta.finish is not None and not self.done:
            self._close(delta, events)
        return join(events)

    def _bulk(self, ids: Sequence[int], events: list[Event]) -> None:
        """All tokens of a delta at once, where nothing but the end of the choice depends on a single one."""
        shown = ids if self._ended_by is None else ()
        for i, token_id in enumerate(ids):
            if self._ended_by is not None:
                self.cut = True  # the engine does not know this end and runs on
                break
            self.completion_tokens += 1
            if token_id in self.spec.end_ids and self.completion_tokens > self.spec.min_tokens:
                self._ended_by = token_id
                shown = ids[: i + (self.spec.include_stop and token_id in self.spec.reported_end_ids)]
        if text := self._decoder.feed(shown):
            events.append(Content(self.choice, text))
        if self.cut:
            self._finish("stop", self._reported(), events)

    def _close(self, delta: EngineDelta, events: list[Event]) -> None:
        if self._ended_by is not None:
            self._finish("stop", self._reported(), events)
        else:
            matched = delta.matched if isinstance(delta.matched, str) or delta.matched in self.spec.reported_end_ids else None
            self._finish(delta.finish or "stop", matched, events)

    def _reported(self) -> int | None:
        return self._ended_by if self._ended_by in self.spec.reported_end_ids else None

    def _token(self, token_id: int, scores: list[TokenLogprob], events: list[Event]) -> None:
        self.completion_tokens += 1
        armed = self.completion_tokens > self.spec.min_tokens
        if token_id in self.spec.end_ids and armed:
            self._ended_by = token_id
            if not (self.spec.include_stop and token_id in self.spec.reported_end_ids):
                return
        self._maker.scores += scores
        text = self._stops.feed(self._decoder.feed((token_id,)), armed=armed)
        self._maker.emit(self._parse(text), events)
        self.reasoning_tokens += self._maker.thinking

    def _stop(self, events: list[Event]) -> None:
        """A second call began, and there is to be one: the engine may stop."""
        self.done = self.cut = True
        self._maker.finish("stop", None, events)

    def _parse(self, text: str) -> Sequence[Piece]:
        if self._parser is None:
            return (Text(text),) if text else ()
        return self._parser.feed(text) if text else ()

    def _finish(self, reason: FinishReason, matched: str | int | None, events: list[Event]) -> None:
        self.done = True
        thinking = self._maker.thinking
        if self._stops.matched is None:
            self._maker.emit(self._parse(self._stops.feed(self._decoder.flush()) + self._stops.finish()), events)
        if self._stops.matched is not None:  # the last held bytes completed a stop string
            reason, matched = "stop", self._stops.matched
        if self._parser is not None:
            self._maker.emit(self._parser.finish(), events)
        self._maker.finish(reason, matched, events, thinking=thinking)
