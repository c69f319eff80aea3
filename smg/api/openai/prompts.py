"""The four forms of a completion's `prompt`, told apart and checked. Called by completions.py."""

from typing import cast

from smg.errors import InvalidValue
from smg.types.job import TextInput, TokenInput
from smg.types.openai.completions import CompletionRequest

__all__ = ["MAX_PROMPTS", "prompts"]

MAX_PROMPTS = 1024


def prompts(request: CompletionRequest) -> list[TextInput | TokenInput]:
    """Gives one input a prompt. Raises InvalidValue for mixed forms, empty lists and too many prompts."""
    prompt = request.prompt
    if prompt is None:
        raise InvalidValue("prompt is required", param="prompt")
    if isinstance(prompt, str):
        return [_text(prompt, request)]
    if not prompt:
        raise InvalidValue("prompt must not be empty", param="prompt")
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise InvalidValue("prompt must be a text, texts, token ids, or lists of token ids, not a mixture", param="prompt")
    if kinds == {int}:
        return [_ids(cast(list[int], prompt), at="prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidValue(f"prompt may have at most {MAX_PROMPTS} entries, not {len(prompt)}", param="prompt")
    if kinds == {str}:
        return [_text(one, request) for one in cast(list[str], prompt)]
    return [_ids(one, at=f"prompt[{i}]") for i, one in enumerate(cast(list[list[int]], prompt))]


def _text(text: str, request: CompletionRequest) -> TextInput:
    return TextInput(text=text, add_special_tokens=request.add_special_tokens is not False)


def _ids(ids: list[int], *, at: str) -> TokenInput:
    if not ids:
        raise InvalidValue(f"{at} must not be empty", param=at)
    return TokenInput(ids=tuple(ids))
