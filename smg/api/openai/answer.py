"""What all answers of this surface begin and end with: ids, model, time, usage, logprobs. Used by the renderers of chat and completions."""

import hashlib
import math
import secrets
import time
from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import Struct

from smg import __version__
from smg.api.base import Request, Services
from smg.errors import EngineError, InvalidValue
from smg.types.event import FinishReason, TokenLogprob, Usage
from smg.types.openai.common import GenerationFields

__all__ = ["Head", "answer_id", "chat_logprobs", "finish_reason", "finite", "open_head", "usage_json", "wants_usage"]

# JSON has no -inf; OpenAI writes this for a token that could not be sampled.
IMPOSSIBLE = -9999.0
USAGE = (
    b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}'
)


class Head(Struct, frozen=True, kw_only=True):
    """The fields that every chunk of one answer repeats."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str

    def prefix(self) -> bytes:
        """Gives the JSON of the fields, open for more: it lacks the closing brace."""
        return msgspec.json.encode(self)[:-1]


def answer_id(http: Request, prefix: str) -> str:
    """Gives the answer's id: the request's own where it was made here, else a new one."""
    return http.request_id if http.own_id else prefix + secrets.token_hex(12)


def open_head(model: str, services: Services, *, answer: str, kind: str) -> Head:
    """Gives the head. The model is named as the client named it; an empty name means the only model there is."""
    model = model or services.models.resolve("")
    return Head(id=answer, object=kind, created=int(time.time()), model=model, system_fingerprint=_fingerprint(model))


@lru_cache(maxsize=256)
def _fingerprint(model: str) -> str:
    return "fp_" + hashlib.sha256(f"{__version__} {model}".encode()).hexdigest()[:10]


def wants_usage(request: GenerationFields) -> bool:
    """Says whether a stream ends with a usage chunk. Raises InvalidValue for stream_options without a stream."""
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise InvalidValue("stream_options needs stream to be true", param="stream_options")
    if options.continuous_usage_stats:
        raise InvalidValue("stream_options.continuous_usage_stats is not supported", param="stream_options.continuous_usage_stats")
    return bool(options.include_usage)


def usage_json(usage: Usage) -> bytes:
    """Gives the `usage` object."""
    total = usage.prompt_tokens + usage.completion_tokens
    return USAGE % (usage.prompt_tokens, usage.completion_tokens, total, usage.cached_tokens, usage.reasoning_tokens)


def finish_reason(reason: FinishReason) -> str:
    """Gives the reason, unless the engine gave up: an answer that was cut short must not look whole."""
    if reason == "abort":
        raise EngineError("the engine aborted the request before it was finished")
    return reason


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, object]]:
    """Gives the entries of `logprobs.content`: `bytes` are the token's own, `token` their nearest text."""
    return [
        {
            **_scored(entry.token, entry.logprob),
            "top_logprobs": [_scored(other.token, other.logprob) for other in entry.top],
        }
        for entry in tokens
    ]


def finite(logprob: float | None) -> float:
    """Gives a number that JSON can hold."""
    return logprob if logprob is not None and math.isfinite(logprob) else IMPOSSIBLE


def _scored(token: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": token.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(token)}
