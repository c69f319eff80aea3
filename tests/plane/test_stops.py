"""Stop strings through the chat sink against `StopMatcher`, over texts made to match, overlap and break off."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from smg._ext import ChatSink, FieldTable, StopStrings, Vocabulary
from smg.engine import field_table
from smg.pb import vllm_engine_pb2 as pb
from smg.pipeline.stop import StopMatcher

ALPHABET = "abé€😀\n"
VOCABULARY = Vocabulary([letter.encode() for letter in ALPHABET], ())
TABLE = FieldTable(field_table(pb.GenerateResponse.DESCRIPTOR))
words = st.text(ALPHABET, min_size=1, max_size=5)


def natively(text: str, stops: tuple[str, ...], armed_after: int, include: bool) -> tuple[str, object]:
    written: list[bytes] = []
    sink = ChatSink(
        TABLE, VOCABULARY, StopStrings(stops),
        choices=1, ends=(), reported=(), min_tokens=armed_after, skip_special=True, include_stop=include, prompt_tokens=1,
        prefix=b'data: {"id":"x"', tail=b"}\n\n", write=written.append, done=lambda *_: None,
    )  # fmt: skip
    for letter in text:
        sink.feed(pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=[ALPHABET.index(letter)])).SerializeToString())
    sink.feed(pb.GenerateResponse(complete=pb.GenerateComplete(finish_reason="stop")).SerializeToString())
    chunks = [json.loads(part.removeprefix(b"data: ")) for part in b"".join([*written, sink.last]).split(b"\n\n") if part]
    choices = [chunk["choices"][0] for chunk in chunks]
    return "".join(choice["delta"].get("content", "") for choice in choices), choices[-1].get("matched_stop")


@settings(max_examples=500, deadline=None)
@given(
    text=st.text(ALPHABET, max_size=40), stops=st.lists(words, min_size=1, max_size=6), armed_after=st.integers(0, 5), include=st.booleans()
)
@example(text="aab", stops=["aab", "ab"], armed_after=0, include=False)
@example(text="abab\n", stops=["b", "abab\n"], armed_after=4, include=False)
def test_stop_strings(text: str, stops: list[str], armed_after: int, include: bool) -> None:
    twin = StopMatcher(tuple(stops), include=include)
    shown = "".join(twin.feed(letter, armed=i >= armed_after) for i, letter in enumerate(text)) + twin.finish()
    assert natively(text, tuple(stops), armed_after, include) == (shown, twin.matched)


def test_stop_strings_without_meaning() -> None:
    assert natively("ab", ("\ud800", "b"), 0, False) == ("a", "b")
