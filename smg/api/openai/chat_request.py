"""The body of a chat completion → what was asked, as a `Job`. Called by chat.py.

A client's requests differ in their messages; the rest (model, parameters, tools) it sends again each time. That rest is checked once and
remembered by its bytes: the checks of some sixty fields would cost more than all other work on a short request.
"""

from typing import cast

import msgspec
from msgspec import Struct, structs

from smg.api.base import Request
from smg.api.decode import check_depth, decode
from smg.api.openai.answer import wants_usage
from smg.api.openai.chat_switches import Switches
from smg.api.openai.constraints import constraint
from smg.api.openai.division import Names, divided
from smg.api.openai.fields import MAX_TOKENS, check_range, deadline, job_id, model_name, routing, sampling, stops
from smg.api.openai.messages import checked_messages
from smg.api.openai.refusals import refuse_unbuilt
from smg.api.openai.tools import MODES, checked_tools, chosen_tools, legacy_tools
from smg.errors import InvalidValue, Unimplemented
from smg.pipeline.repeats import Repeats
from smg.tokenizer import content_key
from smg.types.job import ChatInput, Content, Job, Logprobs, Routing
from smg.types.json import JsonObject
from smg.types.openai.chat import ChatRequest
from smg.types.openai.tokenize import TokenizeRequest

__all__ = ["ChatReader", "Settings", "parse", "settings_of", "template_input", "to_job"]

DECODER = msgspec.json.Decoder(ChatRequest)

MAX_EFFORT_CHARACTERS = 32
ONLY_OBJECTS = {dict}
# Shorter messages are read again as soon as they are found.
REPEATED_BYTES = 1024
# Bytes of remembered settings: in all, and of one client's. As objects they take up to twenty times that.
REMEMBERED_BYTES = 1 << 21
LONGEST_BYTES = 1 << 18
# Messages as objects take up to this many times their bytes; mostly it is text, and twice.
OBJECT_FACTOR = 4


class Settings(Struct, frozen=True, kw_only=True):
    """All of a checked request but its messages and who asks. Shared between requests, so nobody may change what it holds."""

    job: Job  # without id, messages, and what headers say
    switches: Switches
    template: bytes  # stands for what the template is told besides the messages


class ChatReader:
    """Reads bodies; used from any thread. `hits` and `misses` count how often the settings were known.

    `repeat_bytes`: bound of what is kept of messages that come again, 0 = nothing.
    """

    def __init__(self, *, repeat_bytes: int = 0) -> None:
        self._known: dict[bytes, Settings] = {}
        self._bytes = 0
        self._repeats: Repeats[tuple[bytes, tuple[JsonObject, ...]]] | None = Repeats(limit_bytes=repeat_bytes) if repeat_bytes else None
        self.hits = 0
        self.misses = 0

    def read(self, body: bytes, http: Request, *, answer: str, timeout_s: float) -> tuple[Settings, Job]:
        """Gives settings and job. Raises InvalidJson, InvalidValue naming the parameter, Unimplemented for what SMG does not do."""
        parts = divided(body)
        settings = self._known.get(parts.rest) if parts else None
        raw, messages = self._messages(parts.messages, body) if parts and settings else (parts.messages if parts else b"", None)
        if parts is None or settings is None or messages is None:
            self.misses += 1
            request = parse(body)
            settings = settings_of(request)
            if parts:
                self._remember(parts.rest, settings)
            names = Names(request.user, request.rid, request.request_id)
            messages = checked_messages(request.messages)
        else:
            self.hits += 1
            names = parts.names
        content = (settings.template, raw) if raw and settings.template else None
        job = to_job(settings, http, messages=messages, names=names, content=content, answer=answer, timeout_s=timeout_s)
        return settings, job

    def _messages(self, data: bytes, body: bytes) -> tuple[bytes, tuple[JsonObject, ...] | None]:
        """Reads and checks messages, unless they came before; None for what only the typed decoder can judge.

        Gives the bytes too: those that are kept, so that whoever compares them sees at once that they are the same.
        """
        repeats = self._repeats if len(data) >= REPEATED_BYTES else None
        place, known = repeats.find(data) if repeats else (None, None)
        if known is not None:
            return known
        try:
            messages = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return data, None
        if type(messages) is not list or {*map(type, messages)} != ONLY_OBJECTS:
            return data, None
        checked = checked_messages(messages, body=body)
        if repeats and place:
            repeats.keep(place, data, (data, checked), size=OBJECT_FACTOR * len(data))
        return data, checked

    def _remember(self, key: bytes, settings: Settings) -> None:
        """Keeps the settings; what is over the bound makes room for all that comes. Dicts are safe to share between threads."""
        if not 0 < len(key) <= LONGEST_BYTES:
            return
        self._bytes += len(key)
        if self._bytes > REMEMBERED_BYTES:
            self._known = {}
            self._bytes = len(key)
        self._known[key] = settings


def parse(body: bytes) -> ChatRequest:
    """Gives the typed request. Raises InvalidJson, InvalidValue; what needs a look at values is checked by `settings_of`."""
    request = decode(body, DECODER)
    check_depth([request.messages, request.tools, request.documents, request.chat_template_kwargs], body=body, at="the body")
    return request


def settings_of(request: ChatRequest) -> Settings:
    """Checks all but the messages. Raises InvalidValue naming the parameter, Unimplemented for what SMG does not do."""
    refuse_unbuilt(request)
    if request.echo:
        raise Unimplemented("echo is not supported on chat completions", param="echo")
    if request.modalities is not None and request.modalities != ["text"]:
        raise Unimplemented("modalities other than text are not supported", param="modalities")
    max_tokens = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    check_range("max_completion_tokens", request.max_completion_tokens, low=1, high=MAX_TOKENS)
    check_range("max_tokens", request.max_tokens, low=1, high=MAX_TOKENS)
    chat, asked, logprobs = _chat(request), sampling(request, max_tokens=max_tokens), _logprobs(request)
    job = Job(
        request_id="",
        surface="openai.chat",
        model=model_name(request),
        input=chat,
        sampling=asked,
        stops=stops(request),
        logprobs=logprobs,
        constraint=constraint(request),
        routing=Routing(priority=request.priority or 0),
        skip_special_tokens=request.skip_special_tokens is not False,
        spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
        stream=bool(request.stream),
    )
    switches = Switches(
        choices=asked.n,
        usage=wants_usage(request),
        logprobs=logprobs.output is not None,
        reasoning=request.include_reasoning is not False,
        named_choice=chat.tool_choice not in MODES,
        legacy=request.functions is not None,
    )
    return Settings(job=job, switches=switches, template=_template_key(chat))


def _template_key(chat: ChatInput) -> bytes:
    try:
        return content_key(chat)
    except (OverflowError, UnicodeEncodeError, TypeError):  # large numbers and half characters
        return b""


def to_job(
    settings: Settings,
    http: Request,
    *,
    messages: tuple[JsonObject, ...],
    names: Names,
    content: Content | None,
    answer: str,
    timeout_s: float,
) -> Job:
    """Gives the neutral job. Raises InvalidValue for names that are not valid."""
    known = settings.job
    assert isinstance(known.input, ChatInput)
    return structs.replace(
        known,
        request_id=job_id(names.rid, names.request_id, http=http, answer=answer),
        input=structs.replace(known.input, messages=messages),
        routing=routing(http, user=names.user, priority=known.routing.priority),
        deadline_s=deadline(http, timeout_s=timeout_s),
        content=content,
    )


def template_input(request: ChatRequest | TokenizeRequest) -> ChatInput:
    """Gives what a request says to the chat template, besides messages and tools. Raises InvalidValue for what cannot go together."""
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidValue("continue_final_message and add_generation_prompt cannot both be true", param="continue_final_message")
    return ChatInput(
        messages=(),
        documents=cast(tuple[JsonObject, ...], tuple(request.documents or ())),
        template_kwargs=_template_kwargs(request.chat_template_kwargs, request.reasoning_effort),
        chat_template=request.chat_template,
        add_generation_prompt=request.add_generation_prompt is not False and not request.continue_final_message,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
    )


def _template_kwargs(given: dict[str, object] | None, effort: str | None) -> JsonObject:
    """Gives the template's variables: the client's own, then reasoning_effort, which the template room understands."""
    kwargs = dict(given or {})
    if effort is not None:
        if not effort or len(effort) > MAX_EFFORT_CHARACTERS:
            raise InvalidValue("reasoning_effort must be a level such as low, medium or high", param="reasoning_effort")
        kwargs.setdefault("reasoning_effort", effort)
    return cast(JsonObject, kwargs)


def _chat(request: ChatRequest) -> ChatInput:
    source = template_input(request)
    tools, choice = _tools(request)
    return structs.replace(
        source,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False and request.functions is None,
        separate_reasoning=request.separate_reasoning is not False,
        stream_reasoning=request.stream_reasoning is not False,
    )


def _tools(request: ChatRequest) -> tuple[tuple[JsonObject, ...], str]:
    if request.functions is None and request.function_call is None:
        return chosen_tools(checked_tools(request.tools), request.tool_choice)
    if request.tools or request.tool_choice is not None:
        raise InvalidValue("functions and function_call cannot be given together with tools and tool_choice", param="functions")
    return legacy_tools(request.functions, request.function_call)


def _logprobs(request: ChatRequest) -> Logprobs:
    check_range("top_logprobs", request.top_logprobs, low=0, high=20)
    if request.top_logprobs and not request.logprobs:
        raise InvalidValue("top_logprobs needs logprobs to be true", param="top_logprobs")
    return Logprobs(output=request.top_logprobs or 0) if request.logprobs else Logprobs()
