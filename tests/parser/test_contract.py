"""What holds for every registered parser: splits, clean text, names, and the number of steps that an output takes."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from smg._ext import Collector
from smg.config.choices import choices_of
from smg.parser import REASONING, TOOLS, Piece, build, marks
from tests.parser.oracle import Outcome, Setting, check_clean, check_splits, tools_named
from tests.parser.writers import SCHEMA, TOOL_WRITERS

# fmt: off
ORIGINAL_REASONING = [
    "deepseek_r1", "deepseek_v31", "qwen3_thinking", "qwen3", "glm45", "kimi_thinking", "kimi_k25", "kimi_k3", "kimi", "step3",
    "minimax", "cohere_cmd", "nano_v3", "inkling", "base",
]
ORIGINAL_TOOLS = [
    "json", "mistral", "qwen", "qwen_xml", "qwen_coder", "pythonic", "llama", "deepseek", "deepseek31", "deepseek32",
    "deepseek_v4", "glm45_moe", "glm47_moe", "step3", "kimik2", "kimi_k3", "inkling", "minimax_m2", "cohere", "sarashina",
]
# Of 0.33 and of its main branch since; older names that it has dropped, too.
VLLM_TOOLS = [
    "apertus", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "ernie45",
    "functiongemma", "gemma4", "gigachat3", "glm45", "glm47", "granite", "granite-20b-fc", "granite4", "hermes", "hunyuan_a13b", "hy_v3",
    "inkling", "internlm", "jamba", "kimi_k2", "kimi_k3", "lfm2", "llama3_json", "llama4_json", "llama4_pythonic", "longcat", "mimo",
    "minicpm5", "minimax", "minimax_m2", "minimax_m3", "mistral", "olmo3", "openai", "phi4_mini_json", "poolside_v1", "pythonic",
    "qwen3_coder", "qwen3_xml", "seed_oss", "solar_open2", "step3", "step3p5", "xlam",
]
VLLM_REASONING = [
    "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4", "ernie45", "gemma4", "glm45", "glm47", "granite",
    "holo2", "hunyuan_a13b", "hy_v3", "inkling", "kimi_k2", "kimi_k3", "mimo", "minimax_m2", "minimax_m2_append_think", "minimax_m3",
    "mistral", "nemotron_v3", "olmo3", "openai_gptoss", "poolside_v1", "qwen3", "seed_oss", "solar_open2", "step3", "step3p5",
]
# fmt: on
GIVEN = tools_named("f", "get_weather", **SCHEMA)
ARGUMENTS = {"s": 'a "b"\n<c> é東\\', "i": 7, "b": True, "o": {"k": [1, None, "x"]}, "a": []}
# Families whose every text has a header of its own, and what "Let me look." is there.
WAYS_TO_SAY = {
    "openai": "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant",
    "inkling": "<|content_text|>Let me look.<|end_message|>",
    "muse_glimmer": " to=user<|message|>Let me look.<|eom|><|start|>assistant",
    "functionary": "all\nLet me look.\n>>>",
}
CALLS = [("get_weather", ARGUMENTS), ("f", {}), ("f", {"s": ""})]


@pytest.mark.parametrize("name", [*ORIGINAL_TOOLS, *VLLM_TOOLS])
def test_known_tool_parsers_are_there(name: str) -> None:
    assert name in TOOLS


@pytest.mark.parametrize("name", [*ORIGINAL_REASONING, *VLLM_REASONING])
def test_known_reasoning_parsers_are_there(name: str) -> None:
    assert name in REASONING


def test_none_of_them() -> None:
    """The sixteenth and the twenty-first name of the original."""
    for name in ("passthrough", "none", "", None):
        assert build(reasoning=name, tool=name, tools=GIVEN) is None


def test_every_name_can_be_configured() -> None:
    assert {*ORIGINAL_TOOLS, *VLLM_TOOLS, "passthrough", "none"} <= {*choices_of("tool_parser")}
    assert {*ORIGINAL_REASONING, *VLLM_REASONING, "passthrough", "none"} <= {*choices_of("reasoning_parser")}


@pytest.mark.parametrize("name", TOOLS.names(aliases=True))
def test_every_split_gives_the_same_calls(name: str) -> None:
    family = next((family for family, spec in TOOLS if spec is TOOLS.get(name)), name)
    setting = Setting(tool=name, tools=GIVEN)
    outcome = check_splits(Setting(tool=family, tools=GIVEN), TOOL_WRITERS[family].write(CALLS))
    assert [(call.name, call.value()) for call in outcome.calls] == CALLS
    assert setting.outcome([TOOL_WRITERS[family].write([("f", {})])]).calls[0].arguments == "{}"


@pytest.mark.parametrize("name", TOOLS.names())
def test_text_around_calls_is_kept_and_clean(name: str) -> None:
    before = WAYS_TO_SAY.get(name, "Let me look.\n")
    outcome = check_splits(Setting(tool=name, tools=GIVEN), before + TOOL_WRITERS[name].write(CALLS), cuts=40)
    assert outcome.content == ("Let me look." if before else "")
    check_clean(outcome, [mark for mark in marks(None, name) if len(mark) > 2])
    assert len(outcome.calls) == len(CALLS)


def thinking(name: str) -> str:
    spec = REASONING.get(name)
    if name == "openai_gptoss":
        return "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>"
    if name == "muse_glimmer":
        return " to=self<|message|>I think.<|eom|><|start|>assistant to=user<|message|>Four.<|eot|>"
    if name == "inkling":
        return "<|content_thinking|>I think.<|end_message|><|message_model|><|content_text|>Four.<|end_message|>"
    return f"{spec.starts[0]}\nI think.\n{spec.ends[0]}\n\nFour."


@pytest.mark.parametrize("name", REASONING.names())
def test_every_split_gives_the_same_thoughts(name: str) -> None:
    assert check_splits(Setting(reasoning=name), thinking(name)) == Outcome(reasoning="I think.", content="Four.")
    text = thinking(name)
    opened = text[text.index("I think.") :]
    assert check_splits(Setting(reasoning=name, in_think=True), opened) == Outcome(reasoning="I think.", content="Four.")


@pytest.mark.parametrize("tool", [name for name, spec in TOOLS if not spec.channels])
@pytest.mark.parametrize("reasoning", ["qwen3", "kimi_k25", "kimi_k3", "cohere_cmd", "mistral", "granite"])
def test_thoughts_then_calls(reasoning: str, tool: str) -> None:
    spec = REASONING.get(reasoning)
    text = f"{spec.starts[0]}I think.{spec.ends[0]}\n{TOOL_WRITERS[tool].write(CALLS[:2])}"
    outcome = check_splits(Setting(reasoning=reasoning, tool=tool, tools=GIVEN), text, cuts=20)
    assert (outcome.reasoning, outcome.content) == ("I think.", "")
    assert [(call.name, call.value()) for call in outcome.calls] == CALLS[:2]


def steps_of(work: Callable[[], object]) -> int:
    """Lines of the parser's code that run: a measure of work that no other load on the machine changes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if "parser" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def feeds(tool: str, deltas: list[str], *, native: bool = False) -> list[int]:
    """Steps of each delta. The native parser counts its own: characters that it looks at or copies."""
    parser = build(reasoning="base", tool=tool, tools=GIVEN, native=native)
    assert parser is not None
    counts, before = [], 0
    for work in (*(partial(parser.feed, delta) for delta in deltas), parser.finish):
        steps = steps_of(work)
        if isinstance(parser, Collector):
            steps, before = parser.work - before, parser.work
        counts.append(steps)
    return counts


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", TOOLS.names())
def test_steps_grow_with_the_text_only(name: str, native: bool) -> None:
    """O5: an argument twice as long takes at most about twice the steps, and no delta of four characters takes many."""
    totals = []
    for size in (600, 1_200):
        text = TOOL_WRITERS[name].write([("f", {"s": "ab\n<{ " * (size // 6)})])
        counts = feeds(name, [text[i : i + 4] for i in range(0, len(text), 4)], native=native)
        totals.append(sum(counts))
        assert max(counts) < 700
    assert totals[1] < 2.2 * totals[0]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", TOOLS.names())
def test_steps_of_hostile_outputs(name: str, native: bool) -> None:
    """O5: marks again and again, with and without something between, cost a bounded number of steps each."""
    for mark in marks(None, name):
        for unit in (mark, " ", mark + " ", mark + "{", mark + "f("):
            text = mark + unit * 60
            assert sum(feeds(name, [text], native=native)) < 150 * len(text) + 2_000, (mark, unit)


@pytest.mark.parametrize("native", [False, True])
def test_bare_json_that_fails_late_is_read_once(native: bool) -> None:
    nested = '{"name": "f", "x": ' * 400
    total = sum(feeds("json", [nested], native=native))
    assert total < 2.2 * sum(feeds("json", [nested[: len(nested) // 2]], native=native)) + 2_000


def test_pieces_are_plain_data() -> None:
    parser = build(reasoning="qwen3", tool="hermes", tools=GIVEN)
    assert parser is not None
    pieces: list[Piece] = parser.feed("<think>a</think>b")
    assert repr(pieces) == "[Thought(text='a'), Text(text='b')]"
    assert parser.finish() == []
