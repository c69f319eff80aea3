"""The request of `POST /v1/completions`."""

from smg.types.openai.common import GenerationFields

__all__ = ["CompletionRequest"]


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """The whole body. `prompt`: a text, texts, token ids, or lists of token ids; which one is told apart in `smg.api.openai.prompts`."""

    prompt: str | list[str | int | list[int]] | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
