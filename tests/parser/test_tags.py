"""Forced calls in the families' own formats: what the tags let an engine write, the family's parser reads."""

import json
import random
from typing import Any

import pytest

from smg.parser import TOOLS, forced_tags
from tests.parser.oracle import Setting, check_splits, tools_named

SCHEMAS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "get_weather": {},
}
GIVEN = tools_named(*SCHEMAS)
TAGGED = ("openai", "inkling", "kimik2", "mistral")


def written(form: Any, source: random.Random, calls: list[str]) -> str:
    """One text that a format allows; `calls`: the tools that are called, in order, which this decides."""
    match form["type"]:
        case "triggered_tags":
            assert form["at_least_one"]
            first = [tag for tag in form["tags"] if tag["begin"].startswith(form["triggers"][0])]
            later = [tag for tag in form["tags"] if tag["begin"].startswith(form["triggers"][-1])]
            chosen = [source.choice(first), *([] if form["stop_after_first"] else [source.choice(later)])]
            assert all(any(tag["begin"].startswith(trigger) for trigger in form["triggers"]) for tag in form["tags"])
            return "".join(one(tag, source, calls) for tag in chosen)
        case "tags_with_separator":
            chosen = source.choices(form["tags"], k=1 if form["stop_after_first"] else 2)
            return form["separator"].join(one(tag, source, calls) for tag in chosen)
        case "sequence":
            return "".join(written(part, source, calls) for part in form["elements"])
        case "const_string":
            return form["value"]
        case "regex":
            assert form["pattern"] == "[0-9]+"
            return str(len(calls))
        case "json_schema":
            return json.dumps({"a": len(calls)})
    raise AssertionError(form)


def one(tag: Any, source: random.Random, calls: list[str]) -> str:
    calls += [name for name in SCHEMAS if name in tag["begin"].replace("functions", "")]
    end = tag["end"] or ("<|call|>" if "<|message|>" in tag["begin"] else "")  # Harmony's own end is a stop token
    return tag["begin"] + written(tag["content"], source, calls) + end


def tags(family: str, **how: Any) -> Any:
    told = forced_tags(family, SCHEMAS, **how)
    assert told is not None
    made = json.loads(told)
    assert made["type"] == "structural_tag"
    return made["format"]


@pytest.mark.parametrize("family", TAGGED)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", [{}, {"parallel": False}, {"named": "f"}, {"named": "get_weather", "parallel": False}])
def test_what_tags_allow_is_read_as_calls(family: str, seed: int, how: dict[str, Any]) -> None:
    called: list[str] = []
    text = written(tags(family, **how), random.Random(seed), called)
    found = check_splits(Setting(tool=family, tools=GIVEN), text, cuts=20)
    assert [call.name for call in found.calls] == called
    assert all(isinstance(call.value(), dict) for call in found.calls)
    assert found.content == ""
    if how:
        assert len(called) == 1
    if "named" in how:
        assert called == [how["named"]]


@pytest.mark.parametrize("family", TAGGED)
def test_every_tool_can_be_called(family: str) -> None:
    told = json.dumps(tags(family))
    assert all(name in told for name in SCHEMAS)
    assert json.dumps(SCHEMAS["f"]) in told


def test_other_families_are_held_to_a_schema() -> None:
    for name in TOOLS.names(aliases=True):
        same = any(TOOLS.get(name) is TOOLS.get(tagged) for tagged in TAGGED)
        assert (forced_tags(name, SCHEMAS) is not None) is same
    assert forced_tags("none", SCHEMAS) is None
