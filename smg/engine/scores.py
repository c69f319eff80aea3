"""Log probabilities in, as the protocols send them, `TokenScores` out. Called by `smg.engine.replies`.

Four of the five protocols send parallel lists; TensorRT-LLM sends one message a token.
"""

from collections.abc import Iterable
from typing import Literal, Protocol

from smg.engine.base import TokenScores

__all__ = ["output_scores", "prompt_scores", "token_scores"]


class TopBlock(Protocol):
    """The alternatives of one position: `TopLogProbs` of each protocol."""

    @property
    def values(self) -> Iterable[float]:
        """Log probabilities."""

    @property
    def token_ids(self) -> Iterable[int]:
        """The ids they belong to."""


class OutputBlock(Protocol):
    """`OutputLogProbs` of each protocol."""

    @property
    def token_logprobs(self) -> Iterable[float]:
        """One a token."""

    @property
    def token_ids(self) -> Iterable[int]:
        """The ids they belong to."""

    @property
    def top_logprobs(self) -> Iterable[TopBlock]:
        """One a token, or none at all."""


class InputValue(Protocol):
    """`InputTokenLogProb` of each protocol: a value, or none at the prompt's first token."""

    value: float

    def HasField(self, field_name: Literal["value"], /) -> bool:
        """Protobuf's own."""


class InputBlock(Protocol):
    """`InputLogProbs` of each protocol."""

    @property
    def token_logprobs(self) -> Iterable[InputValue]:
        """One a token."""

    @property
    def token_ids(self) -> Iterable[int]:
        """The ids they belong to."""

    @property
    def top_logprobs(self) -> Iterable[TopBlock]:
        """One a token, or none at all."""


class ScoredToken(Protocol):
    """`TokenLogprob` of TensorRT-LLM."""

    token_id: int
    logprob: float

    @property
    def top_logprobs(self) -> Iterable["ScoredToken"]:
        """The alternatives, without any of their own."""


def output_scores(block: OutputBlock) -> TokenScores:
    """Gives the scores of generated tokens."""
    return TokenScores(ids=list(block.token_ids), values=list(block.token_logprobs), top=_top(block.top_logprobs))


def prompt_scores(block: InputBlock) -> TokenScores:
    """Gives the scores of the prompt's tokens."""
    values = [item.value if item.HasField("value") else None for item in block.token_logprobs]
    return TokenScores(ids=list(block.token_ids), values=values, top=_top(block.top_logprobs))


def token_scores(entries: Iterable[ScoredToken]) -> TokenScores:
    """Gives the scores of tokens that come one by one."""
    rows = list(entries)
    return TokenScores(
        ids=[row.token_id for row in rows],
        values=[row.logprob for row in rows],
        top=[([item.token_id for item in row.top_logprobs], [item.logprob for item in row.top_logprobs]) for row in rows],
    )


def _top(blocks: Iterable[TopBlock]) -> list[tuple[list[int], list[float]]]:
    return [(list(block.token_ids), list(block.values)) for block in blocks]
