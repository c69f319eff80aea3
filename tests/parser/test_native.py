"""The native parsers and their specification in Python give the same pieces with the same deltas.

`oracle.Setting` compares the two wherever it is used: records, known bugs, generated and hostile outputs. Here is what it does not set, and
the parts that parsers are made of.
"""

import json
import os
import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smg._ext import Collector, MarkSet
from smg.parser import REASONING, TOOLS, build, marks
from smg.parser.matcher import Matcher
from smg_ext.marks import scan_marks
from tests.parser.oracle import Setting, alike, pieces_of
from tests.parser.test_attack import FORMS, GIVEN, Case
from tests.parser.test_parts import scanned
from tests.parser.writers import Writer

EXAMPLES = settings(
    max_examples=int(os.environ.get("SMG_EXAMPLES", "6")), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize(("family", "writer"), FORMS)
@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_every_option(family: str, writer: Writer, seed: int) -> None:
    """Tools forced, one call only, any name: over damaged outputs in any division."""
    case, source = Case(family, writer, seed), random.Random(seed)
    setting = case.setting
    for parallel, any_tool, named in ((False, False, None), (True, True, None), (True, False, "f"), (False, True, "f")):
        made = [
            build(
                reasoning=setting.reasoning,
                tool=setting.tool,
                tools=setting.tools,
                in_think=setting.in_think,
                parallel=parallel,
                any_tool=any_tool,
                named=named,
                native=native,
            )
            for native in (False, True)
        ]
        assert made[0] is not None
        assert made[1] is not None
        text = source.choice((case.text, case.damaged))
        list(alike(made[0], made[1], source.choice(([text], list(text), pieces_of(text, seed)))))


@pytest.mark.parametrize("name", REASONING.names())
def test_every_reasoning_family(name: str) -> None:
    """Alone and with a tool family; whose marks may clash, which is an error in both."""
    source = random.Random(name)
    words = [*marks(name, "hermes"), "a", " ", "\n", "\n\n", "<", "é東", '{"name": "f", "arguments": {}}']
    for tool in (None, "hermes", "kimik2"):
        for in_think in (False, True):
            text = "".join(source.choice(words) for _ in range(60))
            setting = Setting(reasoning=name, tool=tool, tools=GIVEN if tool else (), in_think=in_think)
            for deltas in ([text], list(text), pieces_of(text, 1)):
                setting.outcome(deltas)


@given(st.lists(st.sampled_from("<a>/x東"), max_size=30).map("".join), st.integers(1, 5))
def test_marks(text: str, size: int) -> None:
    given_marks = ("<a>", "</a>", "<<x", "xxa/", "東<", "東東a")
    deltas = [text[i : i + size] for i in range(0, len(text), size)]
    assert scan_marks(MarkSet(given_marks), deltas) == scanned(given_marks, deltas)


@pytest.mark.parametrize("given_marks", [("<a", "<ab"), ("<a>", "<<a>>x")])
def test_a_mark_that_begins_another_is_a_mistake(given_marks: tuple[str, ...]) -> None:
    for make in (Matcher, MarkSet):
        with pytest.raises(ValueError, match="begins or lies inside"):
            make(given_marks)


@pytest.mark.parametrize("text", ["a\ud800b", "\ud83d", "x" * 70_000, "\x00"])
def test_any_string_may_come(text: str) -> None:
    """Halves of a pair, which no UTF-8 has, and more than any buffer begins with."""
    for family in TOOLS.names():
        Setting(tool=family, reasoning="qwen3", tools=GIVEN).outcome([text, text])


def test_half_a_pair_in_python_stays_an_escape() -> None:
    """A lone half cannot leave: no UTF-8 has it."""
    found = Setting(tool="pythonic", tools=GIVEN).outcome([r"[f(s='\U0000d83d', t='\ud83d\ude00', n='\U0001f600')]"])
    assert found.calls[0].arguments.encode() == r'{"s": "\ud83d", "t": "\ud83d\ude00", "n": "😀"}'.encode()


@pytest.mark.parametrize(("value", "kind"), [("1", ""), ("", "Splitter")])
def test_the_specification_can_be_asked_for(value: str, kind: str) -> None:
    code = "import json\nfrom smg.parser import build\nprint(json.dumps(type(build(reasoning='qwen3', tool=None)).__module__))"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "SMG_NO_EXT": value}, capture_output=True, check=True)
    assert json.loads(done.stdout) == ("smg_ext.splitter" if kind else "smg.parser.machine")


def test_native_ones_are_the_usual_ones() -> None:
    for family in TOOLS.names():
        assert isinstance(build(reasoning=None, tool=family, tools=GIVEN), Collector)
