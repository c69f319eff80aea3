"""`/v1/tokenize` and `/v1/detokenize`: the gateway's tokenizer, asked directly. With `messages`, the prompt as the template renders it."""

import asyncio
from typing import cast

import msgspec
from msgspec import structs

from smg.api.base import Reply, Request, Services
from smg.api.decode import check_depth, decode, parsed
from smg.api.openai.chat_request import template_input
from smg.api.openai.messages import checked_messages
from smg.api.openai.tools import checked_tools
from smg.errors import InvalidValue
from smg.types.job import TextInput
from smg.types.openai.tokenize import DetokenizeRequest, TokenizeRequest

__all__ = ["detokenize", "tokenize"]

MAX_BATCH = 1024
MAX_IDS = 1 << 20
# Decoding more ids than this leaves the event loop.
INLINE_IDS = 2048

TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


async def tokenize(http: Request, services: Services) -> Reply:
    """Gives `tokens`, `count`, `char_count`; lists of each for a list of prompts; `prompt`, the rendered text, for messages."""
    body = await http.body()
    request = await parsed(body, lambda data: decode(data, TOKENIZE))
    if (request.prompt is None) == (request.messages is None):
        raise InvalidValue("either prompt or messages is required", param="prompt")
    if request.messages is not None:
        check_depth([request.messages, request.tools, request.documents, request.chat_template_kwargs], body=body, at="the body")
        return await _tokenize_chat(request, services)
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt or []
    _check_batch(len(prompts), name="prompt")
    results = []
    for text in prompts:
        source = TextInput(text=text, add_special_tokens=request.add_special_tokens is not False)
        prompt = await services.pipeline.prompt(request.model or "", source)
        results.append({"tokens": list(prompt.ids), "count": len(prompt.ids), "char_count": len(text)})
        await asyncio.sleep(0)  # a short prompt is tokenized on the loop, which others use too
    if isinstance(request.prompt, str):
        return Reply(body=msgspec.json.encode(results[0]))
    return Reply(body=msgspec.json.encode({name: [result[name] for result in results] for name in ("tokens", "count", "char_count")}))


async def _tokenize_chat(request: TokenizeRequest, services: Services) -> Reply:
    source = structs.replace(
        template_input(request),
        messages=checked_messages(request.messages or []),
        tools=tuple(checked_tools(request.tools).values()),
    )
    prompt = await services.pipeline.prompt(request.model or "", source)
    text = prompt.text or ""
    return Reply(body=msgspec.json.encode({"tokens": list(prompt.ids), "count": len(prompt.ids), "char_count": len(text), "prompt": text}))


async def detokenize(http: Request, services: Services) -> Reply:
    """Gives `text`; a list of texts for a list of lists."""
    request = await parsed(await http.body(), lambda data: decode(data, DETOKENIZE))
    batch = cast(list[list[int]], request.tokens) if any(isinstance(one, list) for one in request.tokens) else None
    if batch is not None and not all(isinstance(one, list) for one in batch):
        raise InvalidValue("tokens must be ids, or lists of ids, not both", param="tokens")
    if batch is not None:
        _check_batch(len(batch), name="tokens")
    lists = batch if batch is not None else [cast(list[int], request.tokens)]
    if sum(map(len, lists)) > MAX_IDS:
        raise InvalidValue(f"tokens may have at most {MAX_IDS} ids in all", param="tokens")
    tokenizer = (await services.models.get(request.model or "")).tokenizer
    skip = request.skip_special_tokens is not False

    def decode_all() -> bytes:
        wrong = next((one for ids in lists for one in ids if not 0 <= one < tokenizer.vocab_size), None)
        if wrong is not None:
            raise InvalidValue(f"token id {wrong} is not in the vocabulary of {tokenizer.vocab_size}", param="tokens")
        texts = [tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists]
        return msgspec.json.encode({"text": texts if batch is not None else texts[0]})

    return Reply(body=decode_all() if sum(map(len, lists)) <= INLINE_IDS else await asyncio.to_thread(decode_all))


def _check_batch(length: int, *, name: str) -> None:
    if not length:
        raise InvalidValue(f"{name} must not be empty", param=name)
    if length > MAX_BATCH:
        raise InvalidValue(f"{name} may have at most {MAX_BATCH} entries", param=name)
