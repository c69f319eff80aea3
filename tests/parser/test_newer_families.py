"""Families with a format of their own: MiniMax M3's nested tags, MiniCPM5's CDATA, Functionary's recipients, Muse, Command R+, Solar."""

import json

import pytest

from smg.parser import opens_thinking
from tests.parser.oracle import Made, Outcome, Setting, check_splits, tools_named

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "additionalProperties": {"type": "number"}},
        "any": {},
        "maybe": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "$defs": {
        "node": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    },
}
TREES = ({"type": "function", "function": {"name": "f", "parameters": TREE}}, *tools_named("g"))
WORDS = tools_named("f", "python", s={"type": "string"}, i={"type": "integer"})
MARK = "]<]minimax[>["


def m3(text: str) -> str:
    """`~` for the mark."""
    return text.replace("~", MARK)


def outcome(tool: str, text: str, *, reasoning: str | None = None, tools=WORDS, in_think: bool = False) -> Outcome:
    return check_splits(Setting(tool=tool, reasoning=reasoning, tools=tools, in_think=in_think), text, cuts=60)


def arguments(found: Outcome) -> list[object]:
    return [json.loads(call.arguments) for call in found.calls]


@pytest.mark.parametrize(
    ("inside", "value"),
    [
        ("~<name>a < b & ]]~</name>~<size>7~</size>", {"name": "a < b & ]]", "size": 7}),
        ("~<name>~</name>~<kids>~</kids>~<more>~</more>", {"name": "", "kids": [], "more": {}}),
        ("~<name> \n x \n~</name>", {"name": " \n x \n"}),
        ("~<tags>~<item>1~</item>~<item>b~</item>~</tags>", {"tags": ["1", "b"]}),
        ("~<kids>~<item>~<v>1~</v>~<kids>~<item>~<v>2~</v>~</item>~</kids>~</item>~</kids>", {"kids": [{"v": 1, "kids": [{"v": 2}]}]}),
        ("~<more>~<x>1.5~</x>~<y>2~</y>~</more>", {"more": {"x": 1.5, "y": 2}}),
        ("~<any>~<item>1~</item>~</any>", {"any": ["1"]}),
        ("~<any>~<a>~<item>x~</item>~</a>~<b>y~</b>~</any>", {"any": {"a": ["x"], "b": "y"}}),
        ("~<maybe>null~</maybe>", {"maybe": None}),
        ("~<maybe>~<v>3~</v>~</maybe>", {"maybe": {"v": 3}}),
        ('~<kids>[{"v": 1}]~</kids>', {"kids": [{"v": 1}]}),
        ("\n~<kids>\n~<item>\n~<v>1~</v>\n~</item>\n~</kids>\n", {"kids": [{"v": 1}]}),
        ("~<name>x~<b>y~</b>~</name>", {"name": "x<b>y</b>"}),  # tags in a text are text
        ("~<size>~~7~</size>", {"size": 7}),  # a mark of no tag
        ("~<kids>~<item>~<v>1~</kids>~<size>2~</size>", {"kids": [{"v": 1}], "size": 2}),  # inner ends left out
        ("~<size>2~</nothing>~</size>~</size>", {"size": "2</nothing>"}),
    ],
)
def test_minimax_m3_values(inside: str, value: object) -> None:
    found = outcome("minimax_m3", m3(f'Ok\n~<tool_call>\n~<invoke name="f">{inside}~</invoke>\n~</tool_call>\nbye'), tools=TREES)
    assert arguments(found) == [value]
    assert (found.content, found.reasoning) == ("Ok\n\nbye", "")


def test_minimax_m3_calls() -> None:
    text = m3('~<tool_call>\n~<invoke name="f">~<size>1~</size>~</invoke>\n~<invoke name="g">~</invoke>\n~</tool_call>')
    assert [(call.name, call.arguments) for call in outcome("minimax_m3", text, tools=TREES).calls] == [("f", '{"size": 1}'), ("g", "{}")]
    loose = m3('~<invoke name="f">~<size>1~<invoke name="g">~</tool_call>')  # without a section, without ends
    assert [(call.name, call.arguments) for call in outcome("minimax_m3", loose, tools=TREES).calls] == [("f", '{"size": 1}'), ("g", "{}")]


def test_minimax_m3_thinks() -> None:
    text = m3('hm</mm:think>Ok~<tool_call>\n~<invoke name="g">~</invoke>\n~</tool_call>')
    found = outcome("minimax_m3", text, reasoning="minimax_m3", tools=TREES, in_think=True)
    assert (found.reasoning, found.content, len(found.calls)) == ("hm", "Ok", 1)


@pytest.mark.parametrize("text", ["~<tool_call>\nno", "~<tool_call>\n~<invoke>x", "~<tool_call>\n~<tool_call>x", '~<invoke name="">'])
def test_minimax_m3_that_is_no_call_is_text(text: str) -> None:
    assert not outcome("minimax_m3", m3(text), tools=TREES).calls


def test_minimax_m3_nests_no_deeper_than_it_may() -> None:
    text = m3('~<invoke name="g">' + "~<a>" * 500 + "x" + "~</a>" * 500 + "~</invoke>")
    found = outcome("minimax_m3", text, tools=TREES)
    assert isinstance(arguments(found)[0], dict)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("plain", "plain"),
        ("<![CDATA[a < b & c]]>", "a < b & c"),
        ("<![CDATA[</param></function>]]>", "</param></function>"),
        ("<![CDATA[a]] > ]]]>", "a]] > ]"),
        ("<![CDATA[x]]]]><![CDATA[>y]]>", "x]]>y"),
        ("<![CDATA[]]>", ""),
        ("a &lt; b", "a &lt; b"),
        ("<![CDATA x", "<![CDATA x"),
    ],
)
def test_minicpm5_values(value: str, told: str) -> None:
    text = f'Hi <function name="f"><param name="s">{value}</param><param name="i">3</param></function> bye'
    found = outcome("minicpm5", text)
    assert arguments(found) == [{"s": told, "i": 3}]
    assert found.content == "Hi  bye"


def test_minicpm5_cut_inside_cdata() -> None:
    found = outcome("minicpm5", '<function name="f"><param name="s"><![CDATA[abc]')
    assert found.calls == (Made(name="f", arguments='{"s": "abc]'),)


def test_functionary_recipients() -> None:
    found = outcome("functionary", 'all\nI look.\n>>>f\n{"s": ">>>all"}>>>f\n{}')
    assert (found.content, arguments(found)) == ("I look.", [{"s": ">>>all"}, {}])
    assert outcome("functionary", ">>>all\nHi") == Outcome(content="Hi")


def test_functionary_code() -> None:
    assert arguments(outcome("functionary", 'python\nprint("a")\n')) == [{"s": 'print("a")\n'}]
    assert arguments(outcome("functionary", "python\nx > > y >>all\n>>>all\nDone")) == [{"s": "x > > y >>all\n"}]


@pytest.mark.parametrize(
    "text", ["Hello", "all", "f", "all right\nthen", "unknown\n{}", ">> x", "f {}", "Hi\n>>>f x", "Hi\n>>>g\n{}", "a >>> b\n"]
)
def test_functionary_text_that_only_looks_like_a_head(text: str) -> None:
    assert outcome("functionary", text) == Outcome(content=text)
    if text != "f":
        assert outcome("functionary", f"all\n{text}") == Outcome(content=text)


def test_functionary_v3_1() -> None:
    found = outcome("functionary_v3_1", 'Ok <function=f>{"s": "</function>"}</function>')
    assert (found.content.strip(), arguments(found)) == ("Ok", [{"s": "</function>"}])


CALL = '<atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="s">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (" to=user<|message|>Hi<|eot|>", ("", "Hi", 0)),
        (" to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>\nHi\n<|eot|>", ("hm", "Hi", 0)),
        (f" to=self<|message|>hm<|eom|><|start|>assistant to=f<|message|>{CALL}<|eot|>", ("hm", "", 1)),
        (f" to=f<|message|>{CALL}<|eom|><|start|>assistant to=f<|message|>{CALL}<|eot|>", ("", "", 2)),
        (" to=user<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>", ("", "a\nb", 0)),
        ("Hi, there", ("", "Hi, there", 0)),
        ("Hi, there<|eot|>", ("", "Hi, there", 0)),
        ("Hi", ("", "Hi", 0)),
        (CALL, ("", "", 1)),
        (" to=us", ("", "", 0)),
        ("", ("", "", 0)),
    ],
)
def test_muse(text: str, told: tuple[str, str, int]) -> None:
    found = outcome("muse_glimmer", text, reasoning="muse_glimmer")
    assert (found.reasoning, found.content, len(found.calls)) == told


def test_muse_with_one_parser_only() -> None:
    text = " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hi<|eot|>"
    assert outcome("muse_glimmer", text) == Outcome(content="hm\nHi")
    assert check_splits(Setting(reasoning="muse_glimmer"), text) == Outcome(reasoning="hm", content="Hi")


@pytest.mark.parametrize("between", ["\n", " ", ""])
def test_command_r_plus(between: str) -> None:
    text = f'Plan.\nAction:{between}```json\n[\n  {{\n    "tool_name": "f",\n    "parameters": {{"s": "```"}}\n  }}\n]```\n'
    found = outcome("command_r_plus", text)
    assert (found.content, arguments(found)) == ("Plan.", [{"s": "```"}])


def test_action_in_prose_is_text() -> None:
    assert outcome("command_r_plus", "Action: none.\n```json\n[1]\n```").content == "Action: none.\n```json\n[1]\n```"


def test_solar() -> None:
    call = '<|tool_call:begin|>id1<|tool_call:name|>f<|tool_call:args|>{"i":1}<|tool_call:end|>'
    text = f"<|think|>hm<|end|><|begin|>assistant<|tool_calls|>{call}<|calls|>"
    found = outcome("solar", text, reasoning="solar")
    assert (found.reasoning, found.content, found.calls) == ("hm", "", (Made(name="f", arguments='{"i":1}', id="id1"),))
    assert outcome("solar", "<|think|>hm<|end|><|begin|>assistant<|content|>Hi<|end|>", reasoning="solar") == Outcome(
        reasoning="hm", content="Hi"
    )


def test_apriel() -> None:
    assert opens_thinking("<|begin_assistant|>\nHere are my reasoning steps:\n", "apriel")
    found = outcome("hunyuan_a13b", "First\n[BEGIN FINAL RESPONSE]\nHi\n[END FINAL RESPONSE]", reasoning="apriel", in_think=True)
    assert found == Outcome(reasoning="First", content="Hi")


def test_apertus_thoughts() -> None:
    text = '<|inner_prefix|>hm<|inner_suffix|>Hi<|tools_prefix|>[{"f": {"i": 1}}]<|tools_suffix|>'
    found = outcome("apertus", text, reasoning="apertus")
    assert (found.reasoning, found.content, arguments(found)) == ("hm", "Hi", [{"i": 1}])
