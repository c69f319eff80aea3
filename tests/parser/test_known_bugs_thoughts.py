"""Public faults of reasoning parsers, by their number in known-bugs.md, section H: each with its input and right outcome."""

import pytest

from smg.parser import REASONING, TOOLS, Text, Thought, opens_thinking
from tests.parser.oracle import Outcome, Setting, check_splits, tools_named
from tests.parser.writers import TOOL_WRITERS

TOOLS_OF = {
    "hermes": "qwen",
    "glm45": "glm45_moe",
    "qwen3_coder": "qwen_xml",
    "kimi_k2": "kimik2",
    "deepseek_v31": "deepseek",
    "mistral": "mistral",
}
QWEN = Setting(reasoning="qwen3", in_think=True)


@pytest.mark.parametrize("name", [name for name, spec in REASONING if spec.starts == ("<think>",)])
def test_b50_prefilled_block(name: str) -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n", name)
    how = Setting(reasoning=name, in_think=True)
    whole = check_splits(how, "work</think>\n\n4")
    assert how.outcome(["work", "</th", "ink>", "\n\n4"]) == whole == Outcome(reasoning="work", content="4")


def test_b51_cut_before_the_end_is_all_thought() -> None:
    assert check_splits(QWEN, "abc") == Outcome(reasoning="abc")


def test_b52_thoughts_are_not_sent_again_as_content() -> None:
    assert QWEN.pieces(["abc"]) == [[Thought("abc")], []]
    assert QWEN.pieces(["abc</thi"]) == [[Thought("abc")], [Thought("</thi")]]


def test_b56_no_thinking_no_marks() -> None:
    assert check_splits(Setting(reasoning="qwen3"), "Hello") == Outcome(content="Hello")


def test_b57_end_mark_in_two_pieces() -> None:
    assert QWEN.outcome(["x</th", "ink>y"]) == QWEN.outcome(["x</think>y"]) == Outcome(reasoning="x", content="y")


@pytest.mark.parametrize("reasoning", [None, "qwen3", "openai_gptoss", "inkling", "cohere_cmd"])
@pytest.mark.parametrize("tool", [None, "hermes", "glm45", "kimi_k2", "deepseek_v31", "pythonic", "cohere"])
def test_b59_text_that_ends_like_a_mark(reasoning: str | None, tool: str | None) -> None:
    how = Setting(reasoning=reasoning, tool=tool, tools=tools_named("f"))
    assert check_splits(how, "5 <") == Outcome(content="5 <")


def test_text_is_held_only_while_it_may_be_a_mark() -> None:
    how = Setting(reasoning="qwen3", tool="hermes", tools=tools_named("f"))
    assert how.pieces(["Hel", "lo <", "b> a <t", "ab"]) == [[Text("Hel")], [Text("lo ")], [Text("<b> a ")], [Text("<tab")], []]


def test_a_block_may_open_again() -> None:
    text = "<think>\na\n</think>\n\nfirst\n<think>\nb\n</think>\nsecond"
    assert check_splits(Setting(reasoning="qwen3"), text) == Outcome(reasoning="a\n\nb", content="first\n\nsecond")


def test_marks_inside_arguments_are_text() -> None:
    how = Setting(reasoning="qwen3", tool="hermes", tools=tools_named("f"))
    text = '<think>t</think><tool_call>{"name":"f","arguments":{"s":"<think></think></tool_call>"}}</tool_call>'
    outcome = check_splits(how, text)
    assert outcome.reasoning == "t"
    assert outcome.calls[0].value() == {"s": "<think></think></tool_call>"}


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\nI was thinking", True),
        ("<|im_start|>assistant\n", False),
    ],
)
def test_the_prompt_says_whether_the_output_begins_in_a_block(prompt: str, opened: bool) -> None:
    assert opens_thinking(prompt, "qwen3") is opened


@pytest.mark.parametrize("tool", ["hermes", "glm45", "qwen3_coder", "kimi_k2", "deepseek_v31", "mistral"])
def test_a_call_ends_thinking_and_a_mention_does_not(tool: str) -> None:
    """The kind of fault B24 is of, for every family: models call from inside a block that they never close."""
    how = Setting(reasoning="qwen3", tool=tool, tools=tools_named("f"), in_think=True)
    call = TOOL_WRITERS[TOOLS_OF[tool]].write([("f", {})])
    outcome = check_splits(how, f"I could.\n{call}")
    assert (outcome.reasoning, outcome.content, len(outcome.calls)) == ("I could.", "", 1)
    mark = TOOLS.get(tool).opens[0]
    outcome = check_splits(how, f"Not {mark} yet</think>no")
    assert outcome == Outcome(reasoning=f"Not {mark} yet", content="no")
