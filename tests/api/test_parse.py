"""`/parse/function_call` and `/parse/reasoning`: shapes and errors as the original 1.13.0 gave them when it was asked."""

import asyncio
import threading

import msgspec
import pytest

import smg.api.parse as module
from smg.api.errors import error_reply
from smg.api.parse import parse_function_call, parse_reasoning
from smg.api.routes import RouteTable
from smg.errors import InvalidJson, InvalidValue
from smg.parser import REASONING, TOOLS
from tests.api.fake import answer, call, request, services

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"z": {"type": "string"}}}}}
HERMES = 'hi <tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call> bye'


def asked(text, parser, tools=None):
    body = {"text": text, "tool_call_parser": parser} | ({} if tools is None else {"tools": tools})
    return answer(parse_function_call, body)


@pytest.mark.parametrize("tools", [None, [], [TOOL]])
@pytest.mark.parametrize("parser", ["qwen", "hermes"])
def test_calls(parser, tools):
    found = asked(HERMES, parser, tools)
    assert found.pop("tool_calls")[0].items() >= {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}.items()
    assert found == {"remaining_text": "hi  bye", "success": True}


def test_values_are_typed_by_the_tools_that_are_given():
    text = "<tool_call><function=f><parameter=z>03106</parameter></function></tool_call>"
    assert asked(text, "qwen_xml", [TOOL])["tool_calls"][0]["function"]["arguments"] == '{"z": "03106"}'


def test_without_tools_every_name_is_one_also_where_no_mark_says_so():
    text = '{"name":"anything","arguments":{"a":1}}'
    assert asked(text, "json")["tool_calls"][0]["function"] == {"name": "anything", "arguments": '{"a":1}'}
    assert asked(text, "json", [TOOL]) == {"remaining_text": text, "tool_calls": [], "success": True}


def test_text_without_calls():
    assert asked("hi", "qwen", []) == {"remaining_text": "hi", "tool_calls": [], "success": True}
    assert asked("", "qwen", []) == {"remaining_text": "", "tool_calls": [], "success": True}
    assert asked(HERMES, "passthrough") == {"remaining_text": HERMES, "tool_calls": [], "success": True}


def test_thoughts_stay_where_they_are_when_calls_are_asked_for():
    assert asked("<think>a</think>b", "minimax_m1")["remaining_text"] == "<think>a</think>b"


@pytest.mark.parametrize(
    ("text", "parser", "more", "thought", "shown"),
    [
        ("<think>a</think>b", "qwen3", {}, "a", "b"),
        ("a</think>b", "deepseek_r1", {}, "a", "b"),
        ("a</think>b", "qwen3", {}, "a", "b"),
        ("a", "deepseek_r1", {}, "a", ""),
        ("a", "qwen3", {}, "", "a"),
        ("a", "qwen3", {"in_reasoning": True}, "a", ""),
        ("a", "deepseek_r1", {"in_reasoning": False}, "", "a"),
        ("a", "passthrough", {}, "", "a"),
        ("", "qwen3", {}, "", ""),
    ],
)
def test_thoughts(text, parser, more, thought, shown):
    body = {"text": text, "reasoning_parser": parser, **more}
    assert answer(parse_reasoning, body) == {"normal_text": shown, "reasoning_text": thought, "success": True}


@pytest.mark.parametrize("name", TOOLS.names(aliases=True))
def test_every_tool_parser_can_be_asked(name):
    assert asked("no call", name)["tool_calls"] == []


@pytest.mark.parametrize("name", REASONING.names(aliases=True))
def test_every_reasoning_parser_can_be_asked(name):
    assert answer(parse_reasoning, {"text": "x", "reasoning_parser": name})["success"]


def refused(handler, body, surface="parse"):
    with pytest.raises((InvalidValue, InvalidJson)) as caught:
        call(handler, body)
    reply = error_reply(caught.value, surface=surface)
    return reply.status, msgspec.json.decode(reply.body)


def test_unknown_parsers():
    assert refused(parse_function_call, {"text": "x", "tool_call_parser": "nope"}) == (
        400,
        {"error": "Unknown tool parser: nope", "success": False},
    )
    assert refused(parse_reasoning, {"text": "x", "reasoning_parser": "nope"}) == (
        400,
        {"error": "Unknown reasoning parser: nope", "success": False},
    )


@pytest.mark.parametrize(
    "body", [{}, {"text": "x"}, {"text": 3, "tool_call_parser": "qwen"}, b"", b"[", {"text": "x", "tool_call_parser": None}]
)
def test_bodies_that_make_no_sense(body):
    status, told = refused(parse_function_call, body)
    assert (status, told["success"]) == (400, False)
    assert told["error"]


@pytest.mark.parametrize("tools", [[3], "x", {}, [{}] * 5000])
def test_tools_that_make_no_sense(tools):
    assert refused(parse_function_call, {"text": "x", "tool_call_parser": "qwen", "tools": tools})[0] == 400


def test_nesting_is_bounded():
    deep = b'{"text":"x","tool_call_parser":"qwen","tools":[{"a":' + b"[" * 5000 + b"]" * 5000 + b"}]}"
    assert refused(parse_function_call, deep)[0] == 400


def test_long_texts_leave_the_event_loop(monkeypatch):
    threads = []
    monkeypatch.setattr(module, "parse", lambda case, **kwargs: threads.append(threading.current_thread()) or original(case, **kwargs))
    asked(HERMES, "qwen")
    asked(HERMES + "x" * 100_000, "qwen")
    answer(parse_reasoning, {"text": "x" * 100_000, "reasoning_parser": "qwen3"})
    assert threads[0] is threading.main_thread()
    assert threading.main_thread() not in threads[1:]


original = module.parse


def test_the_paths_have_the_dialect():
    for path in ("/parse/function_call", "/parse/reasoning"):
        route, _ = RouteTable().find("POST", path)
        assert route.surface == "parse"
        reply = asyncio.run(route.handler(request({"text": "x", "tool_call_parser": "qwen", "reasoning_parser": "qwen3"}), services()))
        assert reply.status == 200
