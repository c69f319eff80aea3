"""Forced tool calls: what the engine is held to, and that its output becomes calls."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from smg.config import Config
from smg.errors import InvalidValue, UnsupportedParameter
from smg.pipeline.forced import forced_call, take_tags
from smg.sim.protocol import sglang, vllm
from smg.types.event import Event, ToolCall
from smg.types.job import ChatInput, Constraint
from smg.types.json import JsonObject
from smg.worker import EngineState
from tests.parser.writers import TOOL_WRITERS
from tests.pipeline.fleet import calls_of, chat, collect, finish_of, fleet, text_of, thoughts_of

TAGGED = ("openai", "inkling", "kimik2", "mistral")
# Gives the requests that the simulated engines have received so far.
Received = Callable[[], list[Any]]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Received:
    """What arrives at the simulators, whichever way it was written."""
    seen: list[Any] = []

    def noting(read: Any) -> Any:
        return lambda self, request: (seen.append(request), read(self, request))[1]

    for servicer in (sglang.Servicer, vllm.Servicer):
        monkeypatch.setattr(servicer, "submission", noting(servicer.submission))
    return lambda: seen


def family(name: str) -> Config:
    """A configuration whose model is of that tool family."""
    return replace(Config(), model=replace(Config().model, tool_call_parser=name))


def tool(name: str, schema: "JsonObject | None" = None) -> JsonObject:
    """A tool in OpenAI's form."""
    return {
        "type": "function",
        "function": {"name": name, "parameters": schema or {"type": "object", "properties": {"city": {"type": "string"}}}},
    }


def asked(choice: str, *tools: JsonObject, parallel: bool = True) -> ChatInput:
    """A chat with that tool choice."""
    return ChatInput(messages=({"role": "user", "content": "weather?"},), tools=tools, tool_choice=choice, parallel_tool_calls=parallel)


def test_a_free_choice_forces_nothing() -> None:
    assert forced_call(asked("auto", tool("a")), tool_parser="qwen") is None
    assert forced_call(asked("none", tool("a")), tool_parser="qwen") is None
    assert forced_call(asked("required", tool("a")), tool_parser="openai") is None  # Harmony keeps its channels


def test_required_is_a_list_of_calls() -> None:
    forced = forced_call(asked("required", tool("a"), tool("b"), parallel=False), tool_parser="qwen")
    assert forced is not None
    schema = json.loads(forced.constraint.value)
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    assert [item["properties"]["name"]["enum"] for item in schema["items"]["anyOf"]] == [["a"], ["b"]]
    assert (forced.tool, forced.named) == ("json", None)


def test_definitions_live_at_the_root_and_may_not_differ() -> None:
    def using(definition: JsonObject) -> JsonObject:
        return {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": definition}}

    forced = forced_call(asked("required", tool("a", using({"type": "string"})), tool("b", using({"type": "string"}))), tool_parser=None)
    assert forced is not None
    assert json.loads(forced.constraint.value)["$defs"] == {"x": {"type": "string"}}
    with pytest.raises(InvalidValue, match="different"):
        forced_call(asked("required", tool("a", using({"type": "string"})), tool("b", using({"type": "null"}))), tool_parser=None)


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm", "tokenspeed"])
@pytest.mark.parametrize(
    ("choice", "output", "calls"),
    [
        (
            "required",
            '[{"name": "a", "parameters": {"city": "Rome"}}, {"name":"b","parameters":{}}]',
            [("a", '{"city": "Rome"}'), ("b", "{}")],
        ),
        ("a", '{"city": "Rome"}', [("a", '{"city": "Rome"}')]),
        ("required", "no call at all", []),
    ],
)
def test_the_output_becomes_calls(protocol: str, choice: str, output: str, calls: list[tuple[str, str]]) -> None:
    async def run() -> None:
        async with fleet(protocol, output="text", text=output) as engines:
            events = await collect(engines, chat(input=asked(choice, tool("a"), tool("b"))))
            assert calls_of(events) == calls
            assert text_of(events) == ("" if calls else output)
            assert finish_of(events).reason == ("tool_calls" if calls else "stop")

    asyncio.run(run())


def test_the_engine_gets_the_constraint(received: Received) -> None:
    async def run() -> None:
        async with fleet("sglang") as engines:
            await collect(engines, chat(input=asked("a", tool("a"))))

    asyncio.run(run())
    params = received()[0].sampling_params
    assert params.WhichOneof("constraint") == "json_schema"
    assert json.loads(params.json_schema)["properties"] == {"city": {"type": "string"}}


def test_tags_are_for_engines_that_all_take_them() -> None:
    assert take_tags(["vllm", "sglang", "vllm"])
    assert not take_tags(["vllm", "mlx"])
    assert not take_tags(["trtllm"])
    assert not take_tags(["tokenspeed"])


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("choice", ["required", "a"])
def test_families_with_tags_keep_their_format_where_engines_take_tags(name: str, choice: str) -> None:
    forced = forced_call(asked(choice, tool("a"), tool("b")), tool_parser=name, tags=True)
    assert forced is not None
    assert (forced.constraint.kind, forced.constraint.param, forced.tool, forced.named) == ("structural_tag", "tool_choice", name, None)

    free = forced_call(asked(choice, tool("a"), tool("b")), tool_parser=name)
    if name in ("openai", "inkling"):
        assert free is None
    else:
        assert free is not None
        assert free.constraint.kind == "json_schema"


def test_one_call_where_calls_may_not_be_parallel() -> None:
    def told(**how: Any) -> Constraint:
        forced = forced_call(asked("required", tool("a"), **how), tool_parser="kimik2", tags=True)
        assert forced is not None
        return forced.constraint

    assert '"stop_after_first": true' in told(parallel=False).value
    assert '"stop_after_first": true' not in told().value


def test_other_families_are_held_to_a_schema_by_engines_that_take_tags() -> None:
    for name in ("qwen", None):
        forced = forced_call(asked("required", tool("a")), tool_parser=name, tags=True)
        assert forced is not None
        assert (forced.constraint.kind, forced.tool) == ("json_schema", "json")


def test_tools_that_define_one_name_differently_have_tags_of_their_own() -> None:
    def using(kind: str) -> JsonObject:
        return {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": kind}}}

    assert forced_call(asked("required", tool("a", using("string")), tool("b", using("null"))), tool_parser="kimik2", tags=True)


@pytest.mark.parametrize(("protocol", "data_plane"), [("vllm", "native"), ("sglang", "aio")])
@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("choice", ["required", "a"])
def test_calls_come_out_of_the_familys_own_format(name: str, protocol: str, data_plane: Any, choice: str, received: Received) -> None:
    made: list[tuple[str, dict[str, object]]] = [("a", {"city": "Rome"})]
    if choice == "required" and name != "openai":
        made.append(("b", {}))
    config = replace(family(name), engines=replace(Config().engines, data_plane=data_plane))

    async def run() -> list[Event]:
        async with fleet(protocol, config=config, output="text", text=TOOL_WRITERS[name].write(made)) as engines:
            return await collect(engines, chat(input=asked(choice, tool("a"), tool("b")), max_tokens=500))

    events = asyncio.run(run())
    assert calls_of(events) == [(called, json.dumps(arguments)) for called, arguments in made]
    heads = [event for event in events if isinstance(event, ToolCall)]
    assert [head.index for head in heads] == list(range(len(made)))
    assert len({head.id for head in heads}) == len(made)
    if name == "kimik2":
        assert heads[0].id == "functions.a:0"
    assert (text_of(events), finish_of(events).reason) == ("", "tool_calls")
    (request,) = received()
    params = request.sampling_params
    assert params.WhichOneof("constraint") == "structural_tag"
    assert json.loads(params.structural_tag)["type"] == "structural_tag"


@pytest.mark.parametrize("thought", ["hm</think>", "hm", ""])
def test_tags_wait_for_the_end_of_thinking(thought: str, tmp_path: Path, received: Received) -> None:
    """Kimi's section ends a thought by itself; an engine without a reasoning parser of its own binds the model from its first token."""
    template = tmp_path / "thinking.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}<think>")
    config = family("kimik2")
    config = replace(config, model=replace(config.model, chat_template=str(template), reasoning_parser="kimi_k25"))
    text = thought + TOOL_WRITERS["kimik2"].write([("a", {"city": "Rome"})])

    async def run() -> list[Event]:
        async with fleet("sglang", config=config, output="text", text=text) as engines:
            return await collect(engines, chat(input=asked("required", tool("a")), max_tokens=500))

    events = asyncio.run(run())
    assert (thoughts_of(events), text_of(events)) == (thought.removesuffix("</think>"), "")
    assert calls_of(events) == [("a", '{"city": "Rome"}')]
    (request,) = received()
    assert request.require_reasoning
    assert request.sampling_params.WhichOneof("constraint") == "structural_tag"


@pytest.mark.parametrize(("name", "kind"), [("kimik2", "json_schema"), ("mistral", "json_schema"), ("openai", None), ("inkling", None)])
def test_one_engine_that_takes_no_tags_decides_for_all(name: str, kind: "str | None", received: Received) -> None:
    async def run() -> None:
        async with fleet("sglang", "mlx", config=family(name)) as engines:
            engines.view.shm.set_engine_state(1, EngineState.NOT_READY)  # it takes no request now, but it may
            await collect(engines, chat(input=asked("required", tool("a"))))

    asyncio.run(run())
    assert [request.sampling_params.WhichOneof("constraint") for request in received()] == [kind]


@pytest.mark.parametrize(("name", "kind"), [("kimik2", "json_schema"), ("openai", None)])
def test_tags_can_be_switched_off(name: str, kind: "str | None", received: Received) -> None:
    """Other grammar backends than xgrammar answer 400 to them."""
    config = family(name)

    async def run() -> None:
        async with fleet("sglang", config=replace(config, model=replace(config.model, structural_tags=False))) as engines:
            await collect(engines, chat(input=asked("required", tool("a"))))

    asyncio.run(run())
    assert [request.sampling_params.WhichOneof("constraint") for request in received()] == [kind]


def test_an_engine_without_constraints_refuses_by_the_clients_word() -> None:
    async def run() -> None:
        async with fleet("mlx") as engines:
            with pytest.raises(UnsupportedParameter, match="mlx engine does not support tool_choice") as caught:
                await collect(engines, chat(input=asked("required", tool("a"))))
            assert caught.value.param == "tool_choice"

    asyncio.run(run())
