"""Public faults that show only in a whole answer, through a gateway that runs: B23, B53, B58, B64, B66, B69, B83 to B85, B87 and B89.

B47 and B88 are faults of surfaces that are not built; B68, B70 and B72 are in the tests of tokenizers and templates.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.fleet import Gateway, fleet, wait_until

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"c": {"type": "string"}}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"c": "SF"}}\n</tool_call>'


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[str, Gateway]]:
    flags = ("--allow-scripts", "--output", "text", "--speed", "0")
    with fleet() as made:
        yield {
            protocol: made.launch(protocol, sim_flags=flags, flags=("--workers", "1", "--trust-request-chat-template"))
            for protocol in ("vllm", "sglang", "mlx", "trtllm", "tokenspeed")
        }


def says(text: str, *, think: str = "", **fields: Any) -> dict[str, Any]:
    marker = f"text={json.dumps(text, ensure_ascii=False)}" + (f" think={json.dumps(think)}" if think else "")
    return {"model": "sim-model", "messages": [{"role": "user", "content": f"Say it. [[sim: {marker}]]"}], "temperature": 0, **fields}


class Answer:
    """What a client has in the end, whole or streamed."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: dict[int, list[str]] = {}
        self.finish: str | None = None
        self.matched: object = None
        self.usage: dict[str, Any] | None = None

    def key(self) -> tuple[object, ...]:
        return self.content, self.reasoning, [tuple(call) for call in self.calls.values()], self.finish, self.matched

    def take(self, choice: dict[str, Any], message: dict[str, Any]) -> None:
        self.content += message.get("content") or ""
        self.reasoning += message.get("reasoning_content") or ""
        for at, call in enumerate(message.get("tool_calls") or ()):
            kept = self.calls.setdefault(call.get("index", at), ["", ""])
            kept[0] += call["function"].get("name") or ""
            kept[1] += call["function"].get("arguments") or ""
        self.finish = choice.get("finish_reason") or self.finish
        self.matched = choice.get("matched_stop", self.matched)


def whole(http: httpx.Client, body: dict[str, Any]) -> Answer:
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    made, found = reply.json(), Answer()
    found.take(made["choices"][0], made["choices"][0]["message"])
    found.usage = made["usage"]
    return found


def chunks(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", CHAT, json={**body, "stream": True}) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def both(gateway: Gateway, body: dict[str, Any]) -> Answer:
    """The answer, which is the same in both modes, usage too (B89)."""
    body = {**body, "model": gateway.model}
    with gateway.http() as http:
        one, streamed = whole(http, body), Answer()
        for chunk in chunks(http, {**body, "stream_options": {"include_usage": True}}):
            assert "error" not in chunk, chunk
            streamed.usage = chunk.get("usage") or streamed.usage
            for choice in chunk["choices"]:
                streamed.take(choice, choice["delta"])
    assert streamed.key() == one.key()
    plain = [{k: v for k, v in (usage or {}).items() if k != "prompt_tokens_details"} for usage in (one.usage, streamed.usage)]
    assert plain[0] == plain[1]
    return one


def test_b23_tools_that_are_not_to_be_called_are_not_in_the_prompt(gateways: dict[str, Gateway]) -> None:
    with gateways["vllm"].http() as http:
        with_tools = whole(http, says("Hi", tools=[TOOL])).usage
        none = whole(http, says("Hi", tools=[TOOL], tool_choice="none")).usage
        without = whole(http, says("Hi")).usage
    assert with_tools is not None
    assert none is not None
    assert without is not None
    assert none["prompt_tokens"] == without["prompt_tokens"] < with_tools["prompt_tokens"]
    found = both(gateways["vllm"], says(CALL, tools=[TOOL], tool_choice="none"))
    assert (found.calls, found.finish) == ({}, "stop")


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "mlx"])
def test_b53_a_stop_string_ends_the_thinking_it_is_in(gateways: dict[str, Gateway], protocol: str) -> None:
    found = both(gateways[protocol], says("more", think="plan ### on", stop=["###"]))
    assert found.key() == ("", "plan ", [], "stop", "###")
    wait_until(gateways[protocol].idle, what="the engine has nothing left to do")


def test_b58_control_tokens_are_not_shown_unless_asked_for(gateways: dict[str, Gateway]) -> None:
    body = says("one<|im_start|>two")
    assert both(gateways["vllm"], body).content == "onetwo"
    assert both(gateways["vllm"], {**body, "skip_special_tokens": False}).content.startswith("one<|im_start|>two")
    assert both(gateways["vllm"], says(f"a<|im_start|>{CALL}", tools=[TOOL])).calls == {0: ["get_weather", '{"c": "SF"}']}


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "mlx"])
def test_b64_the_gateway_matches_stop_strings_on_every_engine(gateways: dict[str, Gateway], protocol: str) -> None:
    found = both(gateways[protocol], says("Oh, hello world, how are you?", stop=["hello world"]))
    assert (found.content, found.finish, found.matched) == ("Oh, ", "stop", "hello world")
    wait_until(gateways[protocol].idle, what="the engine has nothing left to do")


@pytest.mark.parametrize("tokens", range(1, 13))
def test_b66_b69_characters_of_several_tokens(gateways: dict[str, Gateway], tokens: int) -> None:
    """Cut anywhere: the stream is the whole answer, and a character that was whole has no replacement."""
    text = "a🤣你好é🇩🇪"
    found = both(gateways["vllm"], says(text, max_tokens=tokens))
    shown = found.content.rstrip("\ufffd")
    assert text.startswith(shown)
    if found.finish == "stop":
        assert found.content == text


@pytest.mark.parametrize("asked", [True, False, None])
def test_b83_usage_comes_when_asked_for(gateways: dict[str, Gateway], asked: bool | None) -> None:
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    with gateways["vllm"].http() as http:
        events = chunks(http, says("Hi", **options))
    if asked:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] > 0
        events = events[:-1]
    assert all(event["choices"] and event.get("usage") is None for event in events)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_b84_a_forced_call_that_did_not_come(gateways: dict[str, Gateway], choice: object) -> None:
    found = both(gateways["vllm"], says("Hello", tools=[TOOL], tool_choice=choice))
    assert (found.calls, found.finish) == ({}, "stop")
    assert found.content == "Hello"


@pytest.mark.parametrize(
    ("choice", "text", "finish"),
    [
        ("required", '[{"name": "get_weather", "parameters": {"c": "SF"}}]', "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, '{"c": "SF"}', "stop"),
        ("auto", CALL, "tool_calls"),
    ],
)
def test_b85_finish_reasons_of_calls_are_openai_s(gateways: dict[str, Gateway], choice: object, text: str, finish: str) -> None:
    found = both(gateways["vllm"], says(text, tools=[TOOL], tool_choice=choice))
    assert ([json.loads(call[1]) for call in found.calls.values()], found.finish) == ([{"c": "SF"}], finish)


def test_b87_constrained_output_after_thinking_is_content(gateways: dict[str, Gateway]) -> None:
    for protocol in ("vllm", "sglang"):
        found = both(gateways[protocol], says('{"a": 1}', think="Let me see.", response_format={"type": "json_object"}))
        assert (found.content, found.reasoning.strip()) == ('{"a": 1}', "Let me see.")


@pytest.mark.parametrize(
    "body",
    [
        says("one two three four", stop=["three"]),
        says(CALL, tools=[TOOL]),
        says("Hi", think="Let me see."),
        says("one two three", max_tokens=2),
    ],
)
def test_b89_usage_is_the_same_in_both_modes(gateways: dict[str, Gateway], body: dict[str, Any]) -> None:
    for protocol in ("vllm", "sglang"):
        found = both(gateways[protocol], body)
        assert found.usage is not None
        assert found.usage["completion_tokens"] > 0


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_parallel_tool_calls_false_is_kept(gateways: dict[str, Gateway], protocol: str) -> None:
    twice = both(gateways[protocol], says(f"Ok.{CALL}\n{CALL}", tools=[TOOL]))
    assert (len(twice.calls), twice.finish) == (2, "tool_calls")
    once = both(gateways[protocol], says(f"Ok.{CALL}\n{CALL}", tools=[TOOL], parallel_tool_calls=False))
    assert (once.calls, once.content, once.finish) == ({0: ["get_weather", '{"c": "SF"}']}, "Ok.", "tool_calls")


THINKS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("protocol", "text", "told"),
    [
        ("vllm", 'Let me see.</think>{"a": 1}', ('{"a": 1}', "Let me see.")),
        ("sglang", 'Let me see.</think>{"a": 1}', ('{"a": 1}', "Let me see.")),
        ("trtllm", '{"a": 1}', ('{"a": 1}', "")),
        ("tokenspeed", '{"a": 1}', ('{"a": 1}', "")),
    ],
)
def test_b87_constraints_wait_for_the_end_of_thinking_or_end_it(
    gateways: dict[str, Gateway], protocol: str, text: str, told: tuple[str, str]
) -> None:
    """Engines that bind the output from its first token leave no room for thoughts: what they write is the answer."""
    asked = {"response_format": {"type": "json_object"}, "chat_template": THINKS}
    found = both(gateways[protocol], says(text, **asked))
    assert (found.content, found.reasoning) == told
    free = both(gateways[protocol], says("hm</think>Hi", chat_template=THINKS))
    assert (free.content, free.reasoning) == ("Hi", "hm")
