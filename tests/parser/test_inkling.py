"""Inkling's blocks: heads, thoughts, text, calls, and outputs without marks."""

import pytest

from tests.parser.oracle import Made, Outcome, Setting, check_splits, tools_named

HOW = Setting(tool="inkling", reasoning="inkling", tools=tools_named("f"))
CALL = '<|content_invoke_tool_json|>{"name":"f","args":{"a":1}}<|end_message|>'
MADE = (Made(name="f", arguments='{"a":1}'),)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("f" + CALL, Outcome(calls=MADE)),
        ("<|content_thinking|>t<|end_message|><|message_model|>f" + CALL, Outcome(reasoning="t", calls=MADE)),
        ("<|content_text|>a<|end_message|><|message_model|>" + CALL, Outcome(content="a", calls=MADE)),
        ("<|content_text|>a<|content_model_end_sampling|>", Outcome(content="a")),
        ("Plain answer.", Outcome(content="Plain answer.")),
        ("Plain", Outcome(content="Plain")),
        ("x" * 200, Outcome(content="x" * 200)),
        ("f<|content_invoke_tool_text|>raw<|end_message|><|message_model|><|content_text|>b", Outcome(content="b")),
        ('f<|content_invoke_tool_json|>{"name":"f","args":{"a"', Outcome(calls=(Made(name="f", arguments='{"a"'),))),
    ],
)
def test_blocks(text: str, outcome: Outcome) -> None:
    assert check_splits(HOW, text) == outcome


def test_without_tools_a_call_is_text() -> None:
    assert check_splits(Setting(reasoning="inkling"), "f" + CALL).content == '{"name":"f","args":{"a":1}}'
