"""`POST /v1/chat/completions`: body → Job → pipeline → chunks or one answer."""

import asyncio
from contextlib import aclosing
from functools import partial
from typing import cast

import msgspec

from smg.api.base import Reply, Request, Services, StreamReply, Write
from smg.api.decode import check_depth, decode, parsed
from smg.api.openai.answer import answer_id, open_head, wants_usage
from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_switches import Switches
from smg.api.openai.chat_whole import ChatWhole
from smg.api.openai.constraints import constraint
from smg.api.openai.fields import MAX_TOKENS, check_range, deadline, job_id, model_name, routing, sampling, stops
from smg.api.openai.messages import checked_messages
from smg.api.openai.refusals import refuse_unbuilt
from smg.api.openai.tools import MODES, checked_tools, chosen_tools, legacy_tools
from smg.errors import InvalidValue, Unimplemented
from smg.types.job import ChatInput, Job, Logprobs
from smg.types.json import JsonObject
from smg.types.openai.chat import ChatRequest

__all__ = ["chat_completions", "parse", "template_kwargs", "to_job"]

DECODER = msgspec.json.Decoder(ChatRequest)

MAX_EFFORT_CHARACTERS = 32


async def chat_completions(http: Request, services: Services) -> Reply | StreamReply:
    """Answers one request."""
    answer = answer_id(http, "chatcmpl-")
    timeout_s = services.config.server.request_timeout_s

    def read(body: bytes) -> tuple[ChatRequest, Job]:
        request = parse(body)
        return request, to_job(request, http, answer=answer, timeout_s=timeout_s)

    request, job = await parsed(await http.body(), read)
    usage = wants_usage(request)
    head = open_head(request, services, answer=answer, kind="chat.completion.chunk" if request.stream else "chat.completion")
    switches = Switches(
        choices=job.sampling.n,
        usage=usage,
        logprobs=job.logprobs.output is not None,
        reasoning=request.include_reasoning is not False,
        named_choice=cast(ChatInput, job.input).tool_choice not in MODES,
        legacy=request.functions is not None,
    )
    if request.stream:
        return StreamReply(pump=partial(_stream, job, services, ChatStream(head, switches)), surface="openai")
    whole = ChatWhole(head, switches)
    async with aclosing(services.pipeline.run(job)) as batches:  # type: ignore[type-var]
        async for events in batches:
            whole.feed(events)
    return Reply(body=await asyncio.to_thread(whole.body) if whole.is_large else whole.body())


async def _stream(job: Job, services: Services, stream: ChatStream, write: Write) -> None:
    await services.pipeline.stream(job, renderer=stream, write=write)
    write(stream.end())


def parse(body: bytes) -> ChatRequest:
    """Gives the typed request. Raises InvalidJson, InvalidValue; what needs a look at values is checked by `to_job`."""
    request = decode(body, DECODER)
    check_depth([request.messages, request.tools, request.documents, request.chat_template_kwargs], body=body, at="the body")
    return request


def to_job(request: ChatRequest, http: Request, *, answer: str, timeout_s: float) -> Job:
    """Gives the neutral job. Raises InvalidValue naming the parameter, Unimplemented for what SMG does not do."""
    refuse_unbuilt(request)
    if request.echo:
        raise Unimplemented("echo is not supported on chat completions", param="echo")
    if request.modalities is not None and request.modalities != ["text"]:
        raise Unimplemented("modalities other than text are not supported", param="modalities")
    max_tokens = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    check_range("max_completion_tokens", request.max_completion_tokens, low=1, high=MAX_TOKENS)
    check_range("max_tokens", request.max_tokens, low=1, high=MAX_TOKENS)
    return Job(
        request_id=job_id(request, http, answer),
        surface="openai.chat",
        model=model_name(request),
        input=_input(request),
        sampling=sampling(request, max_tokens=max_tokens),
        stops=stops(request),
        logprobs=_logprobs(request),
        constraint=constraint(request),
        routing=routing(request, http),
        skip_special_tokens=request.skip_special_tokens is not False,
        spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
        stream=bool(request.stream),
        deadline_s=deadline(http, timeout_s=timeout_s),
    )


def template_kwargs(given: dict[str, object] | None, effort: str | None) -> JsonObject:
    """Gives the template's variables: the client's own, then reasoning_effort, which the template room understands."""
    kwargs = dict(given or {})
    if effort is not None:
        if not effort or len(effort) > MAX_EFFORT_CHARACTERS:
            raise InvalidValue("reasoning_effort must be a level such as low, medium or high", param="reasoning_effort")
        kwargs.setdefault("reasoning_effort", effort)
    return cast(JsonObject, kwargs)


def _input(request: ChatRequest) -> ChatInput:
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidValue("continue_final_message and add_generation_prompt cannot both be true", param="continue_final_message")
    tools, choice = _tools(request)
    return ChatInput(
        messages=checked_messages(request.messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False and request.functions is None,
        documents=cast(tuple[JsonObject, ...], tuple(request.documents or ())),
        template_kwargs=template_kwargs(request.chat_template_kwargs, request.reasoning_effort),
        chat_template=request.chat_template,
        add_generation_prompt=request.add_generation_prompt is not False and not request.continue_final_message,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
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
