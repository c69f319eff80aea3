"""Forced calls in the families' own formats: what the tags let an engine write, the family's parser reads, and what models write fits.

xgrammar itself needs torch, so it is not asked here. A regular expression made of the tags stands for its grammar, without the arguments.
"""

import json
import random
import re
from typing import Any

import pytest

from smg.parser import TOOLS, forced_tags
from tests.parser.oracle import Setting, check_splits, tools_named
from tests.parser.writers import MORE_WRITERS, TOOL_WRITERS

SCHEMAS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "get_weather": {},
}
GIVEN = tools_named(*SCHEMAS)
TAGGED = ("openai", "inkling", "kimik2", "mistral")
THINKERS = {"openai": "openai_gptoss", "inkling": "inkling"}
THOUGHTS = {
    "openai": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    "inkling": "<|content_thinking|>hm<|end_message|><|message_model|>",
}


ONE: list[tuple[str, dict[str, object]]] = [("f", {"a": 1})]
OTHER: list[tuple[str, dict[str, object]]] = [("get_weather", {})]
MARKED = [writer for name, writer in MORE_WRITERS if name == "mistral" and writer.write(ONE).startswith("[TOOL_CALLS]f[ARGS]")]


class Author:
    """Writes one text that a format allows, and notes which tools it calls."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.calls: list[str] = []
        self.thoughts = ""

    def write(self, form: Any) -> str:
        match form["type"]:
            case "sequence":
                return "".join(self.write(part) for part in form["elements"])
            case "or":
                return self.write(self.source.choice(form["elements"]))
            case "tag":
                return form["begin"] + self.write(form["content"]) + form["end"]
            case "tags_with_separator":
                count = self.source.randint(int(form["at_least_one"]), 1 if form["stop_after_first"] else 3)
                return form["separator"].join(self.write(tag) for tag in self.source.choices(form["tags"], k=count))
            case "const_string":
                return form["value"]
            case "regex":
                return self.spell(form["pattern"])
            case "any_text":
                self.thoughts += "a thought"
                return "a thought"
            case "json_schema":
                self.calls += [name for name, schema in SCHEMAS.items() if form["json_schema"] == (schema or {"type": "object"})]
                return json.dumps({"a": len(self.calls)})
        raise AssertionError(form)

    def spell(self, pattern: str) -> str:
        """A text of the few kinds of patterns that there are: digits, and optional blanks and names."""
        text = pattern.replace("[0-9]+", str(len(self.calls)))
        text = re.sub(r"\((\w+)\)\?", lambda match: self.source.choice(["", match[1]]), text)
        text = re.sub(r" \?", lambda _: self.source.choice(["", " "]), text)
        text = re.sub(r"\\(.)", r"\1", text)
        assert re.fullmatch(pattern, text)
        return text


def pattern_of(form: Any) -> str:
    """The format as a regular expression, in which all arguments are alike."""
    match form["type"]:
        case "sequence":
            return "".join(map(pattern_of, form["elements"]))
        case "or":
            return f"(?:{'|'.join(map(pattern_of, form['elements']))})"
        case "tag":
            return re.escape(form["begin"]) + pattern_of(form["content"]) + re.escape(form["end"])
        case "tags_with_separator":
            one = f"(?:{'|'.join(map(pattern_of, form['tags']))})"
            more = "" if form["stop_after_first"] else f"(?:{re.escape(form['separator'])}{one})*"
            return one + more if form["at_least_one"] else f"(?:{one}{more})?"
        case "const_string":
            return re.escape(form["value"])
        case "regex":
            return str(form["pattern"])
    return r"\{[^{}]*\}" if form["type"] == "json_schema" else "[^<]*"


def tags(family: str, **how: Any) -> Any:
    told = forced_tags(family, SCHEMAS, **how)
    assert told is not None
    made = json.loads(told)
    assert made["type"] == "structural_tag"
    return made["format"]


def allows(family: str, text: str, **how: Any) -> bool:
    """True when a model held to the tags can write the text. What the prompt ends with is not theirs, nor a stop token at the end."""
    return re.fullmatch(pattern_of(tags(family, **how)), text.removeprefix("<|message_model|>").removesuffix("<|call|>")) is not None


@pytest.mark.parametrize("family", TAGGED)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("how", [{}, {"parallel": False}, {"named": "f"}, {"named": "get_weather", "parallel": False}])
def test_what_tags_allow_is_read_as_calls(family: str, seed: int, how: dict[str, Any]) -> None:
    author = Author(seed)
    text = author.write(tags(family, **how)) + ("<|call|>" if family == "openai" else "")
    found = check_splits(Setting(tool=family, tools=GIVEN, reasoning=THINKERS.get(family)), text, cuts=20)
    assert [call.name for call in found.calls] == author.calls != []
    assert all(isinstance(call.value(), dict) for call in found.calls)
    assert (found.content, found.reasoning) == ("", author.thoughts)
    if how:
        assert len(author.calls) == 1
    if "named" in how:
        assert author.calls == [how["named"]]


@pytest.mark.parametrize("family", TAGGED)
def test_what_models_write_is_allowed(family: str) -> None:
    writers = [TOOL_WRITERS[family], *(MARKED if family == "mistral" else ())]
    for write in (writer.write for writer in writers):
        one, other, both = write(ONE), write(OTHER), write(ONE + OTHER)
        assert allows(family, one)
        assert allows(family, one, parallel=False)
        assert allows(family, other, named="get_weather")
        assert allows(family, both) is (family != "openai")  # whose turn ends with a call
        assert not allows(family, both, parallel=False)
        if family in THOUGHTS:
            assert allows(family, THOUGHTS[family] + one.removeprefix("<|message_model|>"))
            assert not allows(family, THOUGHTS[family])


@pytest.mark.parametrize("family", TAGGED)
def test_nothing_else_is_allowed(family: str) -> None:
    write = TOOL_WRITERS[family].write
    assert not allows(family, "")
    assert not allows(family, "It is sunny.")
    assert not allows(family, write([("g", {})]))
    assert not allows(family, write([("f", {})]), named="get_weather")
    assert not allows(family, "Sure! " + write([("f", {})]))
    assert not allows(family, write([("f", {})]) + "There you are.")


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
