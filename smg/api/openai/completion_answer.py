"""Pieces → chunks of a streamed completion, or one whole completion. Called by completions.py."""

from collections.abc import Sequence

import msgspec

from smg.api.openai.answer import Head, usage_json
from smg.api.openai.completion_pieces import Piece
from smg.api.openai.legacy_logprobs import LegacyLogprobs
from smg.types.event import Usage

__all__ = ["CompletionStream", "CompletionWhole", "total_usage"]

encode = msgspec.json.encode


def total_usage(usages: Sequence[Usage | None], *, silent: bool) -> Usage:
    """Adds up the usage of all prompts; `silent` tells no completion tokens, as the client asked for none."""
    known = [usage for usage in usages if usage is not None]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in known),
        completion_tokens=0 if silent else sum(usage.completion_tokens for usage in known),
        cached_tokens=sum(usage.cached_tokens for usage in known),
        reasoning_tokens=0 if silent else sum(usage.reasoning_tokens for usage in known),
    )


class CompletionStream:
    """Chunks of all choices of all prompts."""

    def __init__(self, head: Head, *, usage: bool) -> None:
        self._prefix = b"data: " + head.prefix()
        self._tail = b',"usage":null}\n\n' if usage else b"}\n\n"

    def chunks(self, pieces: Sequence[Piece]) -> bytes:
        """Gives one chunk a piece, joined to one write."""
        return b"".join(self._chunk(piece) for piece in pieces)

    def usage(self, usage: Usage) -> bytes:
        """Gives the last chunk, for clients that asked for it."""
        return self._prefix + b',"choices":[],"usage":%b}\n\n' % usage_json(usage)

    def _chunk(self, piece: Piece) -> bytes:
        matched = b"" if piece.matched_stop is None else b',"matched_stop":' + encode(piece.matched_stop)
        text, logprobs, finish = encode(piece.text), encode(piece.logprobs), encode(piece.finish)
        body = b',"choices":[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b}]' % (piece.choice, text, logprobs, finish, matched)
        return self._prefix + body + self._tail


class _Choice:
    """A choice as it grows."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.logprobs: LegacyLogprobs | None = None
        self.finish: Piece | None = None
        self.logprob_sum = 0.0
        self.tokens = 0

    def add(self, piece: Piece) -> None:
        self.text.append(piece.text)
        self.logprob_sum += piece.logprob_sum
        self.tokens += piece.tokens
        if piece.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = LegacyLogprobs()
            self.logprobs.extend(piece.logprobs)
        if piece.finish is not None:
            self.finish = piece

    def score(self) -> float:
        return self.logprob_sum / self.tokens if self.tokens else 0.0


class CompletionWhole:
    """The whole answer. Each prompt has `generated` choices, of which the `shown` likeliest a token are told."""

    def __init__(self, head: Head, *, prompts: int, generated: int, shown: int) -> None:
        self._head = head
        self._generated = generated
        self._shown = shown
        self._choices = [_Choice() for _ in range(prompts * generated)]

    def feed(self, pieces: Sequence[Piece]) -> None:
        """Takes the next pieces."""
        for piece in pieces:
            self._choices[piece.choice].add(piece)

    def body(self, usage: Usage) -> bytes:
        """Gives the response body."""
        choices = [_fields(i, choice) for i, choice in enumerate(self._best())]
        return self._head.prefix() + b',"choices":%b,"usage":%b}' % (encode(choices), usage_json(usage))

    def _best(self) -> list[_Choice]:
        if self._shown == self._generated:
            return self._choices
        best: list[_Choice] = []
        for start in range(0, len(self._choices), self._generated):
            ranked = sorted(self._choices[start : start + self._generated], key=_Choice.score, reverse=True)
            best += ranked[: self._shown]
        return best


def _fields(index: int, choice: _Choice) -> dict[str, object]:
    finish = choice.finish
    fields: dict[str, object] = {
        "index": index,
        "text": "".join(choice.text),
        "logprobs": choice.logprobs,
        "finish_reason": finish.finish if finish else None,
    }
    if finish and finish.matched_stop is not None:
        fields["matched_stop"] = finish.matched_stop
    return fields
