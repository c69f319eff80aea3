"""Forced tool calls: what the engine is held to, and that its output becomes calls."""

import asyncio
import json

import pytest

from smg.engine.sglang import SglangEngine
from smg.errors import InvalidValue, UnsupportedParameter
from smg.pipeline.forced import forced_call
from smg.types.job import ChatInput
from smg.types.json import JsonObject
from tests.pipeline.fleet import calls_of, chat, collect, finish_of, fleet, text_of


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


def test_the_engine_gets_the_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    encode = SglangEngine.encode
    monkeypatch.setattr(SglangEngine, "encode", lambda self, request: sent.append(request) or encode(self, request))

    async def run() -> None:
        async with fleet("sglang") as engines:
            await collect(engines, chat(input=asked("a", tool("a"))))

    asyncio.run(run())
    assert json.loads(encode(SglangEngine("grpc://x:1"), sent[0]).sampling_params.json_schema)["properties"] == {"city": {"type": "string"}}


def test_an_engine_without_constraints_refuses_by_the_clients_word() -> None:
    async def run() -> None:
        async with fleet("mlx") as engines:
            with pytest.raises(UnsupportedParameter, match="mlx engine does not support tool_choice") as caught:
                await collect(engines, chat(input=asked("required", tool("a"))))
            assert caught.value.param == "tool_choice"

    asyncio.run(run())
