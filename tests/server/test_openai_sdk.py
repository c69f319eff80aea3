"""The SDK that clients use, against the application: everything it parses is where it looks for it."""

import asyncio

import openai
import pytest

from smg.errors import EngineUnavailable
from smg.server.app import App
from smg.types.event import Content, Finished, Reasoning, TokenLogprob, ToolArguments, ToolCall, TopLogprob
from tests.api.fake import HELLO, STARTED, USAGE, FakePipeline, services
from tests.server.serving import serving


def make_app(script=HELLO):
    pipeline = FakePipeline(script)
    return App(services(pipeline)), pipeline


def test_the_openai_sdk_reads_chat_streams():
    score = TokenLogprob(1, b"\xc3", -0.5, (TopLogprob(1, b"\xc3", -0.5),))
    script = [
        [STARTED],
        [Reasoning(0, "hm"), Content(0, "Hé", (score,))],
        [ToolCall(0, 0, "call_1", "f"), ToolArguments(0, 0, '{"a":'), ToolArguments(0, 0, "1}")],
        [Finished(0, "tool_calls")],
        [USAGE],
    ]
    app, _ = make_app(script)

    async def run():
        async with serving(app) as port, openai.AsyncOpenAI(api_key="k", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client:
            fields = {
                "model": "m",
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
                "logprobs": True,
            }
            async with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
                async for _ in stream:
                    pass
                streamed = await stream.get_final_completion()
            return streamed, await client.chat.completions.create(**fields)

    for made in asyncio.run(run()):
        choice = made.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("Hé", "tool_calls")
        assert choice.message.model_extra["reasoning_content"] == "hm"
        assert (choice.message.tool_calls[0].id, choice.message.tool_calls[0].function.arguments) == ("call_1", '{"a":1}')
        assert choice.logprobs.content[0].bytes == [0xC3]
        assert (made.usage.total_tokens, made.usage.prompt_tokens_details.cached_tokens) == (5, 1)


def test_the_openai_sdk_reads_the_rest():
    app, pipeline = make_app()

    async def run():
        async with serving(app) as port, openai.AsyncOpenAI(api_key="k", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client:
            assert [model.id async for model in await client.models.list()] == ["org/m"]
            assert (await client.models.retrieve("alias")).id == "org/m"
            made = await client.completions.create(model="m", prompt=["a", "b"], n=1)
            assert [choice.text for choice in made.choices] == ["Hello", "Hello"]
            parts = [chunk.choices[0].text async for chunk in await client.completions.create(model="m", prompt="a", stream=True)]
            assert "".join(parts) == "Hello"
            with pytest.raises(openai.BadRequestError, match="temperature must be between 0 and 2") as caught:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], temperature=5)
            assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
            pipeline.script = [[STARTED], [Content(0, "a")], EngineUnavailable("the engine went away")]
            with pytest.raises(openai.APIError, match="the engine went away"):
                async for _ in await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True):
                    pass

    asyncio.run(run())
