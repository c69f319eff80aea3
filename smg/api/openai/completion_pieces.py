"""Events of one prompt → pieces of its choices: text, logprobs, end. Stream and whole answer are both made of these. One a prompt."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from smg.api.openai.answer import finish_reason
from smg.api.openai.legacy_logprobs import LegacyLogprobs, OffsetCounter
from smg.types.event import Content, Event, Finished, PromptLogprobs, Reasoning, Started, TokenLogprob, ToolArguments, ToolCall, Usage

__all__ = ["CompletionPieces", "Piece"]


class Piece(Struct, frozen=True, kw_only=True):
    """What to add to a choice. `logprob_sum` and `tokens` count for best_of."""

    choice: int
    text: str = ""
    logprobs: LegacyLogprobs | None = None
    finish: str | None = None
    matched_stop: str | int | None = None
    logprob_sum: float = 0.0
    tokens: int = 0


class CompletionPieces:
    """`echo`: every choice begins with the prompt; `silent`: the model's own output is dropped (max_tokens 0)."""

    def __init__(
        self, *, choices: int, echo: bool, logprobs: bool, silent: bool, decode_prompt: Callable[[Sequence[int]], str], first: int = 0
    ) -> None:
        self.usage: Usage | None = None
        self._first = first
        self._echo = echo
        self._logprobs = logprobs
        self._silent = silent
        self._decode_prompt = decode_prompt
        self._counters = [OffsetCounter() for _ in range(choices)]
        self._waiting = echo and logprobs
        self._held: list[Event] = []
        self._to_open = set(range(choices)) if echo else set()
        self._prompt = ""
        self._prompt_scores: tuple[TokenLogprob, ...] = ()

    def feed(self, events: Sequence[Event]) -> list[Piece]:
        """Gives the pieces for these events. With echo and logprobs nothing is given until the prompt's logprobs are there."""
        pieces: list[Piece] = []
        for event in events:
            if self._waiting and isinstance(event, PromptLogprobs | Usage):
                self._release(event, pieces)
            if self._waiting and not isinstance(event, Started):
                self._held.append(event)
            else:
                self._take(event, pieces)
        return pieces

    def _release(self, event: PromptLogprobs | Usage, pieces: list[Piece]) -> None:
        """`Usage` is the end: an engine that never gave the prompt's logprobs must not cost the text."""
        self._waiting = False
        if isinstance(event, PromptLogprobs):
            self._prompt_scores = event.entries
        held, self._held = self._held, []
        for earlier in held:
            self._take(earlier, pieces)

    def _take(self, event: Event, pieces: list[Piece]) -> None:
        match event:
            case Started(prompt_ids=ids, prompt_text=text):
                if self._echo:
                    self._prompt = text if text is not None else self._decode_prompt(ids)
            case Content(choice, text, scores) | Reasoning(choice, text, scores):
                self._open(choice, pieces)
                if not self._silent and (text or scores):
                    pieces.append(self._text(choice, text, scores))
            case Finished(choice, reason, matched):
                self._open(choice, pieces)
                told = "length" if self._silent else finish_reason(reason)
                pieces.append(Piece(choice=self._first + choice, finish=told, matched_stop=None if self._silent else matched))
            case Usage():
                self.usage = event
            case ToolCall() | ToolArguments() | PromptLogprobs():
                pass

    def _open(self, choice: int, pieces: list[Piece]) -> None:
        if choice not in self._to_open:
            return
        self._to_open.discard(choice)
        logprobs = self._counters[choice].prompt(self._prompt_scores, self._prompt) if self._logprobs else None
        pieces.append(Piece(choice=self._first + choice, text=self._prompt, logprobs=logprobs))

    def _text(self, choice: int, text: str, scores: Sequence[TokenLogprob]) -> Piece:
        return Piece(
            choice=self._first + choice,
            text=text,
            logprobs=self._counters[choice].tokens(scores) if self._logprobs else None,
            logprob_sum=sum(entry.logprob or 0.0 for entry in scores),
            tokens=len(scores),
        )
