"""Requests that nobody would write on purpose: each gets an answer that the error table knows, and nothing of it stays in the gateway."""

import copy
import json
import os
import pathlib
import random
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from smg.api.errors import TABLE
from tests.e2e.fleet import Gateway, wait_until

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/tokenize", "/v1/detokenize"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "12 °C"},
    {"role": "user", "content": "[[sim: tokens=2]] And now?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]
COMMON: dict[str, Any] = {
    "model": "sim-model",
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 1,
    "stop": ["x", "yy"],
    "stop_token_ids": [5],
    "logit_bias": {"5": 1},
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.1,
    "n": 1,
    "stream": False,
    "min_tokens": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "user": "u",
    "priority": 1,
    "rid": "r",
}
CHAT_BODY = {
    **COMMON,
    "messages": MESSAGES,
    "tools": TOOLS,
    "tool_choice": "auto",
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "text"},
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "metadata": {"a": "b"},
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: CHAT_BODY,
    COMPLETIONS: {**COMMON, "prompt": ["Once [[sim: tokens=2]]"], "logprobs": 1, "echo": False, "best_of": 1},
    TOKENIZE: {"model": "sim-model", "messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True},
    DETOKENIZE: {"model": "sim-model", "tokens": [1, 2, 3], "skip_special_tokens": True},
}
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, 2**31, 2**63, -(2**63) - 1, 2**70),
    *("", "x", "\x00", "\ud83d\ude00", "<|im_end|>", "{{ 1/0 }}", "{% for i in range(10**9) %}x{% endfor %}", "a" * 5000, "🙂" * 300),
    *([], [None], [[]], [{}], [1, "a"], {}, {"": None}, {"type": "x"}, {"a": {"b": {"c": []}}}, [0] * 500),
]
CHARACTERS = [b"\x00", b"\xff", b'"', b"\\", b"{", b"}", b"[", b",", b"\\ud800", b"\n", b"1e999", b"NaN"]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for inner in value.values() for place in places(inner)]
    if isinstance(value, list):
        return [(value, index) for index in range(len(value))] + [place for inner in value for place in places(inner)]
    return []


def replace(random_of: random.Random, body: Any) -> None:
    container, key = random_of.choice(places(body))
    container[key] = copy.deepcopy(random_of.choice(ODD))


def remove(random_of: random.Random, body: Any) -> None:
    container, key = random_of.choice(places(body))
    del container[key]


def repeat(random_of: random.Random, body: Any) -> None:
    lists = [container[key] for container, key in places(body) if isinstance(container[key], list) and container[key]]
    if lists:
        chosen = random_of.choice(lists)
        chosen.extend(chosen * random_of.choice([1, 3, 20]))


def stream(random_of: random.Random, body: Any) -> None:
    body["stream"] = True
    body["stream_options"] = {"include_usage": random_of.choice([True, False, None, 1])}


MUTATIONS: list[Callable[[random.Random, Any], None]] = [replace, replace, replace, remove, repeat, stream]


def mutated(number: int) -> tuple[str, bytes]:
    """Path and body of a request; the same for the same number."""
    random_of = random.Random(number)
    path = random_of.choice([CHAT, CHAT, CHAT, COMPLETIONS, COMPLETIONS, TOKENIZE, DETOKENIZE])
    body = json.loads(json.dumps(BODIES[path]))
    for _ in range(random_of.choice([1, 1, 2, 4])):
        random_of.choice(MUTATIONS)(random_of, body)
    data = json.dumps(body).encode()
    if random_of.random() < 0.1:
        at = random_of.randrange(len(data))
        data = data[:at] + random_of.choice(CHARACTERS) + data[at + random_of.choice([0, 1, 10]) :]
    return path, data


def family(pid: int) -> list[int]:
    """A process and all below it."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [pid, *(one for task in tasks for child in (task / "children").read_text().split() for one in family(int(child)))]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def check(path: str, data: bytes, reply: httpx.Response) -> None:
    """A 200, or an error of the table, in the shape of the surface; in a stream as its last event but one."""
    about = f"{path} {data[:3000]!r} → {reply.status_code} {reply.text[:300]}"
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert TABLE[error["code"]].status == reply.status_code, about
        assert error["code"] not in ("internal_error", "engine_error", "engine_protocol", "engine_unavailable"), about
        assert reply.status_code < 500 or error["code"] == "not_implemented", about
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.text.endswith("data: [DONE]\n\n"), about
        assert '"error"' not in reply.text, about
    else:
        assert reply.json(), about


@pytest.mark.parametrize("batch", range(5))
def test_mutated_request(gateway: Gateway, batch: int) -> None:
    with gateway.http(timeout_s=30) as http:
        for number in range(batch * 100, batch * 100 + 100):
            path, data = mutated(number)
            check(path, data, http.post(path, content=data, headers={"content-type": "application/json"}))
    assert "Traceback" not in gateway.child.output()
    wait_until(gateway.idle, what="nothing is left at the engine")


def test_nothing_of_them_stays(gateway: Gateway) -> None:
    workers = family(gateway.child.process.pid)
    with gateway.http(timeout_s=30) as http:
        for number in range(1000, 1200):
            path, data = mutated(number)
            http.post(path, content=data, headers={"content-type": "application/json"})
        before = {pid: (descriptors(pid), resident_mib(pid)) for pid in workers}
        for number in range(1000, 1200):
            path, data = mutated(number)
            http.post(path, content=data, headers={"content-type": "application/json"})
        wait_until(gateway.idle, what="nothing is left at the engine")
        for pid, (files, mib) in before.items():
            wait_until(lambda pid=pid, files=files: descriptors(pid) <= files, what=f"no descriptor is left open in {pid}")
            assert resident_mib(pid) < mib + 10, "memory does not grow with requests that it has seen before"
    assert family(gateway.child.process.pid) == workers, "no process had to be replaced"


GARBAGE = [
    b"\x16\x03\x01garbage\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /%00%ff/../../etc/passwd?\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("data", GARBAGE)
def test_bytes_that_are_no_request(gateway: Gateway, data: bytes) -> None:
    host, _, port = gateway.base_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)
        try:
            answer = wire.recv(65536)
        except ConnectionResetError:
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert not answer.startswith(b"HTTP/1.1 2"), answer
    assert "Traceback" not in gateway.child.output()
    with gateway.http() as http:
        assert http.get("/health").status_code == 200
