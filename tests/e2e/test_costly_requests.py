"""Requests made to cost much: refused before work is spent on them, and nobody else waits while they are worked on."""

import json
import os
import pathlib
import random
import string
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway
from tests.e2e.test_any_request import family
from tests.stopwatch import Stopwatch

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/tokenize", "/v1/detokenize"
# What others may wait at most while the gateway computes; each of these requests took 0.7 s to 30 s before.
LONGEST_STALL_S = 0.5
TICK_S = 0.01  # in which the kernel counts processor time


@pytest.fixture(scope="module")
def gateway(module_fleet: Fleet) -> Gateway:
    return module_fleet.launch("vllm", sim_flags=(*SIM_FLAGS, "--speed", "0"), flags=("--workers", "1", "--trust-request-chat-template"))


def cpu_s(gateway: Gateway) -> float:
    """Processor time of the gateway's processes so far."""
    fields = [pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in family(gateway.child.process.pid)]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def peak_mib(gateway: Gateway) -> float:
    """The most memory that the largest of the processes has had since `forget_peaks`."""
    statuses = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in family(gateway.child.process.pid)]
    return max(int(line.split()[1]) for status in statuses for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def forget_peaks(gateway: Gateway) -> None:
    for pid in family(gateway.child.process.pid):
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


def post(gateway: Gateway, path: str, data: bytes) -> tuple[httpx.Response, float]:
    """The reply, and the longest that another client waited for /health meanwhile: without the time in which a busy machine
    let the gateway wait, and in the gateway's processor time where that is less.
    """
    waits, ended = [0.0], threading.Event()

    def ask() -> None:
        with gateway.http(timeout_s=60) as http:
            while not ended.is_set():
                watch, used = Stopwatch(gateway.child.process.pid), cpu_s(gateway)
                http.get("/health").raise_for_status()
                waits.append(min(watch.seconds(), cpu_s(gateway) - used + TICK_S))
                ended.wait(0.005)

    other = threading.Thread(target=ask)
    other.start()
    try:
        with gateway.http(timeout_s=60) as http:
            reply = http.post(path, content=data, headers={"content-type": "application/json"})
    finally:
        ended.set()
        other.join()
    return reply, max(waits)


def chat(text: str, **fields: Any) -> bytes:
    return json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}).encode()


def listed(before: str, item: bytes, count: int) -> bytes:
    return f'{{"model": "sim-model", {before}: ['.encode() + b",".join([item] * count) + b"]}"


def words(count: int, length: int) -> list[str]:
    random_of = random.Random(0)
    return ["".join(random_of.choices(string.ascii_lowercase, k=length)) for _ in range(count)]


REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "100 MB of text": (CHAT, lambda: chat("word " * 20_000_000), "context_length_exceeded"),
    "10 MB of text": (CHAT, lambda: chat("word " * 2_000_000), "context_length_exceeded"),
    "a 10 MB prompt": (
        COMPLETIONS,
        lambda: json.dumps({"model": "sim-model", "prompt": "word " * 2_000_000}).encode(),
        "context_length_exceeded",
    ),
    "10 MB to tokenize": (
        TOKENIZE,
        lambda: json.dumps({"model": "sim-model", "prompt": "word " * 2_000_000}).encode(),
        "context_length_exceeded",
    ),
    "2 million token ids": (COMPLETIONS, lambda: listed('"prompt"', b"1000", 2_000_000), "context_length_exceeded"),
    "300,000 messages": (CHAT, lambda: listed('"messages"', b'{"role":"user","content":""}', 300_000), "invalid_value"),
    "2 million ids to detokenize": (DETOKENIZE, lambda: listed('"tokens"', b"1000", 2_000_000), "invalid_value"),
    "brackets": (CHAT, lambda: b'{"messages":[{"role":"user","content":"x","y":' + b"[" * 5_000_000, "invalid_json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_work_is_spent(gateway: Gateway, name: str) -> None:
    path, make, code = REFUSED[name]
    data, before, started = make(), cpu_s(gateway), gateway.engines[0].counters()["started"]
    forget_peaks(gateway)
    idle = peak_mib(gateway)
    reply, stall_s = post(gateway, path, data)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code), reply.text[:300]
    assert cpu_s(gateway) - before < 1.5
    assert peak_mib(gateway) - idle < 3 * len(data) / 2**20 + 150
    assert stall_s < LONGEST_STALL_S
    assert gateway.engines[0].counters()["started"] == started


LOOPS = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}x"
ALLOWED: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "a template of the client's with loops": (CHAT, lambda: chat("x", chat_template=LOOPS), 200),
    "stop strings for 128 choices": (CHAT, lambda: chat("x", n=128, stop=words(16, 256)), 200),
    "scores of 128 choices": (CHAT, lambda: chat("x", n=128, logprobs=True, top_logprobs=20, max_tokens=50, ignore_eos=True), 200),
    "1000 prompts": (
        COMPLETIONS,
        lambda: json.dumps({"model": "sim-model", "prompt": ["word " * 300] * 1000, "max_tokens": 1}).encode(),
        200,
    ),
    "1000 prompts to tokenize": (TOKENIZE, lambda: json.dumps({"model": "sim-model", "prompt": ["word " * 300] * 1000}).encode(), 200),
    "a million ids to detokenize": (DETOKENIZE, lambda: listed('"tokens"', b"1000", 1_000_000), 200),
    "30 MB in a field that is not known": (CHAT, lambda: chat("x", x="a" * 30_000_000), 200),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_others_do_not_wait(gateway: Gateway, name: str) -> None:
    path, make, status = ALLOWED[name]
    reply, stall_s = post(gateway, path, make())
    assert reply.status_code == status, reply.text[:300]
    assert stall_s < LONGEST_STALL_S
