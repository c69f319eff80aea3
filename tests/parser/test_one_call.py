"""`parallel_tool_calls: false`: the answer ends where a second call begins, in every family and every division."""

import pytest

from smg.parser import TOOLS, build
from tests.parser.oracle import Outcome, alike, joined, pieces_of, tools_named
from tests.parser.writers import SCHEMA, TOOL_WRITERS

GIVEN = tools_named("f", "g", **SCHEMA)


def outcome(family: str, deltas: list[str], *, parallel: bool = False) -> Outcome:
    made = [build(reasoning=None, tool=family, tools=GIVEN, parallel=parallel, native=native) for native in (False, True)]
    assert made[0] is not None
    assert made[1] is not None
    pieces = [piece for found in alike(made[0], made[1], deltas) for piece in found]
    return joined(pieces + [piece for parser in made for piece in (*parser.feed("x"), *parser.finish())])


@pytest.mark.parametrize("family", TOOLS.names())
def test_only_the_first_call_is_told(family: str) -> None:
    text = TOOL_WRITERS[family].write([("f", {"s": "x"}), ("g", {"i": 1}), ("f", {})])
    for deltas in ([text], list(text), pieces_of(text, 1)):
        found = outcome(family, deltas)
        assert [(call.name, call.value()) for call in found.calls] == [("f", {"s": "x"})]
        assert found.content == ""
    assert len(outcome(family, [text], parallel=True).calls) == 3


def test_text_stays_until_the_second_call() -> None:
    text = 'a<tool_call>{"name": "f", "arguments": {}}</tool_call>b<tool_call>{"name": "g", "arguments": {}}</tool_call>c'
    assert outcome("hermes", list(text)).content == "ab"
    assert outcome("hermes", [text[: text.index("</tool_call>c")]]).content == "ab"


@pytest.mark.parametrize("native", [False, True])
def test_it_says_that_the_engine_may_stop(native: bool) -> None:
    parser = build(reasoning=None, tool="hermes", tools=GIVEN, parallel=False, native=native)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parser.feed(call)
    assert parser.ended is False
    parser.feed(call)
    assert parser.ended is True


def test_nothing_is_held_to_one_call_without_tools() -> None:
    assert build(reasoning=None, tool="hermes", parallel=False) is None
    assert not getattr(build(reasoning="qwen3", tool="hermes", parallel=False), "ended", False)
