"""Wrong requests: each is answered in OpenAI's shape, with the right status and code, and never reaches the engine."""

import socket
from typing import Any

import httpx
import pytest

from tests.e2e.fleet import Fleet, Gateway

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "sim-model", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def error_of(reply: httpx.Response) -> tuple[int, str]:
    """Status and code, once the shape was checked."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert reply.headers["content-type"].startswith("application/json")
    return reply.status_code, error["code"]


@pytest.mark.parametrize("body", [b"{", b"", b"[1,2]", b"\xff\xfe", b'{"model": "sim-model", "messages": [}'])
def test_bad_json(gateway: Gateway, body: bytes) -> None:
    with gateway.http() as http:
        status, code = error_of(http.post(CHAT, content=body, headers={"content-type": "application/json"}))
    assert status == 400
    assert code in ("invalid_json", "invalid_value")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": "Hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_wrong_value(gateway: Gateway, changes: dict[str, Any], param: str) -> None:
    started = gateway.engines[0].counters()["started"]
    with gateway.http() as http:
        reply = http.post(CHAT, json={**GOOD, **changes})
    assert error_of(reply)[0] == 400
    assert str(reply.json()["error"]["param"]).startswith(param)
    assert gateway.engines[0].counters()["started"] == started


def test_unknown_model(gateway: Gateway) -> None:
    with gateway.http() as http:
        assert error_of(http.post(CHAT, json={**GOOD, "model": "no-such-model"})) == (404, "model_not_found")


def test_prompt_over_the_context(gateway: Gateway) -> None:
    with gateway.http() as http:
        reply = http.post(CHAT, json={**GOOD, "messages": [{"role": "user", "content": "word " * 400_000}]})
    assert error_of(reply) == (400, "context_length_exceeded")


def test_unknown_path_and_method(gateway: Gateway) -> None:
    with gateway.http() as http:
        assert error_of(http.get("/v1/nothing")) == (404, "not_found")
        assert error_of(http.get(CHAT)) == (405, "method_not_allowed")


def test_what_is_not_built(gateway: Gateway) -> None:
    with gateway.http() as http:
        assert error_of(http.post("/v1/responses", json={})) == (501, "not_implemented")


def test_body_over_the_limit_is_refused_before_it_was_sent(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("vllm", flags=("--workers", "1", "--max-payload-size", "1000"))
    host, _, port = gateway.base_url.removeprefix("http://").partition(":")
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 1000000000\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(head.encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 413")
    with gateway.http() as http:
        assert error_of(http.post(CHAT, json={**GOOD, "user": "x" * 2000})) == (413, "body_too_large")


@pytest.mark.parametrize("protocol", ["mlx"])
def test_constraint_that_an_engine_lacks(module_fleet: Fleet, protocol: str) -> None:
    gateway = module_fleet.launch(protocol)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    with gateway.http() as http:
        reply = http.post(CHAT, json={**GOOD, "model": gateway.model, "response_format": schema})
    assert error_of(reply) == (400, "unsupported_parameter")
    assert protocol in reply.json()["error"]["message"].lower()
    assert reply.json()["error"]["param"] == "response_format"
