"""Which events of an engine's stream come before its first token: while only such have come, it may be silent for long."""

import pytest

from smg.pipeline.pour import is_opening

CHUNK = b'data: {"id":"1","choices":[{"index":0,"delta":%s}]}\n\n'


@pytest.mark.parametrize(
    "event",
    [
        b": ping\n\n",
        b":\r\n\r\n",
        b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n',
        b'event: response.in_progress\r\ndata: {"type":"response.in_progress"}\r\n\r\n',
        b'event: message_start\ndata: {"type": "message_start", "message": {}}\n\n',
        b'event: ping\ndata: {"type": "ping"}\n\n',
        CHUNK % b'{"role": "assistant", "content": ""}',
        CHUNK % b'{"role":"assistant","content":""}',
    ],
)
@pytest.mark.parametrize("before", [b"", b"data: 1\n\n"])
def test_openings(event: bytes, before: bytes) -> None:
    assert is_opening(before + event)
    assert not is_opening(event + CHUNK % b'{"content":"Hi"}')


@pytest.mark.parametrize(
    "event",
    [
        CHUNK % b'{"content":"Hi"}',
        b"data: 1\n\n",
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
    ],
)
def test_events_of_an_engine_at_work(event: bytes) -> None:
    assert not is_opening(event)
