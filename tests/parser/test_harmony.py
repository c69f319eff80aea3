"""Our Harmony parser against OpenAI's own, which reads token ids: the same messages come out."""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parser.oracle import Made, Outcome, Setting, check_splits, tools_named
from tests.parser.writers import compact

HOW = Setting(tool="openai", reasoning="openai_gptoss", tools=tools_named("get_weather", "f"))
words = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="<"), min_size=1, max_size=20).map(str.strip).filter(bool)
values = st.dictionaries(words, st.one_of(words, st.integers(), st.lists(words, max_size=2)), max_size=3)
heads = st.sampled_from(
    [
        "<|channel|>commentary to=functions.{} <|constrain|>json",
        " to=functions.{}<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.{} json",
    ]
)
messages = st.lists(
    st.one_of(
        st.tuples(st.just("analysis"), words),
        st.tuples(st.just("commentary"), words),
        st.tuples(heads, st.sampled_from(["get_weather", "f"]), values),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def encoding(shared: pathlib.Path) -> Iterator[Any]:
    folder = shared / "fixtures" / "tokenizers" / "openai-tiktoken"
    if not (folder / "o200k_base.tiktoken").exists():
        pytest.skip(f"no o200k_base.tiktoken in {folder}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        harmony = pytest.importorskip("openai_harmony", reason="openai-harmony is not installed: pip install openai-harmony")
        yield harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def written(parts: list[tuple[Any, ...]], final: str | None) -> str:
    turns = []
    for head, *rest in parts:
        if len(rest) == 1:
            turns.append(f"<|channel|>{head}<|message|>{rest[0]}<|end|>")
        else:
            turns.append(f"{head.format(rest[0])}<|message|>{compact(rest[1])}<|call|>")
    if final is not None:
        turns.append(f"<|channel|>final<|message|>{final}<|return|>")
    return "<|start|>assistant".join(turns)


def encoding_role() -> Any:
    return pytest.importorskip("openai_harmony").Role.ASSISTANT


def reference(encoding: Any, text: str) -> Outcome:
    ids = encoding.encode(text, allowed_special="all")
    content, reasoning, calls = [], [], []
    for message in encoding.parse_messages_from_completion_tokens(ids, encoding_role()):
        body = "".join(part.text for part in message.content)
        if message.recipient and message.recipient.startswith("functions."):
            calls.append(Made(name=message.recipient.removeprefix("functions."), arguments=body))
        else:
            (reasoning if message.channel == "analysis" else content).append(body)
    return Outcome(content="\n".join(content), reasoning="\n".join(reasoning), calls=tuple(calls))


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(parts=messages, final=st.none() | words)
def test_same_messages_as_the_reference(encoding: Any, parts: list[tuple[Any, ...]], final: str | None) -> None:
    text = written(parts, final)
    if not text:
        return  # the reference refuses an empty output
    assert check_splits(HOW, text, cuts=10) == reference(encoding, text)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Hello", Outcome(content="Hello")),
        ("<|channel|>final", Outcome()),
        ("<|channel|>analysis<|message|>a", Outcome(reasoning="a")),
        ("<|channel|>final<|message|>a<|channel|>final<|message|>b<|return|>", Outcome(content="a\nb")),
        ("<|channel|>analysis to=python<|message|>1+1<|call|>", Outcome(reasoning="1+1")),
        ("<|channel|>final<|constrain|>json<|message|>{}<|return|>", Outcome(content="{}")),
        ("x" * 300, Outcome(content="x" * 300)),
    ],
)
def test_outputs_that_are_cut_or_not_quite_harmony(text: str, outcome: Outcome) -> None:
    assert check_splits(HOW, text, cuts=20) == outcome


def test_without_tools_a_call_is_text() -> None:
    how = Setting(tool="openai", reasoning="openai_gptoss")
    text = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'
    assert check_splits(how, text) == Outcome(content='{"a":1}')


def test_the_prompt_may_open_the_thought() -> None:
    how = Setting(tool="openai", reasoning="openai_gptoss", in_think=True)
    text = "a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>"
    assert check_splits(how, text) == Outcome(reasoning="a", content="b")
