"""The OpenAI-compatible engine, through the openai SDK and raw HTTP."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from smg.sim.server import Sim
from tests.sim.client import PROMPT, idle, play, until


def client_of(sim: Sim) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0, timeout=30, http_client=http)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_chat_whole_and_streamed() -> None:
    async def scene(sim: Sim) -> None:
        async with client_of(sim) as client:
            whole = await client.chat.completions.create(model="sim-model", messages=user(PROMPT), logprobs=True, top_logprobs=2)
            assert whole.choices[0].message.content == PROMPT
            assert whole.choices[0].finish_reason == "stop"
            assert whole.choices[0].logprobs is not None
            assert len(whole.choices[0].logprobs.content or []) == whole.usage.completion_tokens  # type: ignore[union-attr]
            stream = await client.chat.completions.create(
                model="sim-model", messages=user(PROMPT), n=2, stream=True, stream_options={"include_usage": True}
            )
            texts, usage = ["", ""], None
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
            assert texts == [PROMPT, f"(1) {PROMPT}"]
            assert usage is not None
            assert usage.prompt_tokens == whole.usage.prompt_tokens  # type: ignore[union-attr]
            assert usage.prompt_tokens_details.cached_tokens > 0  # type: ignore[union-attr]

    play(scene, protocol="openai")


@pytest.mark.parametrize("stream", [True, False])
def test_stop_strings_are_cut_off(stream: bool) -> None:
    async def scene(sim: Sim) -> None:
        async with client_of(sim) as client:
            answer = await client.completions.create(
                model="sim-model", prompt="Hello there, how are you?", stop=["w are", "zzzzzz"], stream=stream
            )
            text = "".join([chunk.choices[0].text async for chunk in answer]) if stream else answer.choices[0].text  # type: ignore[union-attr]
            assert text == "Hello there, ho"

    play(scene, protocol="openai")


def test_text_of_many_scripts_comes_whole() -> None:
    text = "Grüße 👩‍💻 und 你好，世界 🎉"

    async def scene(sim: Sim) -> None:
        async with client_of(sim) as client:
            stream = await client.chat.completions.create(model="sim-model", messages=user(text), stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == text

    play(scene, protocol="openai")


def test_template_branches() -> None:
    async def scene(sim: Sim) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.url) as client:

            async def rendered(**body: Any) -> str:
                answer = (await client.post("/tokenize", json={"messages": user("Hi"), **body})).raise_for_status().json()
                assert answer["count"] == len(answer["tokens"])
                return sim.engine.model.decode(answer["tokens"], skip_special_tokens=False)

            plain = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            assert await rendered() == plain
            assert await rendered(chat_template_kwargs={"enable_thinking": False}) == f"{plain}<think>\n\n</think>\n\n"
            tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
            with_tools = await rendered(tools=[tool])
            assert json.dumps(tool) in with_tools
            assert with_tools.endswith(plain)
            refused = await client.post("/tokenize", json={"messages": [{"role": "clown", "content": "x"}]})
            assert refused.status_code == 400
            assert "Unknown role" in refused.json()["error"]["message"]

    play(scene, protocol="openai")


def test_errors() -> None:
    async def scene(sim: Sim) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.url) as client:
            for body, status in [
                (b"{", 400),
                (b'{"prompt": "x", "max_tokens": "many"}', 400),
                (b'{"prompt": "x", "model": "other"}', 404),
                (b"{}", 400),
                (b'{"prompt": "[[sim: fault=error:503]]"}', 503),
            ]:
                answer = await client.post("/v1/completions", content=body)
                assert (answer.status_code, "error" in answer.json()) == (status, True), body
            assert (await client.get("/nowhere")).status_code == 404
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "sim-model"
            assert "vllm:num_requests_running" in (await client.get("/metrics")).text

    play(scene, protocol="openai")


@pytest.mark.parametrize("fault", ["rst", "goaway", "die"])
def test_broken_streams(fault: str) -> None:
    async def scene(sim: Sim) -> None:
        body = {"prompt": f"Hi [[sim: tokens=50 fault={fault}@2]]", "stream": True}
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.url) as client:
            with pytest.raises(httpx.TransportError):
                await client.post("/v1/completions", json=body)
        assert sim.died.is_set() is (fault == "die")

    play(scene, protocol="openai")


def test_soft_faults_in_a_stream() -> None:
    async def scene(sim: Sim) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.url) as client:

            async def lines(fault: str) -> list[str]:
                body = {"prompt": f"Hi [[sim: tokens=50 fault={fault}@2]]", "stream": True}
                return [line for line in (await client.post("/v1/completions", json=body)).text.splitlines() if line]

            assert len(await lines("end")) == 2
            assert "error" in json.loads((await lines("error"))[-1].removeprefix("data: "))

    play(scene, protocol="openai")


def test_a_client_that_leaves_stops_the_work() -> None:
    async def scene(sim: Sim) -> None:
        for stream in (True, False):
            body = {"prompt": "Hi [[sim: tokens=100000 itl_ms=3]]", "stream": stream}
            before = sim.counters.aborted
            async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=sim.url) as client:
                task = asyncio.ensure_future(client.post("/v1/completions", json=body))
                await until(lambda: sim.counters.running == 1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await idle(sim)
            assert sim.counters.aborted == before + 1

    play(scene, protocol="openai")
