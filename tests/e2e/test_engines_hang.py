"""Engines that are silent: the request's deadline ends the wait, in the client's dialect, and the engine's work with it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway, wait_until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def hasty(module_fleet: Fleet) -> Iterator[Gateway]:
    """A gateway that gives a request two seconds and a silent stream a comment thrice in one."""
    flags = ("--workers", "1", "--request-timeout-secs", "2", "--keepalive-interval-secs", "0.3")
    return module_fleet.launch("vllm", sim_flags=SIM_FLAGS, flags=flags)


def body(marker: str, *, stream: bool) -> dict[str, Any]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": f"Go on. [[sim: {marker}]]"}], "stream": stream}


def events(reply: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("marker", ["ttft_ms=30000", "fault=hang@0", "fault=hang@3 itl_ms=5"])
def test_whole_answer(hasty: Gateway, marker: str) -> None:
    with hasty.http() as http:
        reply = http.post(CHAT, json=body(marker, stream=False))
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "engine_timeout"
    wait_until(hasty.idle, what="the engine has nothing left to do")


@pytest.mark.parametrize("marker", ["ttft_ms=30000", "fault=hang@0", "fault=hang@3 itl_ms=5"])
def test_stream(hasty: Gateway, marker: str) -> None:
    with hasty.http() as http:
        reply = http.post(CHAT, json=body(marker, stream=True))
    received = events(reply)
    assert received[-1] == "[DONE]"
    assert json.loads(received[-2])["error"]["code"] == "engine_timeout"
    assert any(line.startswith(":") for line in reply.text.splitlines()), "silence is filled with comments"
    assert '"finish_reason":"' not in reply.text
    wait_until(hasty.idle, what="the engine has nothing left to do")
