"""The neutral inner language on the way out: the pipeline yields these, and every surface renders them in its own dialect.

Order for one job: `Started`, then for each choice its deltas and one `Finished` (choices interleave), then `Usage`. A failure is not an
event: the iterator raises an `SmgError`.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

__all__ = [
    "Content",
    "Event",
    "FinishReason",
    "Finished",
    "PromptLogprobs",
    "Reasoning",
    "Started",
    "TokenLogprob",
    "ToolArguments",
    "ToolCall",
    "TopLogprob",
    "Usage",
]

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "abort"]


class TopLogprob(Struct, frozen=True):
    """One alternative: `token` is its text's bytes, which need not be whole UTF-8."""

    token_id: int
    token: bytes
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """One generated or prompt token. `logprob` is None for the first token of a prompt, which has none."""

    token_id: int
    token: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()


class Started(Struct, frozen=True, kw_only=True):
    """The request was handed to an engine. Comes before any token, and does not wait for one."""

    engine: str
    prompt_ids: Sequence[int]
    prompt_text: str | None = None


class PromptLogprobs(Struct, frozen=True):
    """Log probabilities of the prompt's tokens, one entry a token."""

    entries: tuple[TokenLogprob, ...]


class Content(Struct, frozen=True):
    """Visible text. `logprobs` holds the tokens that `text` was made of; text may be empty while a character is incomplete."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Reasoning(Struct, frozen=True):
    """Text from inside the thinking block, without its marks."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ToolCall(Struct, frozen=True):
    """A tool call begins: its whole name is known. `index` counts the calls of this choice from 0."""

    choice: int
    index: int
    id: str
    name: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ToolArguments(Struct, frozen=True):
    """The next piece of a call's arguments; the pieces of one call join to one JSON text."""

    choice: int
    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Finished(Struct, frozen=True):
    """The choice is complete. `matched_stop`: the stop string or token id that ended it, None at EOS or length."""

    choice: int
    reason: FinishReason
    matched_stop: str | int | None = None


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens of the whole job: completion over all choices, cached and reasoning as parts of prompt and completion."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


Event: TypeAlias = Started | PromptLogprobs | Content | Reasoning | ToolCall | ToolArguments | Finished | Usage
