"""Streams of engines over HTTP that have no framing: whether they are whole is told by their last event alone."""

import pytest

from tests.engine.http.upstream import answer
from tests.server.relaying import config, relaying
from tests.server.test_relay import ASKED, FRONTS, idle, run, saying

UNFRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_stream_without_framing_that_has_no_last_event_is_broken_off(front: str, path: str) -> None:
    """An engine that dies closes its connections as one does that has come to its end."""
    script = saying(UNFRAMED + b'data: {"n":1,"text":"\\ndata: [DONE]"}\n\n', b": ping\n\n", b'data: {"half', close=True)

    async def scene() -> None:
        async with relaying(script, saying(answer()), front=front, made=config(routing={"policy": "passthrough"})) as gateway:
            reply = await gateway.http.post(path, json={**ASKED, "stream": True})
            assert reply.content.startswith(b'data: {"n":1,"text":"\\ndata: [DONE]"}\n\n: ping\n\n')
            assert b"engine_unavailable" in reply.content or b"overloaded_error" in reply.content
            assert b"half" not in reply.content
            await idle(gateway)
            assert sum(gateway.counted("smg_router_request_errors_total").values()) == 1
            assert sum(gateway.counted("smg_worker_errors_total").values()) == 1

    run(scene())


def test_a_stream_without_framing_that_has_only_a_head_goes_to_another_engine() -> None:
    async def scene() -> None:
        made = config(routing={"policy": "passthrough"})
        whole = UNFRAMED + b"data: 1\n\ndata: [DONE]\n\n"
        async with relaying(saying(UNFRAMED, close=True), saying(whole, close=True), made=made) as gateway:
            reply = await gateway.http.post("/v1/chat/completions", json={**ASKED, "stream": True})
            assert reply.content == b"data: 1\n\ndata: [DONE]\n\n"
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/chat/completions", (b"data: [DONE]\n\n",)),
        ("/v1/chat/completions", (b"data:[DONE]\r\n\r\n", b": ping\n\n")),
        ("/v1/chat/completions", (b"data: [DONE]",)),
        ("/v1/chat/completions", (b'data: {"choices":[{"finish_reason": "stop"}]}\n\n', b'data: {"choices":[],"usage":{}}\n\n')),
        ("/v1/completions", (b'data: {"error": {"message": "out of memory"}}\n\n',)),
        ("/v1/messages", (b'event: message_stop\ndata: {"type":"message_stop"}\n\n',)),
        ("/v1/messages", (b'event: error\ndata: {"type":"error"}\n\n',)),
        ("/v1/responses", (b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',)),
        ("/v1/responses", (b'data: {"type":"response.incomplete"}\n\n',)),
        ("/generate", (b"data: 2\n\n",)),
        ("/v1/audio/transcriptions", (b"data: 2\n\n",)),
    ],
)
def test_a_stream_without_framing_that_has_a_last_event_is_whole(front: str, path: str, last: tuple[bytes, ...]) -> None:
    """Elsewhere nobody knows how a stream ends."""

    async def scene() -> None:
        async with relaying(saying(UNFRAMED, b'data: {"finish_reason":null}\n\n', *last, close=True), front=front) as gateway:
            if "audio" in path:
                reply = await gateway.http.post(path, data={"model": "org/m", "stream": "true"}, files={"file": b"x"})
            else:
                reply = await gateway.http.post(path, json={**ASKED, "stream": True})
            assert reply.content == b'data: {"finish_reason":null}\n\n' + b"".join(last)
            await idle(gateway)
            assert not gateway.counted("smg_router_request_errors_total")

    run(scene())
