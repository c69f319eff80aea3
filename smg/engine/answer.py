"""The messages of one Generate call in, deltas that keep the contract out. One `Answer` a call; fed by `smg.engine.grpc`.

Engines differ in what their closing message of a choice holds: everything, the last delta again, or nothing. So its ids are measured
against how many were seen, never trusted: those beyond that number are new.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from smg.engine.base import EngineDelta, EngineFinish, EngineRequest, TokenScores
from smg.errors import EngineError, EngineProtocol

__all__ = ["Answer", "finish_of"]

FINISHES: dict[str, EngineFinish] = {
    "length": "length",
    "abort": "abort",
    "aborted": "abort",
    "cancelled": "abort",
    "timeout": "abort",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


def finish_of(reason: str) -> EngineFinish:
    """Gives the finish reason of an engine's word for it; words without a meaning of their own are stops. `error` raises EngineError."""
    if reason == "error":
        raise EngineError("the engine failed while working on the request", detail="finish_reason error")
    return FINISHES.get(reason, "stop")


class Answer:
    """What was seen of each choice so far. `finished` turns true with the closing message of the last choice."""

    def __init__(self, request: EngineRequest) -> None:
        self.finished = False
        self._request = request
        self._seen = [0] * request.sampling.n
        self._open = set(range(request.sampling.n))
        self._prompt_scored = request.prompt_logprobs is None

    def take(self, delta: EngineDelta) -> EngineDelta:
        """Turns one message, as a driver's `decode` gives it, into a delta. Raises EngineProtocol for a choice that cannot go on."""
        choice = self._choice(delta)
        seen = self._seen[choice]
        fresh = delta.token_ids if delta.finish is None else delta.token_ids[seen:]
        self._seen[choice] = seen + len(fresh)
        if delta.finish is not None:
            self._open.remove(choice)
            self.finished = not self._open
        elif delta.logprobs is None and delta.prompt_logprobs is None and delta.completion_tokens == self._seen[choice]:
            return delta
        return replace(
            delta,
            choice=choice,
            token_ids=fresh,
            completion_tokens=self._seen[choice] if delta.finish is None else max(self._seen[choice], delta.completion_tokens),
            logprobs=self._scores(delta, fresh),
            prompt_logprobs=self._prompt_scores(delta),
        )

    def _choice(self, delta: EngineDelta) -> int:
        if delta.choice in self._open:
            return delta.choice
        if delta.finish is not None and not self._request.stream and self._open and delta.choice < len(self._seen):
            return min(self._open)  # SGLang gives every choice of a unary answer the index 0
        raise EngineProtocol(
            "the engine answered for a choice that was over or not asked for", detail=f"choice {delta.choice} of {len(self._seen)}"
        )

    def _scores(self, delta: EngineDelta, fresh: list[int]) -> TokenScores | None:
        if delta.logprobs is None or self._request.logprobs is None or not fresh:
            return None
        return _trimmed(_aligned(delta.logprobs, delta.token_ids, skip=len(delta.token_ids) - len(fresh)), top=self._request.logprobs)

    def _prompt_scores(self, delta: EngineDelta) -> TokenScores | None:
        """Once a request: some engines repeat them for each choice and at its end."""
        if delta.prompt_logprobs is None or self._prompt_scored:
            return None
        self._prompt_scored = True
        if len(delta.prompt_logprobs.ids) != len(delta.prompt_logprobs.values):
            raise EngineProtocol("the engine's log probabilities of the prompt do not fit its tokens")
        return _trimmed(delta.prompt_logprobs, top=self._request.prompt_logprobs or 0)


def _aligned(scores: TokenScores, ids: Sequence[int], *, skip: int) -> TokenScores:
    """One entry for each of ids[skip:]; a token that the engine left out has no value."""
    if len(scores.values) == len(ids):
        return TokenScores(ids=list(ids[skip:]), values=scores.values[skip:], top=scores.top[skip:])
    values: list[float | None] = []
    top: list[tuple[list[int], list[float]]] = []
    at = 0
    for token_id in ids:
        hit = at < min(len(scores.values), len(scores.ids)) and scores.ids[at] == token_id
        values.append(scores.values[at] if hit else None)
        top.append(scores.top[at] if hit and at < len(scores.top) else ([], []))
        at += hit
    return TokenScores(ids=list(ids[skip:]), values=values[skip:], top=top[skip:])


def _trimmed(scores: TokenScores, *, top: int) -> TokenScores:
    """The best `top` alternatives of each token, best first: some engines put the chosen token first, some send one more."""
    if top == 0:
        return TokenScores(ids=scores.ids, values=scores.values)
    best = [sorted(zip(values, ids, strict=False), key=lambda pair: -pair[0])[:top] for ids, values in scores.top]
    return TokenScores(ids=scores.ids, values=scores.values, top=[([i for _, i in pairs], [v for v, _ in pairs]) for pairs in best])
