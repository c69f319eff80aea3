"""A chat from HTTP to the engine and back, over each engine protocol, with the SDK that clients use."""

from typing import Any

import openai
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Gateway, wait_until

TEXT = SIM_FLAGS[-1]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def streamed(gateway: Gateway, client: openai.OpenAI, **body: Any) -> tuple[str, list[str], Any]:
    """Text, finish reasons and usage of a streamed chat."""
    chunks = list(client.chat.completions.create(model=gateway.model, stream=True, stream_options={"include_usage": True}, **body))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, [choice.finish_reason for choice in choices if choice.finish_reason], chunks[-1].usage


def test_whole_and_streamed_answers_are_equal(each_protocol: Gateway) -> None:
    with each_protocol.openai() as client:
        whole = client.chat.completions.create(model=each_protocol.model, messages=user("Say it."), temperature=0)
        text, finishes, usage = streamed(each_protocol, client, messages=user("Say it."), temperature=0)
    [choice] = whole.choices
    assert (choice.message.content, choice.finish_reason) == (TEXT, "stop")
    assert (text, finishes) == (TEXT, ["stop"])
    assert usage.model_dump(exclude={"prompt_tokens_details"}) == whole.usage.model_dump(exclude={"prompt_tokens_details"})


def test_max_tokens(each_protocol: Gateway) -> None:
    with each_protocol.openai() as client:
        whole = client.chat.completions.create(model=each_protocol.model, messages=user("Say it."), max_tokens=5)
        text, finishes, usage = streamed(each_protocol, client, messages=user("Say it."), max_tokens=5)
    assert whole.usage is not None
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 5)
    assert (text, finishes, usage.completion_tokens) == (whole.choices[0].message.content, ["length"], 5)


def test_stop_string_ends_the_engines_work(each_protocol: Gateway) -> None:
    [engine] = each_protocol.engines
    marked = user('Say it. [[sim: text="one two three four five six seven" itl_ms=20]]')
    before = engine.counters()
    with each_protocol.openai() as client:
        whole = client.chat.completions.create(model=each_protocol.model, messages=marked, stop=["four"])
        text, finishes, _ = streamed(each_protocol, client, messages=marked, stop=["four"])
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("one two three ", "stop")
    assert (text, finishes) == ("one two three ", ["stop"])
    wait_until(each_protocol.idle, what="the engine has nothing left to do")
    assert engine.counters()["started"] - before["started"] == 2


def test_cached_tokens_are_told(each_protocol: Gateway) -> None:
    long = user("The same long beginning of a prompt, over and over again. " * 20)
    with each_protocol.openai() as client:
        counts = [client.chat.completions.create(model=each_protocol.model, messages=long, max_tokens=2).usage for _ in range(2)]
    assert counts[0] is not None
    assert counts[1] is not None
    assert counts[1].prompt_tokens_details is not None
    cached = counts[1].prompt_tokens_details.cached_tokens or 0
    if each_protocol.engines[0].child.name == "mlx":
        assert cached == 0, "MLX's servicer has no prefix cache"
    else:
        assert 0 < cached < counts[1].prompt_tokens


def test_completion(each_protocol: Gateway) -> None:
    with each_protocol.openai() as client:
        whole = client.completions.create(model=each_protocol.model, prompt="Once upon a time", max_tokens=400)
        chunks = list(client.completions.create(model=each_protocol.model, prompt="Once upon a time", max_tokens=400, stream=True))
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (TEXT, "stop")
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT


def test_tokenize_says_what_the_engine_gets(each_protocol: Gateway) -> None:
    with each_protocol.http() as http, each_protocol.openai() as client:
        reply = http.post("/v1/tokenize", json={"model": each_protocol.model, "messages": user("Hallo Köln")}).raise_for_status().json()
        usage = client.chat.completions.create(model=each_protocol.model, messages=user("Hallo Köln"), max_tokens=1).usage
    assert usage is not None
    assert usage.prompt_tokens == reply["count"] == len(reply["tokens"])


@pytest.mark.parametrize("path", ["/health", "/liveness", "/readiness"])
def test_health(gateway: Gateway, path: str) -> None:
    with gateway.http() as http:
        assert http.get(path).status_code == 200


def test_models(client: openai.OpenAI) -> None:
    assert [card.id for card in client.models.list().data] == ["sim-model"]


def test_request_id_comes_back(gateway: Gateway) -> None:
    with gateway.http() as http:
        given = http.get("/v1/models", headers={"x-request-id": "mine-1"})
        made = http.get("/v1/models")
    assert given.headers["x-request-id"] == "mine-1"
    assert made.headers["x-request-id"]
