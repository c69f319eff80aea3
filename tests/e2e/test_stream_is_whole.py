"""Streamed and whole answers to the same request are the same answer, whatever was asked for and however the engine cuts its stream."""

import asyncio
import json
import random
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TEXTS = [
    "Grüße aus Köln: 你好 🙂 and so on.",
    "a" * 40,
    "🙂👩‍👩‍👧‍👦🇩🇪" * 3,
    "one two\\n\\nthree END four",
    "<b>x</b> & \\u00e9 \\\\ tab\\t.",
]


@pytest.fixture(scope="module", params=["1", "7"])
def gateway(request: pytest.FixtureRequest, module_fleet: Fleet) -> Gateway:
    """`request.param` tokens come in one message."""
    return module_fleet.launch("vllm", sim_flags=(*SIM_FLAGS, "--speed", "0", "--stream-interval", request.param))


def random_request(number: int) -> dict[str, Any]:
    random_of = random.Random(number)
    marker = f'text="{random_of.choice(TEXTS)}"'
    if random_of.random() < 0.3:
        marker += ' think="Let me see, 12 °C …"'
    fields: dict[str, Any] = {
        "model": "sim-model",
        "seed": number,
        "temperature": random_of.choice([0, 0.7]),
        "max_tokens": random_of.choice([1, 3, 8, 200]),
    }
    if random_of.random() < 0.4:
        fields["n"] = random_of.choice([2, 3])
    if random_of.random() < 0.4:
        fields["stop"] = random_of.choice(["END", ["three", "🙂"], ["aaaaaaaaaaa"], [" so on.", "on"], "zzz"])
        fields["include_stop_str_in_output"] = random_of.random() < 0.3
    if random_of.random() < 0.3:
        fields["min_tokens"] = min(2, fields["max_tokens"])
    if random_of.random() < 0.2:
        fields |= {"ignore_eos": True, "max_tokens": 60}
    if random_of.random() < 0.2:
        fields |= {"skip_special_tokens": False}
    if random_of.random() < 0.3:
        marker, fields["tools"] = 'tool=get_weather text="{\\"city\\": \\"Köln\\"}"', [WEATHER]
    return {**fields, "messages": [{"role": "user", "content": f"Say {number}. [[sim: {marker}]]"}]}


def whole_chat(body: dict[str, Any]) -> tuple[Any, Any]:
    """Choices and usage in a form that both kinds of answer have."""
    choices = []
    for choice in body["choices"]:
        message = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        scores = (choice["logprobs"] or {}).get("content") or []
        text = (message["content"] or "", message.get("reasoning_content") or "")
        choices.append((*text, calls, scores, choice["finish_reason"], choice.get("matched_stop")))
    return choices, body["usage"]


def streamed_chat(chunks: list[dict[str, Any]], count: int) -> tuple[Any, Any]:
    contents, thoughts, ends, matched = [""] * count, [""] * count, [None] * count, [None] * count
    calls: list[list[list[str]]] = [[] for _ in range(count)]
    scores: list[list[Any]] = [[] for _ in range(count)]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        index, delta = choice["index"], choice["delta"]
        assert ends[index] is None, "nothing comes after the finish_reason"
        contents[index] += delta.get("content") or ""
        thoughts[index] += delta.get("reasoning_content") or ""
        scores[index] += (choice["logprobs"] or {}).get("content") or []
        for call in delta.get("tool_calls") or ():
            if "name" in call["function"]:
                calls[index].append([call["function"]["name"], ""])
            calls[index][call["index"]][1] += call["function"].get("arguments", "")
        ends[index], matched[index] = choice["finish_reason"], choice.get("matched_stop")
    tuples = [[(name, arguments) for name, arguments in one] for one in calls]
    return list(zip(contents, thoughts, tuples, scores, ends, matched, strict=True)), chunks[-1]["usage"]


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", reply.text[:500]
    return [json.loads(line) for line in lines[:-1]]


def uncached(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


@pytest.mark.parametrize("logprobs", [None, 0, 4])
def test_chat(gateway: Gateway, logprobs: int | None) -> None:
    with gateway.http() as http:
        for number in range(40):
            request = random_request(number)
            if logprobs is not None:
                request |= {"logprobs": True, "top_logprobs": logprobs}
            reply = http.post(CHAT, json=request)
            assert reply.status_code == 200, (request, reply.text)
            choices, usage = whole_chat(reply.json())
            options = {"stream": True, "stream_options": {"include_usage": True}}
            again, streamed_usage = streamed_chat(events(http.post(CHAT, json={**request, **options})), len(choices))
            assert again == choices, request
            assert uncached(streamed_usage) == uncached(usage), request


def test_logprobs_hold_the_true_bytes(gateway: Gateway) -> None:
    with gateway.http() as http:
        for number in range(40):
            request = {**random_request(number), "logprobs": True, "top_logprobs": 2, "ignore_eos": False}
            if "tools" in request or "stop" in request or 'think="' in request["messages"][0]["content"]:
                continue
            for choice in http.post(CHAT, json=request).json()["choices"]:
                entries = choice["logprobs"]["content"]
                text = b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "ignore")
                assert choice["message"]["content"].removesuffix("\ufffd").startswith(text), request
                assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_completion(gateway: Gateway, echo: bool, logprobs: int | None) -> None:
    prompt = [f'Once {number} [[sim: text="{text}"]]' for number, text in enumerate(TEXTS)]
    request = {"model": "sim-model", "prompt": prompt, "n": 2, "temperature": 0.5, "max_tokens": 12, "echo": echo, "logprobs": logprobs}
    with gateway.http() as http:
        whole = http.post(COMPLETIONS, json=request).raise_for_status().json()
        chunks = events(http.post(COMPLETIONS, json={**request, "stream": True, "stream_options": {"include_usage": True}}))
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert choice["text"].startswith(prompt[choice["index"] // 2]) == echo
        if logprobs is None:
            continue
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [one for part in parts if part["logprobs"] for one in part["logprobs"][name]] == choice["logprobs"][name], name
    assert uncached(chunks[-1]["usage"]) == uncached(whole["usage"])


def test_async_sdk_with_many_streams(gateway: Gateway) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[str, str]:
        messages: Any = [{"role": "user", "content": f'[[sim: text="Antwort Nummer {number} für dich"]]'}]
        whole = await client.chat.completions.create(model="sim-model", messages=messages)
        stream = await client.chat.completions.create(model="sim-model", messages=messages, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return whole.choices[0].message.content or "", "".join(parts)

    async def all_of_them() -> list[tuple[str, str]]:
        async with (
            httpx.AsyncClient(trust_env=False) as http,
            openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="none", max_retries=0, http_client=http) as client,
        ):
            return await asyncio.gather(*(one(client, number) for number in range(40)))

    for number, pair in enumerate(asyncio.run(all_of_them())):
        assert pair == (f"Antwort Nummer {number} für dich",) * 2
