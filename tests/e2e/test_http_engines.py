"""Real processes: the gateway in front of simulated engines that speak OpenAI's HTTP API, asked by the openai SDK."""

import socket

import httpx
import openai
import pytest

from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import Fleet, Gateway, wait_until
from tests.e2e.test_client_leaves import CHAT, send

MESSAGES = [{"role": "user", "content": "Say something."}]


def scripted(marker: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Go on. [[sim: {marker}]]"}]


@pytest.fixture(scope="module", params=["native", "granian"])
def relayed(request: pytest.FixtureRequest, module_fleet: Fleet) -> Gateway:
    """Two engines behind one gateway, for each front."""
    flags = ("--workers", "1", "--http-front", request.param, "--model-alias", "short=sim-model", "--policy", "round_robin")
    return module_fleet.launch("openai", "openai", sim_flags=SIM_FLAGS, flags=flags)


def test_the_openai_sdk(relayed: Gateway) -> None:
    with relayed.openai() as client:
        assert [model.id for model in client.models.list()] == ["sim-model"]
        for name in ("sim-model", "short"):
            whole = client.chat.completions.create(model=name, messages=MESSAGES)
            parts = list(client.chat.completions.create(model=name, messages=MESSAGES, stream=True, stream_options={"include_usage": True}))
            text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
            assert whole.choices[0].message.content == text == "Grüße aus Köln: 你好 🙂 and so on."
            assert parts[-1].usage == whole.usage or parts[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert client.completions.create(model="short", prompt="Hi").choices[0].text
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="short", messages=MESSAGES, temperature=9)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nobody", messages=MESSAGES)
    wait_until(relayed.idle, what="idle")
    assert all(engine.counters()["started"] for engine in relayed.engines)


def test_what_the_gateway_says_is_what_the_engine_says(relayed: Gateway) -> None:
    body = {"model": "sim-model", "prompt": "Hi", "max_tokens": 3}
    with relayed.http() as http:
        told = [http.post("/v1/completions", json=body)]
        told += [httpx.post(f"{engine.url}/v1/completions", json=body, timeout=30, trust_env=False) for engine in relayed.engines]
    assert len({(reply.status_code, reply.headers["content-type"]) for reply in told}) == 1
    assert len({reply.text.partition('"object"')[2].partition('"created"')[0] for reply in told}) == 1


@pytest.mark.parametrize("fault", ["rst@0", "goaway@0", "error:UNAVAILABLE@0"])
def test_a_fault_before_the_first_byte_is_not_seen(relayed: Gateway, fault: str) -> None:
    """The marker makes every engine fail, so all attempts fail: the error is the gateway's own, and in time."""
    with relayed.openai() as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="short", messages=scripted(f"fault={fault}"))
    assert caught.value.code == "engine_unavailable"
    wait_until(relayed.idle, what="idle")


def test_a_fault_in_mid_stream_is_told(relayed: Gateway) -> None:
    with relayed.openai() as client:
        seen = []
        stream = client.chat.completions.create(model="short", messages=scripted("fault=rst@3"), stream=True)
        with pytest.raises(openai.APIError) as caught:
            seen.extend(stream)
        assert [part.choices[0].finish_reason for part in seen] == [None] * 3
        assert caught.value.code == "engine_unavailable"
    wait_until(relayed.idle, what="idle")


def test_a_query_in_raw_utf8_is_refused(relayed: Gateway) -> None:
    """httpx would encode it, so the bytes go out by hand."""
    url = httpx.URL(relayed.base_url)
    body = b'{"model":"short","prompt":"Hi"}'
    head = f"POST /v1/completions?x=€ HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=20) as client:
        client.sendall(head.encode() + body)
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_work(relayed: Gateway, stream: bool) -> None:
    before = sum(engine.counters()["started"] for engine in relayed.engines)
    with send(relayed, CHAT, {"model": "short", "messages": scripted("ttft_ms=100000"), "stream": stream}):
        wait_until(lambda: sum(engine.counters()["started"] for engine in relayed.engines) == before + 1, what="an engine has it")
    wait_until(relayed.idle, what="idle")


def test_an_engine_that_dies_is_left_out(own_fleet: Fleet) -> None:
    gateway = own_fleet.launch("openai", "openai", sim_flags=SIM_FLAGS)
    gateway.engines[0].kill()
    with gateway.openai() as client:
        for _ in range(6):
            assert client.chat.completions.create(model="sim-model", messages=MESSAGES).choices[0].finish_reason == "stop"
        gateway.engines[1].kill()
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="sim-model", messages=MESSAGES)
        assert caught.value.code in ("no_engine", "engine_unavailable")
        wait_until(lambda: _status(gateway) == 503, what="not ready")


def _status(gateway: Gateway) -> int:
    with gateway.http() as http:
        return http.get("/readiness").status_code


def test_a_model_has_engines_of_one_kind(own_fleet: Fleet) -> None:
    """With both, the engines over gRPC serve it alone, and the log says why the other one does not."""
    gateway = own_fleet.launch("openai", "vllm", sim_flags=SIM_FLAGS, flags=("--workers", "1"))
    with gateway.openai() as client:
        wait_until(lambda: "must be of one kind" in gateway.child.output(), what="told")
        before = gateway.engines[0].counters()["started"]
        for _ in range(4):
            assert client.chat.completions.create(model="sim-model", messages=MESSAGES).system_fingerprint
    assert gateway.engines[0].counters()["started"] == before
