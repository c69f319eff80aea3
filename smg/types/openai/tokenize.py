"""Requests of `POST /v1/tokenize` and `/v1/detokenize`: the original's fields, and vLLM's chat form of tokenize."""

from msgspec import Struct

from smg.types.openai.common import RawObject

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | list[str] | None = None
    add_special_tokens: bool | None = None
    messages: list[RawObject] | None = None
    tools: list[RawObject] | None = None
    documents: list[RawObject] | None = None
    chat_template: str | None = None
    chat_template_kwargs: RawObject | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """One list of ids, or several."""

    tokens: list[int | list[int]]
    model: str | None = None
    skip_special_tokens: bool | None = None
