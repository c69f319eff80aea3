"""Both data planes answer every request with the same bytes, over every engine protocol; ids and times aside."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from smg.sim.model import load_model
from smg.tokenizer import load_tokenizer
from tests.e2e.conftest import PROTOCOLS
from tests.e2e.fleet import Fleet, wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def said(text: str) -> str:
    """The marker that makes an engine say a text."""
    return f"text={json.dumps(text, ensure_ascii=False)}"


TEXT = said('Zażółć gęślą 北京 👩‍👩‍👧 "quoted" \\ and\ttabs\n\nthen one two three four five.')
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
BARE = said('{"city": "Köln"}')
CALL = f"tool=get_weather {BARE}"
LISTED = said('[{"name": "get_weather", "parameters": {"city": "Köln"}}]')
THOUGHT = 'think="Let me see, 12 °C …"'
NAMED = {"type": "function", "function": {"name": "get_weather"}}
TOKENIZER = load_tokenizer(load_model("").folder)
WORDS = TOKENIZER.encode(" one two")
# Cut inside a character, so that the answer begins with the rest of it.
HALF = [*TOKENIZER.encode("Say "), next(i for i in range(TOKENIZER.vocab_size) if TOKENIZER.token_bytes(i) == "é".encode()[:1])]
LATE_S = 6.0  # how long an engine may hang here
CHANCE = [
    (re.compile(rb'"(id|system_fingerprint)":"[^"]*"'), rb'"\1":"x"'),
    (re.compile(rb'"created":\d+'), rb'"created":0'),
    (re.compile(rb'"request_id":"[^"]*"'), rb'"request_id":"x"'),
]

CHATS: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {}),
    (TEXT, {"max_tokens": 3}),
    (TEXT, {"n": 3, "temperature": 0.5}),
    (TEXT, {"n": 2, "stop": ["two"]}),
    (TEXT, {"logprobs": True, "top_logprobs": 2}),
    (TEXT, {"logprobs": True, "stop": "thr", "n": 2}),
    (TEXT, {"stop": ["ee fo", "four"], "include_stop_str_in_output": True}),
    (TEXT, {"stop": ["\n\n"]}),
    (TEXT, {"stop_token_ids": WORDS[-1:]}),
    (TEXT, {"stop_token_ids": WORDS[-1:], "include_stop_str_in_output": True}),
    (TEXT, {"ignore_eos": True, "max_tokens": 60}),
    (TEXT, {"skip_special_tokens": False}),
    (TEXT, {"min_tokens": 20, "stop": ["one"]}),
    (f"{TEXT} {THOUGHT}", {}),
    (f"{TEXT} {THOUGHT}", {"n": 2, "max_tokens": 9}),
    (f"{TEXT} {THOUGHT}", {"separate_reasoning": False}),
    (f"{TEXT} {THOUGHT}", {"stream_reasoning": False}),
    (f"{TEXT} {THOUGHT}", {"include_reasoning": False}),
    (f"{TEXT} {THOUGHT}", {"stop": ["12"], "logprobs": True}),
    (CALL, {"tools": [TOOL]}),
    (CALL, {"tools": [TOOL], "n": 2}),
    (f"{CALL} {THOUGHT}", {"tools": [TOOL]}),
    (f"{CALL} {THOUGHT}", {"tools": [TOOL], "max_tokens": 30}),
    (CALL, {"tools": [TOOL], "tool_choice": "none"}),
    (BARE, {"tools": [TOOL], "tool_choice": NAMED}),
    (LISTED, {"tools": [TOOL], "tool_choice": "required"}),
]
TEXTS: list[tuple[Any, dict[str, Any]]] = [
    (f"Once [[sim: {TEXT}]]", {"n": 2, "temperature": 0.5}),
    (f"Once [[sim: {TEXT}]]", {"echo": True, "max_tokens": 5}),
    (f"Once [[sim: {TEXT}]]", {"logprobs": 2, "max_tokens": 9}),
    (f"Once [[sim: {TEXT}]]", {"stop": ["two"], "min_tokens": 2}),
    (HALF, {"max_tokens": 9}),
]
ERRORS = ["error:INTERNAL@0", "error:UNAVAILABLE@0", "error:INVALID_ARGUMENT@0", "error:RESOURCE_EXHAUSTED@3"]
FAULTS = [*ERRORS, "rst@0", "rst@3", "end@0", "end@3"]


MODES: tuple[dict[str, Any], ...] = ({"stream": False}, {"stream": True, "stream_options": {"include_usage": True}})
Answer = tuple[int, str, bytes]


def check_served(answers: list[Answer]) -> None:
    """Streamed and whole, unless the protocol cannot carry the request."""
    for status, _, content in answers:
        assert status == 200 or b"engine does not support" in content, content


class Planes:
    """One protocol's engine behind each of the two planes."""

    def __init__(self, fleet: Fleet, protocol: str, interval: str) -> None:
        sim_flags = ("--allow-scripts", "--speed", "0", "--no-prefix-cache", "--stream-interval", interval)
        # Faults of the one engine must not keep it from the requests after them.
        flags = ("--workers", "1", "--request-timeout-secs", str(LATE_S), "--disable-circuit-breaker", "--data-plane")
        self.gateways = [fleet.launch(protocol, sim_flags=sim_flags, flags=(*flags, plane)) for plane in ("aio", "native")]
        self.model = self.gateways[0].model
        self.clients = [gateway.http() for gateway in self.gateways]
        self._pool = ThreadPoolExecutor(4)

    def answers(self, path: str, body: dict[str, Any]) -> tuple[list[Answer], list[Answer]]:
        """What each plane says to a request, whole and streamed."""
        calls = [(client, {**body, "model": self.model, **mode}) for client in self.clients for mode in MODES]
        first, second, third, fourth = self._pool.map(lambda call: answer(call[0], path, call[1]), calls)
        return [first, second], [third, fourth]

    def close(self) -> None:
        """Ends clients and threads; the gateways are the fleet's."""
        self._pool.shutdown()
        for client in self.clients:
            client.close()


def answer(client: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    """Status, type and bytes of an answer, without what is new each time."""
    reply = client.post(path, json=body)
    content = reply.content
    for pattern, constant in CHANCE:
        content = pattern.sub(constant, content)
    return reply.status_code, reply.headers["content-type"], content


@pytest.fixture(scope="module", params=PROTOCOLS)
def planes(request: pytest.FixtureRequest, module_fleet: Fleet) -> Iterator[Planes]:
    """Messages of one token from one half of the engines, of three from the others."""
    made = Planes(module_fleet, request.param, "3" if request.param in PROTOCOLS[1::2] else "1")
    yield made
    made.close()
    for gateway in made.gateways:
        wait_until(gateway.idle, what="the engine has nothing left to do")


def test_chats(planes: Planes) -> None:
    for marker, fields in CHATS:
        body = {"messages": [{"role": "user", "content": f"Say it. [[sim: {marker}]]"}], "seed": 7, "max_tokens": 200, **fields}
        aio, native = planes.answers(CHAT, body)
        assert native == aio, (marker, fields)
        check_served(aio)


def test_completions(planes: Planes) -> None:
    for prompt, fields in TEXTS:
        aio, native = planes.answers(COMPLETIONS, {"prompt": prompt, "seed": 7, "max_tokens": 60, **fields})
        assert native == aio, (prompt, fields)
        check_served(aio)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_faults(planes: Planes, path: str) -> None:
    for fault in FAULTS:
        text = f"Go on. [[sim: {TEXT} itl_ms=10 fault={fault}]]"
        body = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
        aio, native = planes.answers(path, {**body, "max_tokens": 60})
        assert native == aio, fault


def test_an_engine_that_hangs(planes: Planes) -> None:
    text = f"Go on. [[sim: {TEXT} itl_ms=10 fault=hang@3]]"
    aio, native = planes.answers(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 60})
    assert native == aio
    assert aio[0][0] == 504


def test_an_engine_that_dies(planes: Planes) -> None:
    """The last test: it takes the engines with it."""
    body = {"messages": [{"role": "user", "content": f"Go on. [[sim: {TEXT} itl_ms=10 fault=die@5]]"}], "max_tokens": 60, "stream": True}
    aio, native = (answer(client, CHAT, {**body, "model": planes.model}) for client in planes.clients)
    assert native == aio
