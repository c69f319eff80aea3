"""Outputs that nobody meant: of every family, with thoughts and prose around, then damaged. Nothing raises, every division gives the
same, no word comes twice, and none is lost of an output that was whole."""

import os
import random
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smg._ext import Collector
from smg.parser import REASONING, TOOLS, build, marks
from tests.parser.oracle import Outcome, Setting, pieces_of, tools_named
from tests.parser.test_contract import steps_of
from tests.parser.writers import MORE_WRITERS, SCHEMA, TOOL_WRITERS, Writer

NAMES = ("f", "get_weather", "mcp__mail-x__list_all")
GIVEN = tools_named(*NAMES, **SCHEMA)
FORMS = [*TOOL_WRITERS.items(), *MORE_WRITERS]
WORD = re.compile(r"W\d+w")
# Beside marks and at ends: combining and invisible characters, brackets of every kind, beginnings of marks, words of other languages.
ODD = (
    *("é", "東", "🤣", "\u200b", "\ufeff", "ﬀ", "\u0301", "\x00", "\x7f", "\n", "\n\n", " ", "\t"),
    *("<", "</", "<|", "<｜", ">", "[", "]", "{", "}", '"', "'", "\\", "`", "|", "｜", "▁", "=", ",", ":", "&amp;", "null", "None", "true"),
)
EXAMPLES = settings(
    max_examples=int(os.environ.get("SMG_EXAMPLES", "12")), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


class Case:
    """One output, drawn from a seed: `text` as it was meant, `damaged` as it came."""

    def __init__(self, family: str, writer: Writer, seed: int) -> None:
        self._source = random.Random(seed)
        self._words = 0
        channels = TOOLS.get(family).channels
        reasoning = self._source.choice([None, *(name for name, spec in REASONING if spec.channels == channels)])
        self.marks = marks(reasoning, family)
        in_think = reasoning is not None and self._source.random() < 0.3
        self.setting = Setting(tool=family, reasoning=reasoning, tools=GIVEN, in_think=in_think)
        calls = [(self._source.choice(NAMES), self._arguments()) for _ in range(self._source.randrange(1, 3))]
        parts = [writer.write(calls)]
        if not channels:
            parts = [self._prose(), "\n", *parts, self._prose()]
        if reasoning and not channels:
            spec = REASONING.get(reasoning)
            parts = ["" if in_think else spec.starts[0], self._prose(), spec.ends[0], *parts]
        self.text = "".join(parts)
        self.speaks_for_itself = not any(mark in str(calls) for mark in (*self.marks, *writer.forbidden) if len(mark) > 1)
        self.damaged = self._damaged(self.text)

    def _word(self) -> str:
        self._words += 1
        return f"W{self._words}w"

    def _prose(self) -> str:
        return "".join(self._source.choice((self._word(), self._source.choice(ODD))) for _ in range(self._source.randrange(5)))

    def _value(self) -> str:
        choices = (self._word(), self._source.choice(ODD), self._source.choice(self.marks or ("x",)))
        return "".join(self._source.choice(choices) for _ in range(self._source.randrange(4)))

    def _arguments(self) -> dict[str, object]:
        made = {
            "s": self._value(),
            "t": self._value(),
            "i": 7,
            "o": {self._value() or "k": [self._value(), None]},
            "a": [self._value(), {}],
        }
        return {key: value for key, value in made.items() if self._source.random() < 0.5}

    def _damaged(self, text: str) -> str:
        for _ in range(self._source.randrange(1, 4)):
            at = self._source.randrange(len(text) + 1)
            end = min(len(text), at + self._source.randrange(1, 20))
            mark = self._source.choice(self.marks or ("x",))
            text = self._source.choice(
                (
                    text[:at] + text[end:],
                    text[:end] + text[at:end] + text[end:],
                    text[:at] + mark + text[at:],
                    text[:at],
                    text[:at] + self._source.choice(ODD) + text[at:],
                    text.replace(mark, "", 1),
                    text[:at] + mark[: self._source.randrange(len(mark) + 1)] + text[at:],
                )
            )
        return text


def said(outcome: Outcome) -> list[str]:
    calls = [part for call in outcome.calls for part in (call.name, call.arguments, call.id or "")]
    return WORD.findall(" ".join([outcome.content, outcome.reasoning, *calls]))


def divided(case: Case, text: str, seed: int) -> Outcome:
    """The outcome, the same for every division that is tried."""
    whole = case.setting.outcome([text])
    assert case.setting.outcome(list(text)) == whole
    assert case.setting.outcome(pieces_of(text, seed)) == whole
    cut = random.Random(seed).randrange(len(text) + 1)
    assert case.setting.outcome([text[:cut], text[cut:]]) == whole
    return whole


@pytest.mark.parametrize(("family", "writer"), FORMS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FORMS)])
@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_outputs_that_were_damaged(family: str, writer: Writer, seed: int) -> None:
    case = Case(family, writer, seed)
    words = said(divided(case, case.damaged, seed))
    assert all(words.count(word) <= max(case.damaged.count(word), without(case.damaged, case.marks).count(word)) for word in words)


def without(text: str, marks: tuple[str, ...]) -> str:
    """The text with its marks taken out, where two halves of a word may meet."""
    for mark in sorted(marks, key=len, reverse=True):
        text = text.replace(mark, "")
    return text


@pytest.mark.parametrize(("family", "writer"), FORMS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FORMS)])
@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_outputs_that_are_whole(family: str, writer: Writer, seed: int) -> None:
    case = Case(family, writer, seed)
    if case.speaks_for_itself:
        assert sorted(said(divided(case, case.text, seed))) == sorted(WORD.findall(case.text))


@pytest.mark.parametrize("family", TOOLS.names())
def test_outputs_cut_at_every_character(family: str) -> None:
    """And an end that is told twice is told once."""
    text = TOOL_WRITERS[family].write([("f", {"s": 'a "é東🤣"', "i": 7}), ("get_weather", {})])
    setting = Setting(tool=family, tools=GIVEN)
    for cut in range(len(text) + 1):
        assert setting.outcome(list(text[:cut])) == setting.outcome([text[:cut]])
        parser = build(reasoning=None, tool=family, tools=GIVEN)
        assert parser is not None
        parser.feed(text[:cut])
        parser.finish()
        assert parser.finish() == []


@pytest.mark.parametrize("family", TOOLS.names())
def test_steps_of_what_repeats(family: str) -> None:
    """O5: anything, again and again, costs at most twice as much when there is twice as much of it."""
    source = random.Random(family)
    for _ in range(3):
        many = [*marks(None, family), *ODD, "a" * 100, " " * 100, '{"name": "f", "arguments": {"s": "', "f("]
        unit = "".join(source.choice(many) for _ in range(source.randrange(1, 5)))
        lead = source.choice(["", TOOL_WRITERS[family].write([("f", {"s": "x"})])[: source.randrange(60)]])
        for native in (False, True):
            few, twice = (steps(family, lead + unit * (repeats * (1_000 // len(unit) + 1)), native) for repeats in (1, 2))
            assert twice < 2.4 * few + 3_000, (lead, unit)


def steps(family: str, text: str, native: bool) -> int:
    parser = build(reasoning=None, tool=family, tools=GIVEN, native=native)
    assert parser is not None
    done = sum(steps_of(lambda at=at: parser.feed(text[at : at + 4])) for at in range(0, len(text), 4)) + steps_of(parser.finish)
    return parser.work if isinstance(parser, Collector) else done


@pytest.mark.parametrize("family", TOOLS.names())
def test_nesting_without_end(family: str) -> None:
    """Deeper than Python may recurse, in values of every type, and in arguments that are a text."""
    for values in ({"a": "[" * 20_000}, {"o": '{"a":' * 5_000}, {"s": "[" * 20_000}, {"a": "(" * 9_000}, {"o": "[" * 9_000}):
        text = TOOL_WRITERS[family].write([("f", values)])
        assert Setting(tool=family, tools=GIVEN).outcome([text]).calls[0].name == "f"


@pytest.mark.parametrize("inner", ["[" * 20_000, '{"a":' * 5_000])
def test_text_arguments_that_nest_without_end_stay_text(inner: str) -> None:
    arguments = '"' + inner.replace('"', '\\"') + '"'
    found = Setting(tool="hermes", tools=GIVEN).outcome([f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>'])
    assert found.calls[0].arguments == arguments


CIRCLES = {
    "itself": {"$ref": "#/properties/itself"},
    "many": {"anyOf": [{"$ref": "#/properties/many"}] * 40},
    "other": {"oneOf": [{"$ref": "#/properties/many"}, {"$ref": "#/properties/other"}, {"type": "integer"}]},
    "list": {"items": {"$ref": "#/properties/list"}},
    "nowhere": {"$ref": "#/no/where"},
    "broken": {"anyOf": [3, None, {"type": 7}], "type": {}, "properties": []},
}


@pytest.mark.parametrize("family", ["qwen_xml", "minimax_m3", "glm45_moe", "pythonic", "kimi_k3"])
@pytest.mark.parametrize("key", CIRCLES)
def test_schemas_that_lead_in_circles(family: str, key: str) -> None:
    """Each place of a schema is looked at once: forty ways back to the same one were forty to the eighth steps."""
    tools = tools_named("f", **CIRCLES)
    text = TOOL_WRITERS[family].write([("f", {key: 7})])
    count = steps_of(lambda: Setting(tool=family, tools=tools).outcome([text]))
    assert count < 10_000
    assert Setting(tool=family, tools=tools).outcome([text]).calls[0].value() in ({key: 7}, {key: "7"})
