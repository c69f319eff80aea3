"""The fields that both generating endpoints share: checked, and put into the neutral language. Called by chat.py and completions.py."""

import time

from msgspec import UNSET, UnsetType

from smg.api.base import Request
from smg.errors import InvalidValue
from smg.types.job import TARGET_HEADER, Routing, Sampling, Stops
from smg.types.openai.common import GenerationFields

__all__ = ["MAX_TOKENS", "check_range", "deadline", "job_id", "model_name", "routing", "sampling", "stops"]

MAX_TOKENS = 2**31 - 1
MAX_STOPS = 16  # OpenAI allows 4; engines allow any number
MAX_STOP_CHARACTERS = 4096
MAX_STOP_IDS = 1024
MAX_BIASES = 1024
MAX_ID_CHARACTERS = 128
MAX_MODEL_CHARACTERS = 512

# Field, lowest, highest.
RANGES: tuple[tuple[str, float, float], ...] = (
    ("n", 1, 128),
    ("temperature", 0, 2),
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("min_p", 0, 1),
    ("top_k", -1, MAX_TOKENS),
    ("min_tokens", 0, MAX_TOKENS),
    ("seed", -(2**63), 2**63 - 1),
    ("priority", -(2**31), 2**31 - 1),
)


def check_range(name: str, value: float | None, *, low: float, high: float) -> None:
    """Raises InvalidValue unless the value is absent or within [low, high]."""
    if value is not None and not low <= value <= high:
        raise InvalidValue(f"{name} must be between {low} and {high}", param=name)


def model_name(request: GenerationFields) -> str:
    """Gives the model's name, empty where there is none. Every chunk of the answer repeats it, so its length is bounded."""
    name = request.model or ""
    if len(name) > MAX_MODEL_CHARACTERS:
        raise InvalidValue(f"model must have at most {MAX_MODEL_CHARACTERS} characters", param="model")
    return name


def sampling(request: GenerationFields, *, max_tokens: int | None) -> Sampling:
    """Gives the sampling parameters. Raises InvalidValue naming the first that is out of range."""
    for name, low, high in RANGES:
        check_range(name, getattr(request, name), low=low, high=high)
    _check_above_zero("top_p", request.top_p, high=1)
    _check_above_zero("repetition_penalty", request.repetition_penalty, high=None)
    if max_tokens is not None and request.min_tokens is not None and request.min_tokens > max_tokens:
        raise InvalidValue("min_tokens must not be above max_tokens", param="min_tokens")
    top_k = request.top_k
    return Sampling(
        temperature=_or_unset(request.temperature),
        top_p=_or_unset(request.top_p),
        top_k=UNSET if top_k is None else top_k or -1,  # vLLM's 0 and SGLang's -1 both mean off
        min_p=_or_unset(request.min_p),
        frequency_penalty=_or_unset(request.frequency_penalty),
        presence_penalty=_or_unset(request.presence_penalty),
        repetition_penalty=_or_unset(request.repetition_penalty),
        seed=UNSET if request.seed is None else request.seed,
        logit_bias=_logit_bias(request.logit_bias),
        max_tokens=UNSET if max_tokens is None else max_tokens,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        n=request.n or 1,
    )


def stops(request: GenerationFields) -> Stops:
    """Gives the stop conditions; a single string becomes a list of one."""
    strings = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(strings) > MAX_STOPS:
        raise InvalidValue(f"stop may have at most {MAX_STOPS} entries, not {len(strings)}", param="stop")
    if "" in strings:
        raise InvalidValue("stop must not hold an empty string", param="stop")
    if sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise InvalidValue(f"stop may have at most {MAX_STOP_CHARACTERS} characters in all", param="stop")
    ids = request.stop_token_ids or []
    if len(ids) > MAX_STOP_IDS:
        raise InvalidValue(f"stop_token_ids may have at most {MAX_STOP_IDS} entries", param="stop_token_ids")
    if any(not 0 <= token_id <= MAX_TOKENS for token_id in ids):
        raise InvalidValue("stop_token_ids must be token ids, 0 or above", param="stop_token_ids")
    include = bool(request.include_stop_str_in_output or request.no_stop_trim)
    return Stops(strings=tuple(strings), token_ids=tuple(ids), include_in_output=include)


def routing(http: Request, *, user: str | None, priority: int) -> Routing:
    """Gives what headers and body say about where the request should go."""
    headers = http.headers
    return Routing(target_worker=headers.get(TARGET_HEADER), key=headers.get("x-smg-routing-key"), user=user, priority=priority)


def job_id(rid: str | None, request_id: str | None, *, http: Request, answer: str) -> str:
    """Gives the id under which an engine knows the request. Unique whatever clients send, or one client could abort another's request."""
    asked = rid or request_id
    if asked and (len(asked) > MAX_ID_CHARACTERS or not asked.isprintable()):
        name = "rid" if rid else "request_id"
        raise InvalidValue(f"{name} must have at most {MAX_ID_CHARACTERS} printable characters", param=name)
    if not asked and http.own_id:
        return answer
    return f"{asked or http.request_id}-{answer}"


def deadline(http: Request, *, timeout_s: float) -> float:
    """Gives the moment by which the answer must be whole, on the clock of `time.monotonic`."""
    return (http.received_s or time.monotonic()) + timeout_s


def _or_unset(value: float | None) -> float | UnsetType:
    return UNSET if value is None else value


def _check_above_zero(name: str, value: float | None, *, high: float | None) -> None:
    if value is None or (value > 0 and (high is None or value <= high)):
        return
    raise InvalidValue(f"{name} must be above 0" + ("" if high is None else f" and at most {high}"), param=name)


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    if not bias:
        return {}
    if len(bias) > MAX_BIASES:
        raise InvalidValue(f"logit_bias may have at most {MAX_BIASES} entries", param="logit_bias")
    wrong = next((key for key in bias if not (key.isascii() and key.isdecimal() and int(key) <= MAX_TOKENS)), None)
    if wrong is not None:
        raise InvalidValue(f"logit_bias has the key {wrong[:40]!r}, which is not a token id", param="logit_bias")
    if not all(-100 <= value <= 100 for value in bias.values()):
        raise InvalidValue("logit_bias values must be between -100 and 100", param="logit_bias")
    return {int(key): value for key, value in bias.items()}
