"""Prompt stages: a job's input becomes text and token ids, and is refused when it does not fit the context. No engine is involved."""

import asyncio
from array import array

from msgspec import structs

from smg.errors import ContextExceeded, InvalidValue, RequestError
from smg.parser import opens_thinking
from smg.pipeline.models import ServedModel
from smg.pipeline.prompt_cache import Prompt, PromptKey
from smg.pipeline.side import INLINE_CHARACTERS
from smg.template import Rendered, encode_prompt
from smg.types.job import ChatInput, Content, TextInput, TokenInput
from smg.types.json import Json

__all__ = ["Prompt", "characters", "prepare"]

# Up to here a request is looked up in L0 on the event loop, for its content takes up to 1 ns a byte; what is longer does not queue for one
# thread.
LOOKUP_CHARACTERS = 1 << 18
# Texts with more characters a token of context than this are tried by their beginning first; prose has 4 to 5 a token.
BEGINNING = 10
ID_BYTES = 4  # of a packed one


async def prepare(
    source: ChatInput | TextInput | TokenInput, model: ServedModel, *, allow_special: bool, content: Content | None = None
) -> Prompt:
    """Gives the prompt's text and ids. Raises ContextExceeded before tokenizing what cannot fit, TemplateRefused, InvalidValue.

    `content` says as much as `source`, where the caller has such.
    """
    if isinstance(source, TokenInput):
        return _checked_ids(source, model)
    if isinstance(source, ChatInput):
        if model.context_length:
            check_length(len(source.messages), model, param="messages", what="messages")  # each of them takes a token at least
        if source.chat_template is not None:  # whose cost nobody knows
            return await asyncio.to_thread(_prepare, source, model, allow_special)
        if content is not None and len(content[1]) <= INLINE_CHARACTERS and not source.tools and not source.documents:
            return _recalled(source, model, allow_special, content, len(content[1]))  # messages as bytes are no shorter than as characters
    length = characters(source, limit=LOOKUP_CHARACTERS)
    if length > LOOKUP_CHARACTERS:
        return await asyncio.to_thread(_recalled, source, model, allow_special, content)
    if length <= INLINE_CHARACTERS:
        return _recalled(source, model, allow_special, content, length)
    key, prompt = _recall(source, model, allow_special, content)
    if prompt is None:
        prompt = _kept(key, await _beside(source, model, allow_special, length), model)
    return prompt


async def _beside(source: ChatInput | TextInput, model: ServedModel, allow_special: bool, length: int) -> Prompt:
    if model.side is None:
        return await asyncio.to_thread(_prepare, source, model, allow_special, length)
    return await model.side.run(_prepare, source, model, allow_special, length)


def _recalled(
    source: ChatInput | TextInput, model: ServedModel, allow_special: bool, content: Content | None, length: int | None = None
) -> Prompt:
    key, prompt = _recall(source, model, allow_special, content)
    if prompt is not None:
        return prompt
    prompt = _prepare(source, model, allow_special, length)
    if key is not None or model.cache_meter.asks():
        prompt = _kept(key, prompt, model)
    return prompt


def _recall(
    source: ChatInput | TextInput, model: ServedModel, allow_special: bool, content: Content | None
) -> tuple[PromptKey | None, Prompt | None]:
    """The request's key in L0, None when it shall not be kept; and its prompt, None when it must be made."""
    cache = model.cache
    if cache is None or not (model.repeatable or isinstance(source, TextInput)):
        return None, None
    key, prompt = cache.find(source, model=model.number, allow_special=allow_special, content=content)
    model.cache_meter.looked_up[prompt is not None](1)
    return key, prompt


def _kept(key: PromptKey | None, prompt: Prompt, model: ServedModel) -> Prompt:
    if key is not None and model.cache is not None:
        prompt = model.cache.keep(key, prompt)
    model.cache_meter.pieces(model.number, model.tokenizer.cache_counts)
    return prompt


def _prepare(source: ChatInput | TextInput, model: ServedModel, allow_special: bool, length: int | None = None) -> Prompt:
    """Makes the prompt. `length`: what the input has at most in characters, where that is known."""
    if (length is None or 0 < model.context_length < length) and model.surely_too_long(length := characters(source)):
        raise ContextExceeded(
            f"the prompt has {length} characters; this model's context is {model.context_length} tokens", param=_param(source)
        )
    prompt = _encode(source, model, allow_special)
    check_length(len(prompt.ids), model, param=_param(source))
    return prompt


def check_length(length: int, model: ServedModel, *, param: str, what: str = "tokens") -> None:
    """Raises ContextExceeded when the prompt leaves no room for a single token of output."""
    if not length:
        raise InvalidValue("the prompt is empty", param=param)
    if model.context_length and length >= model.context_length:
        raise ContextExceeded(
            f"this model's maximum context length is {model.context_length} tokens; the prompt has {length} {what}", param=param
        )


def characters(source: ChatInput | TextInput, *, limit: int | None = None) -> int:
    """Counts the characters of all text in the input, without rendering it, and one more a value. Above `limit` it stops counting."""
    if isinstance(source, TextInput):
        return len(source.text)
    pending: list[Json] = [*source.messages, *source.tools, *source.documents]
    total = 0
    while pending and (limit is None or total <= limit):
        value = pending.pop()
        total += 1
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
    return total


def _param(source: ChatInput | TextInput | TokenInput) -> str:
    return "messages" if isinstance(source, ChatInput) else "prompt"


def _checked_ids(source: TokenInput, model: ServedModel) -> Prompt:
    ids, known = source.ids, model.tokenizer.vocab_size
    check_length(len(ids), model, param="prompt")
    if min(ids) < 0 or max(ids) >= known:
        bad = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < known)
        raise InvalidValue(f"token id {ids[bad]} is not in the vocabulary of {known}", param=f"prompt[{bad}]")
    return Prompt(ids=array("I", ids), text=None)


def _encode(source: ChatInput | TextInput, model: ServedModel, allow_special: bool) -> Prompt:
    if isinstance(source, TextInput):
        _check_beginning(source.text, model, param="prompt")
        packed = model.tokenizer.encode_packed(source.text, add_special_tokens=source.add_special_tokens)
        return Prompt(ids=array("I", packed), text=source.text)
    rendered = _render(source, model)
    _check_beginning(rendered.text, model, param="messages")
    ids = encode_prompt(model.tokenizer, rendered, allow_special=allow_special)
    thinking = bool(model.reasoning_parser) and opens_thinking(rendered.text, model.reasoning_parser)
    return Prompt(ids=ids, text=rendered.text, thinking=thinking)


def _check_beginning(text: str, model: ServedModel, *, param: str) -> None:
    """Refuses a text whose beginning alone is far over the context: cutting it changes the tokens at the cut, never half of all."""
    limit = model.context_length
    if not len(text) > BEGINNING * limit > 0:
        return
    tokens = len(model.tokenizer.encode_packed(text[: BEGINNING * limit])) // ID_BYTES
    if tokens > 2 * limit:
        raise ContextExceeded(f"this model's maximum context length is {limit} tokens; the prompt has more than {tokens}", param=param)


def _render(source: ChatInput, model: ServedModel) -> Rendered:
    if model.template is None:
        raise RequestError(f"the model {model.id!r} has no chat template; use /v1/completions or give --chat-template")
    if source.tool_choice == "none":
        source = structs.replace(source, tools=())
    return model.template.render(source)
