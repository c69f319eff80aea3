"""`x-smg-validate: true`: the finished output is held against the schemas that the request named, and a mismatch is an error, not silence.

Checked are the text of a choice without calls against `response_format` (`json_object`, or a schema by any of its names), and the arguments
of calls of `strict` tools. Made and fed by the handlers of chat and completions, one a request.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from copy import copy

import msgspec

from smg.api.decode import no_json
from smg.api.openai.schema_check import SchemaCheck
from smg.errors import InvalidValue, OutputInvalid, SmgError
from smg.types.event import Content, Event, Finished, FinishReason, ToolArguments, ToolCall
from smg.types.job import ChatInput, Constraint, Job
from smg.types.json import JsonObject

__all__ = ["HEADER", "OutputCheck", "output_check"]

HEADER = "x-smg-validate"
WORDS = {"true": True, "1": True, "false": False, "0": False, "": False}
# Schemas and checks above this leave the event loop: characters, and places of the schema times values of the output.
INLINE_CHARACTERS = 4096
INLINE_WORK = 5_000

OBJECT = msgspec.json.Decoder(dict[str, object])


async def output_check(job: Job, *, asked: str | None) -> "OutputCheck | None":
    """Gives the check that the header's value `asked` asks for; None when it asks for none, or the request named no schema.

    Raises InvalidValue for another value, and for a schema that is none or that cannot be checked within bounds.
    """
    wanted = WORDS.get((asked or "").strip().lower())
    if wanted is None:
        raise InvalidValue(f"the header {HEADER} must be true or false")
    if not wanted:
        return None
    tools = job.input.tools if isinstance(job.input, ChatInput) else ()
    strict = [function for tool in tools if isinstance(function := tool.get("function"), dict) and function.get("strict") is True]
    text = job.constraint if job.constraint is not None and job.constraint.kind in ("json_object", "json_schema") else None
    if not strict and text is None:
        return None
    size = len(text.value if text else "") + sum(len(msgspec.json.encode(function)) for function in strict)
    if size <= INLINE_CHARACTERS:
        return OutputCheck(text=text, strict=strict)
    return await asyncio.to_thread(OutputCheck, text=text, strict=strict)


class OutputCheck:
    """Collects what each choice says, and checks it when the choice ends."""

    def __init__(self, *, text: Constraint | None, strict: Sequence[JsonObject]) -> None:
        self._object = text is not None
        self._schema = None
        if text is not None and text.kind == "json_schema":
            param = text.param or "response_format"
            self._schema = SchemaCheck(_decoded(text.value, param), param=param)
        self._tools: dict[str, SchemaCheck] = {}
        for function in strict:
            name, schema = function.get("name"), function.get("parameters")
            if isinstance(name, str):
                self._tools[name] = SchemaCheck(schema if isinstance(schema, dict) else {"type": "object"}, param=f"tools ({name})")
        self._choices: dict[int, _Said] = {}

    def again(self) -> "OutputCheck":
        """Gives a check of the same schemas that has heard nothing yet, for another job of the same request."""
        made = copy(self)
        made._choices = {}
        return made

    async def watch(self, batches: AsyncIterator[list[Event]]) -> AsyncGenerator[list[Event], None]:
        """Yields a job's events as they come. Raises OutputInvalid in place of the end of a choice whose output does not fit."""
        async with aclosing(batches):  # type: ignore[type-var]
            async for events in batches:
                shown, error = await self.take(events)
                if shown:
                    yield shown
                if error is not None:
                    raise error

    async def take(self, events: Sequence[Event]) -> tuple[list[Event], SmgError | None]:
        """Gives the events that may be shown, and the error that ends the answer.

        That is all of them and None, unless a choice ends badly: then those before its end.
        """
        for at, event in enumerate(events):
            if isinstance(event, Finished):
                fault = await self._ended(event)
                if fault is not None:
                    return list(events[:at]), OutputInvalid(fault)
            elif isinstance(event, Content | ToolCall | ToolArguments):
                self._choices.setdefault(event.choice, _Said()).take(event)
        return list(events), None

    async def _ended(self, event: Finished) -> str | None:
        said = self._choices.pop(event.choice, None) or _Said()
        if event.reason == "abort":
            return None
        fault = self.check(said.text, said.calls) if self._is_small(said) else await asyncio.to_thread(self.check, said.text, said.calls)
        return fault and f"{fault}{CUT.get(event.reason, '')}"

    def check(self, text: str, calls: Sequence[tuple[str, str]]) -> str | None:
        """Gives what is wrong with a finished output: its text, and its calls as names and arguments. None when nothing is."""
        for name, arguments in calls:
            schema = self._tools.get(name)
            fault = schema.fault(arguments) if schema else None
            if fault:
                return f"the arguments of {name} do not fit the tool's schema: {fault}"
        if calls or not self._object:
            return None
        fault = self._schema.fault(text) if self._schema else _no_object(text)
        return fault and f"the output does not fit the response format: {fault}"

    def _is_small(self, said: "_Said") -> bool:
        work = self._schema.work(said.text) if self._schema and not said.calls else 0
        work += sum(self._tools[name].work(arguments) for name, arguments in said.calls if name in self._tools)
        return work <= INLINE_WORK and len(said.text) <= INLINE_CHARACTERS


CUT: dict[FinishReason, str] = {"length": " (it was cut off at the limit of its length)"}


class _Said:
    """What one choice has said."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []

    def take(self, event: Content | ToolCall | ToolArguments) -> None:
        match event:
            case Content(text=text):
                self._text.append(text)
            case ToolCall(name=name):
                self._calls.append((name, []))
            case ToolArguments(index=index, text=text):
                self._calls[index][1].append(text)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [(name, "".join(parts)) for name, parts in self._calls]


def _decoded(value: str, param: str) -> JsonObject:
    try:
        schema: JsonObject = msgspec.json.decode(value, type=dict)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidValue(f"{param} must be a JSON schema", param=param) from error
    return schema


def _no_object(text: str) -> str | None:
    try:
        OBJECT.decode(text)
    except msgspec.ValidationError:
        return "it is no JSON object"
    except msgspec.DecodeError as error:
        return no_json(error)
    except RecursionError:
        return "it is nested too deeply"
    return None
