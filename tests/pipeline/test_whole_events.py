"""Event streams cut anywhere (known bug B104), and token counts found without decoding."""

import pytest

from smg.errors import EngineProtocol
from smg.pipeline import whole_events
from smg.pipeline.usage import usage_in
from smg.pipeline.whole_events import WholeEvents

LF = 'data: {"a": "北京"}\n\nevent: b\ndata: 1\ndata: 2\n\n: comment\n\ndata: [DONE]\n\n'.encode()
STREAMS = [LF, LF.replace(b"\n", b"\r\n"), LF.replace(b"\n", b"\r"), LF[:-2], LF + b"data: half", b"\n\n" + LF, b"no event at all"]


@pytest.mark.parametrize("data", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
def test_bytes_stay_and_cuts_are_between_events(data: bytes, size: int) -> None:
    events, seen = WholeEvents(), b""
    for at in range(0, len(data), size):
        piece = events.feed(data[at : at + size])
        seen += piece
        assert not piece or piece.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
        arrived = data[: at + size]
        latest = max(arrived.rfind(end) + len(end) if end in arrived else 0 for end in (b"\n\n", b"\r\n\r\n", b"\r\r"))
        assert len(seen) == latest, "an event leaves with its last byte"
    assert seen + events.rest == data


def test_a_piece_of_whole_events_is_passed_on_as_it_is() -> None:
    piece = b"data: 1\n\ndata: 2\n\n"
    assert WholeEvents().feed(piece) is piece


def test_an_event_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_events, "LONGEST_EVENT", 100)
    events = WholeEvents()
    events.feed(b"x" * 100)
    with pytest.raises(EngineProtocol):
        events.feed(b"x")


@pytest.mark.parametrize(
    ("data", "counts"),
    [
        (b'{"choices":[],"usage":{"prompt_tokens":10,"total_tokens":18,"completion_tokens":8,"x":{"cached_tokens":3}}}', (10, 8)),
        (b'{"usage": {\n "input_tokens": 7,\n "output_tokens": 9}}', (7, 9)),
        (b'{"usage":{"prompt_tokens":5,"total_tokens":5}}', (5, 0)),
        (
            b'data: {"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
            (1, 2),
        ),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}', (0, 0)),
        (b'{"usage":null}', (0, 0)),
        (b'{"type":"usage"}', (0, 0)),
        (b'{"usage":{"prompt_tokens":99999999999999999999}}', (0, 0)),
        (b"", (0, 0)),
    ],
)
def test_counts(data: bytes, counts: tuple[int, int]) -> None:
    assert usage_in(data) == counts
