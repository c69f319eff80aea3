"""Every tool grammar with generated calls: names, nested arguments, unicode, quotes, marks inside texts, cut anywhere, stray marks."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smg.parser import TOOLS, marks
from tests.parser.oracle import Made, Outcome, Setting, check_clean, check_splits, pieces_of, tools_named
from tests.parser.writers import MORE_WRITERS, SCHEMA, TOOL_WRITERS, Calls, Writer

NAMES = ("f", "get_weather", "mcp__mail-x__list_all", "run_code")
TOOLS_GIVEN = tools_named(*NAMES, **SCHEMA)
FORMS = [*TOOL_WRITERS.items(), *MORE_WRITERS]
FRAGMENTS = (
    "<tool_call>",
    "</tool_call>",
    "</function>",
    "[ARGS]",
    "[TOOL_CALLS]",
    "```",
    "<think>",
    "</think>",
    '"}',
    "]}",
    "<|call|>",
    "<",
    "a",
)
EXAMPLES = settings(
    max_examples=int(os.environ.get("SMG_EXAMPLES", "8")), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

characters = st.characters(exclude_categories=("Cs",), exclude_characters="\r")
texts = st.lists(st.one_of(st.text(characters, max_size=6), st.sampled_from(FRAGMENTS)), max_size=4).map("".join)
numbers = st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False, width=32))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts.filter(bool), inner, max_size=3)),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "s": texts,
        "t": texts.filter(lambda text: text.strip().lower() not in ("null", "none")),
        "i": st.integers(-(10**9), 10**9),
        "n": numbers,
        "b": st.booleans(),
        "o": st.dictionaries(texts.filter(bool), values, max_size=3),
        "a": st.lists(values, max_size=3),
    },
)
calls_made = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)


def allowed(writer: Writer, calls: Calls) -> bool:
    """Formats without an escape cannot say everything: those outputs are ambiguous by design."""
    raw = json.dumps([values for _, values in calls], ensure_ascii=False)
    return not any(text in raw for text in (*writer.forbidden, *(json.dumps(text)[1:-1] for text in writer.forbidden)))


def told(calls: Calls) -> list[tuple[str, object]]:
    return [(name, values) for name, values in calls]


def read(outcome: Outcome) -> list[tuple[str, object]]:
    return [(call.name, call.value()) for call in outcome.calls]


@pytest.mark.parametrize(("family", "writer"), FORMS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FORMS)])
@EXAMPLES
@given(calls=calls_made, seed=st.integers(0, 99))
def test_calls_come_back(family: str, writer: Writer, calls: Calls, seed: int) -> None:
    if not allowed(writer, calls):
        return
    setting = Setting(tool=family, tools=TOOLS_GIVEN)
    text = writer.write(calls)
    whole = setting.outcome([text])
    assert read(whole) == told(calls)
    assert (whole.content, whole.reasoning) == ("", "")
    assert setting.outcome(list(text)) == whole
    assert setting.outcome(pieces_of(text, seed)) == whole


@pytest.mark.parametrize(("family", "writer"), FORMS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FORMS)])
@EXAMPLES
@given(calls=calls_made, data=st.data())
def test_cut_anywhere(family: str, writer: Writer, calls: Calls, data: st.DataObject) -> None:
    """A cut output gives the calls that were complete; the last one is complete too or is no JSON; no mark is shown."""
    if not allowed(writer, calls):
        return
    setting = Setting(tool=family, tools=TOOLS_GIVEN)
    text = writer.write(calls)
    cut = text[: data.draw(st.integers(0, len(text)))]
    whole = check_splits(setting, cut, cuts=5)
    check_cut(whole, calls)
    check_clean(whole, [mark for mark in marks(None, family) if len(mark) > 2 and not any(mark in str(v) for v in calls)])


def check_cut(whole: Outcome, calls: Calls) -> None:
    assert [call.name for call in whole.calls] == [name for name, _ in calls][: len(whole.calls)]
    for call, (_, values) in zip(whole.calls, calls, strict=False):
        if call is not whole.calls[-1] or valid(call):
            assert call.value() == values


def valid(call: Made) -> bool:
    try:
        call.value()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("family", TOOLS.names())
@EXAMPLES
@given(data=st.data())
def test_stray_marks_lose_no_text(family: str, data: st.DataObject) -> None:
    """Marks in any order between words: nothing raises, every split agrees, and no word is lost."""
    words = ("one", "two ", "\n", "{", "}", '"a":', "[", "f(", "=", "1", '{"name": "f", "arguments": {"s": "x"}}')
    parts = data.draw(st.lists(st.sampled_from([*words, *marks(None, family)]), max_size=12))
    check_splits(Setting(tool=family, tools=TOOLS_GIVEN), "".join(parts), cuts=8)


def test_every_family_has_a_writer() -> None:
    assert sorted(TOOL_WRITERS) == sorted(TOOLS.names())
