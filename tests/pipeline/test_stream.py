"""The stream machine on random token streams: the division into deltas changes nothing, and the way for plain output equals the other."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from smg.engine import EngineDelta, TokenScores
from smg.parser import build
from smg.pipeline.stream import StreamMachine, StreamSpec
from smg.tokenizer import load_tokenizer
from smg.types.event import Content, Event, Finished, Reasoning
from tests.pipeline.fleet import MODEL

TOKENIZER = load_tokenizer(MODEL)
IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30)
CUTS = st.lists(st.integers(0, 30), max_size=5)
ENDS = st.frozensets(st.integers(0, TOKENIZER.vocab_size - 1), max_size=400)


def machine(spec: StreamSpec, *, parsed: bool = False) -> StreamMachine:
    """A machine; `parsed`: with a reasoning parser."""
    parser = build(reasoning="qwen3", tool=None, tools=(), in_think=spec.starts_thinking) if parsed else None
    return StreamMachine(spec, choice=0, decoder=TOKENIZER.decoder(), parser=parser)


def deltas(ids: list[int], cuts: list[int], *, finish: str = "length", scored: bool = False) -> list[EngineDelta]:
    """The ids in pieces, the last one with the finish reason."""
    places = sorted({min(cut, len(ids)) for cut in cuts} | {0, len(ids)})
    parts = [ids[a:b] for a, b in itertools.pairwise(places)]
    made = [EngineDelta(token_ids=part, logprobs=TokenScores(ids=part, values=[-1.0] * len(part)) if scored else None) for part in parts]
    return [*made, EngineDelta(finish=finish)]  # type: ignore[arg-type]


def run(made: StreamMachine, parts: list[EngineDelta]) -> tuple[object, ...]:
    """Everything a client could tell apart, joined."""
    events: list[Event] = [event for part in parts for event in made.feed(part)]
    content = "".join(event.text for event in events if isinstance(event, Content))
    thoughts = "".join(event.text for event in events if isinstance(event, Reasoning))
    scores = [entry.token_id for event in events if isinstance(event, (Content, Reasoning)) for entry in event.logprobs]
    ends = [event for event in events if isinstance(event, Finished)]
    assert len(ends) == 1
    assert isinstance(events[-1], Finished)
    return content, thoughts, scores, ends, made.completion_tokens, made.reasoning_tokens, made.cut


@given(IDS, CUTS, ENDS, st.integers(0, 5), st.booleans())
def test_the_plain_way_equals_the_other(ids: list[int], cuts: list[int], ends: frozenset[int], least: int, include: bool) -> None:
    spec = StreamSpec(tokenizer=TOKENIZER, end_ids=ends, reported_end_ids=ends, min_tokens=least, include_stop=include)
    other = machine(spec)
    other._plain = False
    assert run(machine(spec), deltas(ids, cuts)) == run(other, deltas(ids, cuts))


@given(IDS, CUTS, ENDS, st.lists(st.text(min_size=1, max_size=3), max_size=2), st.booleans(), st.booleans(), st.booleans())
def test_the_division_changes_nothing(
    ids: list[int], cuts: list[int], ends: frozenset[int], stops: list[str], parsed: bool, thinking: bool, scored: bool
) -> None:
    spec = StreamSpec(
        tokenizer=TOKENIZER,
        stop_strings=tuple(stops),
        end_ids=ends,
        reported_end_ids=ends,
        logprobs=scored,
        starts_thinking=parsed and thinking,
    )
    whole = run(machine(spec, parsed=parsed), deltas(ids, [], scored=scored))
    assert run(machine(spec, parsed=parsed), deltas(ids, list(range(31)), scored=scored)) == whole
    assert run(machine(spec, parsed=parsed), deltas(ids, cuts, scored=scored)) == whole


def test_thoughts_held_back_come_in_one_piece() -> None:
    spec = StreamSpec(tokenizer=TOKENIZER, stream_reasoning=False, starts_thinking=True)
    made = machine(spec, parsed=True)
    ids = TOKENIZER.encode("one two three</think>four five")
    events = [event for part in deltas(ids, list(range(31)), finish="stop") for event in made.feed(part)]
    assert [event.text for event in events if isinstance(event, Reasoning)] == ["one two three"]
    assert "".join(event.text for event in events if isinstance(event, Content)) == "four five"
