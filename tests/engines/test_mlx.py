"""The gateway in front of a real model: MLX on the CPU with SmolLM2-135M. Answers are short and greedy, so that they are certain."""

import math
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.fleet import Gateway, wait_until
from tests.engines.conftest import MlxProbe

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90, func_only=True)]

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
LONG: list[Any] = [{"role": "user", "content": "Count from one to two hundred."}]
ANSWER = "The capital of France is Paris."


def test_chat(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=16)
    [choice] = reply.choices
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8  # seven tokens of text, and the end-of-turn token
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8


def test_stream_equals_whole_answer(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=16)
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    texts = [choice.delta.content for choice in choices if choice.delta.content]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 1, "it came in one piece"
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage == whole.usage


def test_completion(client: openai.OpenAI, model: str) -> None:
    reply = client.completions.create(model=model, prompt="The capital of France is", temperature=0, max_tokens=8)
    assert "Paris" in reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"


def test_stop_string_that_the_engine_does_not_know(client: openai.OpenAI, model: str, mlx: MlxProbe) -> None:
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=200, stop=["Par"])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("The capital of France is ", "stop")
    wait_until(lambda: mlx.active_requests() == 0, what="the engine dropped the request")


def test_stop_string_ends_the_engines_work(client: openai.OpenAI, model: str, mlx: MlxProbe) -> None:
    body = {"ignore_eos": True}
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=2000, stop=["France"], extra_body=body)
    assert reply.choices[0].message.content == "The capital of "
    wait_until(lambda: mlx.active_requests() == 0, within_s=2, what="the engine dropped a request of 2000 tokens")


def test_client_that_leaves_a_stream(client: openai.OpenAI, model: str, mlx: MlxProbe) -> None:
    stream = client.chat.completions.create(model=model, messages=LONG, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    for _, chunk in zip(range(4), stream, strict=False):
        assert chunk.choices
    assert mlx.active_requests() == 1
    stream.close()
    wait_until(lambda: mlx.active_requests() == 0, within_s=2, what="the engine dropped the request of a client that left")


def test_client_that_leaves_before_the_answer(gateway: Gateway, model: str, mlx: MlxProbe) -> None:
    body = {"model": model, "messages": LONG, "max_tokens": 2000, "ignore_eos": True}
    with gateway.http(timeout_s=1.5) as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=body)
    wait_until(lambda: mlx.active_requests() == 0, within_s=2, what="the engine dropped the request of a client that left")


def test_logprobs(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2)
    scores = reply.choices[0].logprobs
    assert scores is not None
    assert scores.content is not None
    assert len(scores.content) == 4
    assert b"".join(bytes(token.bytes or ()) for token in scores.content).decode() == reply.choices[0].message.content
    for token in scores.content:
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].token == token.token, "greedy takes the best"
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert math.isclose(token.logprob, token.top_logprobs[0].logprob, abs_tol=1e-4)


def test_constraint_that_the_engine_lacks(client: openai.OpenAI, model: str) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=QUESTION, response_format=schema)
    assert "mlx" in caught.value.message.lower()
    assert "response_format" in caught.value.message
    assert caught.value.param == "response_format"


def test_tokenize(gateway: Gateway, client: openai.OpenAI, model: str) -> None:
    with gateway.http() as http:
        tokenized = http.post("/v1/tokenize", json={"model": model, "messages": QUESTION}).raise_for_status().json()
        text = http.post("/v1/detokenize", json={"model": model, "tokens": tokenized["tokens"], "skip_special_tokens": False})
    reply = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(tokenized["tokens"]) == tokenized["count"]
    assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n" in text.raise_for_status().json()["text"]
