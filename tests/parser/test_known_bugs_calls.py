"""Public faults of tool-call parsers, by their number in known-bugs.md, sections A to G: each with its input and right outcome."""

import pytest

from smg.parser import Call, CallArguments, build, marks
from tests.parser.oracle import Made, Outcome, Setting, check_clean, check_splits, joined, tools_named

KIMI_BEGIN = "<|tool_calls_section_begin|>"
V31 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>w\n",
    "```",
    "json",
    '\n{"c":"SF"}\n',
    "```",
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)


def setting(tool: str, *names: str, reasoning: str | None = None, in_think: bool = False, **parameters: object) -> Setting:
    return Setting(tool=tool, reasoning=reasoning, tools=tools_named(*(names or ("f",)), **parameters), in_think=in_think)


def run(how: Setting, *deltas: str, clean: bool = True) -> Outcome:
    """Parses the deltas; all four oracles hold."""
    whole = check_splits(how, "".join(deltas))
    assert how.outcome(deltas) == whole
    if clean:
        check_clean(whole, [mark for mark in marks(how.reasoning, how.tool) if len(mark) > 2])
    return whole


def calls(outcome: Outcome) -> list[tuple[str, object]]:
    return [(call.name, call.value()) for call in outcome.calls]


# A. Hermes, Qwen3 JSON


def test_b01_array_of_objects_opens_in_one_delta() -> None:
    deltas = ('<tool_call>\n{"name": "plan", "arguments": {"steps":', ' [{"', "id", '": 1}, {"', 'id": 2}]}', "}\n", "</tool_call>")
    outcome = run(setting("hermes", "plan"), *deltas)
    assert calls(outcome) == [("plan", {"steps": [{"id": 1}, {"id": 2}]})]
    assert outcome.calls[0].arguments == '{"steps": [{"id": 1}, {"id": 2}]}'


@pytest.mark.parametrize("inner", ['{"name":"now","arguments":{}}', '{"name":"now"}'])
def test_b02_no_arguments_are_an_empty_object(inner: str) -> None:
    assert run(setting("hermes", "now"), f"<tool_call>{inner}</tool_call>").calls[0].arguments == "{}"


def test_b03_end_in_one_delta_keeps_last_brace() -> None:
    outcome = run(setting("hermes"), '<tool_call>{"name":"f","arguments":{"a":{"b":"c"', "}}}</tool_call>")
    assert calls(outcome) == [("f", {"a": {"b": "c"}})]


def test_b05_name_is_never_empty_or_partial() -> None:
    deltas = ('<tool_call>{"name": "', "get", '_time", "arguments": {', "}}</tool_call>")
    how = setting("hermes", "get_time")
    first = next(piece for pieces in how.pieces(deltas) for piece in pieces)
    assert first == Call(0, "get_time")
    assert calls(run(how, *deltas)) == [("get_time", {})]


@pytest.mark.parametrize("tool", ["hermes", "qwen_xml", "glm45", "mistral", "kimi_k2"])
def test_b07_without_tools_no_tool_parser_runs(tool: str) -> None:
    text = "Write `<tool_call>` here, or [TOOL_CALLS] or <|tool_calls_section_begin|>"
    assert build(reasoning=None, tool=tool, tools=()) is None
    assert Setting(tool=tool, reasoning="qwen3").outcome([text]).content == text


def test_b08_a_new_parser_knows_nothing_of_the_last() -> None:
    how = setting("hermes")
    assert how.outcome(['<tool_call>{"name":"a"']).calls[0].name == "a"
    assert how.outcome(["hi"]) == Outcome(content="hi")


# B. Qwen3-Coder XML, MiniMax, Step3


def test_b09_schema_decides_and_text_is_no_html() -> None:
    text = (
        "<tool_call><function=r><parameter=zip>\n03106\n</parameter><parameter=age>\n32\n</parameter>"
        "<parameter=q>\na &lt; b\n</parameter></function></tool_call>"
    )
    outcome = run(setting("qwen3_coder", "r", zip={"type": "string"}, age={"type": "integer"}), text)
    assert calls(outcome) == [("r", {"zip": "03106", "age": 32, "q": "a &lt; b"})]


def test_b10_value_of_wrong_type_is_kept_as_text() -> None:
    outcome = run(setting("qwen3_coder", x={"type": "integer"}), "<function=f><parameter=x>2026-01-15</parameter></function>")
    assert calls(outcome) == [("f", {"x": "2026-01-15"})]


def test_b11_code_is_escaped_and_loses_one_newline_at_each_end() -> None:
    text = '<tool_call>\n<function=f>\n<parameter=code>\n\nif a < b:\n    p("c\\n")\n\n</parameter>\n</function>\n</tool_call>'
    deltas = [part + "<" for part in text.split("<")]
    deltas[-1] = deltas[-1][:-1]
    outcome = run(setting("qwen3_coder", code={"type": "string"}), *deltas)
    assert calls(outcome) == [("f", {"code": '\nif a < b:\n    p("c\\n")\n'})]


def test_b12_any_of_without_type() -> None:
    text = "<function=f><parameter=x>[1,2]</parameter><parameter=y>123</parameter></function>"
    outcome = run(setting("qwen3_coder", x={"anyOf": [{"type": "array"}, {"type": "null"}]}, y={"description": "any"}), text)
    assert calls(outcome) == [("f", {"x": [1, 2], "y": "123"})]


def test_b13_long_text_streams() -> None:
    value = "0123456789" * 1000
    deltas = ["<tool_call>\n<function=f>\n<parameter=s>\n", *(value[i : i + 100] for i in range(0, 10_000, 100))]
    deltas.append("\n</parameter>\n</function>\n</tool_call>")
    steps = setting("qwen3_coder", s={"type": "string"}).pieces(deltas)
    assert steps[0] == [Call(0, "f"), CallArguments(0, '{"s": "')]
    assert sum(any(isinstance(piece, CallArguments) for piece in step) for step in steps) >= 100


def test_b14_minimax_text_around_a_call() -> None:
    outcome = run(setting("minimax_m2", "other"), "Ok <mini", 'max:tool_call><invoke name="f"></invoke></minimax:tool_call> bye')
    assert outcome.content == "Ok  bye"
    assert calls(outcome) == [("f", {})]


def test_b15_step3_calls_do_not_share_parameters() -> None:
    text = (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f"></steptml:invoke><｜tool_call_end｜>'
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="g"><steptml:parameter name="a">1</steptml:parameter>'
        "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"
    )
    outcome = run(setting("step3", "f", "g", a={"type": "integer"}), text)
    assert calls(outcome) == [("f", {}), ("g", {"a": 1})]
    assert outcome.content == ""


# C. DeepSeek


def test_b16_begin_and_end_in_one_delta() -> None:
    assert calls(run(setting("deepseek_v31"), V31)) == [("f", {"a": 1})]


def test_b18_fence_and_language_come_apart() -> None:
    assert calls(run(setting("deepseek_v3", "w"), *V3)) == [("w", {"c": "SF"})]


def test_b19_v31_parser_reads_v3_bodies() -> None:
    assert calls(run(setting("deepseek_v31", "w"), *V3)) == [("w", {"c": "SF"})]


def test_b20_outer_end_mark_is_not_shown() -> None:
    end = "<｜tool▁calls▁end｜>"
    outcome = run(setting("deepseek_v31"), V31.removesuffix(end), end)
    assert outcome.content == ""
    assert calls(outcome) == [("f", {"a": 1})]


@pytest.mark.parametrize(("tool", "section"), [("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls")])
def test_b21_dsml_calls_survive_any_cut(tool: str, section: str) -> None:
    inner = "".join(
        f'<｜DSML｜invoke name="{name}">\n'
        f'<｜DSML｜parameter name="q" string="true">value of {name}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        for name in "fgh"
    )
    text = f"<｜DSML｜{section}>\n{inner}</｜DSML｜{section}>"
    cut = text.index("value of g") + 5
    outcome = run(setting(tool, *"fgh"), text[:cut], text[cut:])
    assert calls(outcome) == [(name, {"q": f"value of {name}"}) for name in "fgh"]


# D. Kimi K2


def test_b24_section_mark_ends_thinking() -> None:
    deltas = (
        "I need ls.",
        KIMI_BEGIN,
        "<|tool_call_begin|>functions.ls:0",
        "<|tool_call_argument_begin|>{}",
        "<|tool_call_end|><|tool_calls_section_end|>",
    )
    outcome = run(setting("kimi_k2", "ls", reasoning="kimi_k2", in_think=True), *deltas)
    assert (outcome.reasoning, outcome.content) == ("I need ls.", "")
    assert calls(outcome) == [("ls", {})]
    assert outcome.calls[0].id == "functions.ls:0"


def test_b25_two_calls_meet_in_one_delta_after_a_long_one() -> None:
    value = "x" * 9000
    deltas = (
        KIMI_BEGIN + '<|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>{"t":"' + value,
        '"}<|tool_call_end|><|tool_call_begin|>functions.w:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
    )
    outcome = setting("kimi_k2", "w").outcome(deltas)
    assert calls(outcome) == [("w", {"t": value}), ("w", {})]
    assert setting("kimi_k2", "w").outcome(list("".join(deltas))) == outcome


def test_b26_cut_section_keeps_the_first_call() -> None:
    text = (
        KIMI_BEGIN + "<|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        '<|tool_call_begin|>functions.w:1<|tool_call_argument_begin|>{"p":"a'
    )
    outcome = run(setting("kimi_k2", "w"), text)
    assert outcome.calls[0].arguments == "{}"
    assert outcome.calls[1].arguments == '{"p":"a'


def test_b27_text_before_the_mark_in_the_same_delta() -> None:
    text = f"Done thinking.</think>Let me check.{KIMI_BEGIN}<|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>{{}}"
    outcome = run(setting("kimi_k2", "w", reasoning="kimi_k2", in_think=True), text + "<|tool_call_end|><|tool_calls_section_end|>")
    assert (outcome.reasoning, outcome.content) == ("Done thinking.", "Let me check.")
    assert calls(outcome) == [("w", {})]


# E. GLM


@pytest.mark.parametrize("tool", ["glm45", "glm47"])
@pytest.mark.parametrize("name", ["get_now", "mcp__mail-x__list_all"])
def test_b29_call_without_arguments_in_one_line(tool: str, name: str) -> None:
    how = setting(tool, name)
    deltas = (f"<tool_call>{name[:3]}", name[3:], "</tool", "_call>")
    assert calls(run(how, *deltas)) == [(name, {})]
    assert how.pieces(deltas)[:3] == [[], [], []], "nothing before the closing tag decides it"


def test_b30_stray_tag_stays_out_of_the_key() -> None:
    text = "<tool_call>ls<arg_key>path</arg_key></arg_key><arg_value>/tmp</arg_value></tool_call>"
    assert calls(run(setting("glm45", "ls"), text)) == [("ls", {"path": "/tmp"})]


def test_b31_last_argument_an_object() -> None:
    text = (
        '<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n<arg_key>o</arg_key>\n<arg_value>{"k":1}</arg_value>\n</tool_call>'
    )
    assert calls(run(setting("glm45", n={"type": "integer"}, o={"type": "object"}), text)) == [("f", {"n": 7, "o": {"k": 1}})]


def test_b32_cut_closing_tag_ends_the_call() -> None:
    text = "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>00123</arg_value>\n</tool_ca"
    outcome = run(setting("glm45", code={"type": "string"}), text)
    assert calls(outcome) == [("f", {"code": "00123"})]
    assert outcome.content == ""


# F. Harmony


def test_b33_recipient_before_the_channel() -> None:
    text = '<|start|>assistant to=functions.w<|channel|>commentary <|constrain|>json<|message|>{"c":1}<|call|>'
    assert calls(run(setting("openai", "w", reasoning="openai_gptoss"), text)) == [("w", {"c": 1})]


def test_b34_malformed_headers_do_not_kill_the_turn() -> None:
    how = setting("openai", "web-browsing", reasoning="openai_gptoss")
    text = "<|channel|>commentary? to=functions.web-browsing<|channel|>commentary<|message|>{}<|call|>"
    assert calls(run(how, text)) == [("web-browsing", {})]
    assert run(how, "<|channel|>??<|message|>hi<|end|>") == Outcome(content="hi")


def test_b35_control_token_ends_a_name() -> None:
    text = "<|start|>assistant to=functions.cart<|channel|>commentary<|message|>{}<|call|>"
    assert calls(run(setting("openai", "cart", reasoning="openai_gptoss"), text)) == [("cart", {})]


def test_b36_tokens_in_groups_give_the_same() -> None:
    tokens = ["<|channel|>", "final", "<|message|>", "Hello", " there", "<|return|>"]
    how = setting("openai", reasoning="openai_gptoss")
    assert (
        how.outcome(["".join(tokens[:1]), "".join(tokens[1:4]), "".join(tokens[4:])])
        == how.outcome(tokens)
        == Outcome(content="Hello there")
    )


def test_b37_preamble_is_content_and_a_cut_call_stays_cut() -> None:
    text = (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.w <|constrain|>json<|message|>{"c":'
    )
    outcome = run(setting("openai", "w", reasoning="openai_gptoss"), text)
    assert (outcome.reasoning, outcome.content) == ("a", "I will look.")
    assert [(call.name, call.arguments) for call in outcome.calls] == [("w", '{"c":')]


# G. Mistral, Llama, Cohere, cross-family


def test_b38_both_calls_of_an_array() -> None:
    text = '[TOOL_CALLS] [{"name":"a","arguments":{}}, {"name":"b","arguments":{"n":3}}]'
    assert calls(run(setting("mistral", "a", "b"), text)) == [("a", {}), ("b", {"n": 3})]


def test_b39_named_form_and_a_mark_inside_a_string() -> None:
    deltas = ("[TOOL_CALLS]", "read", "[ARGS]", '{"p":"[ARGS]"}', "[TOOL_CALLS]ls[ARGS]{}")
    assert calls(run(setting("mistral", "read", "ls"), *deltas)) == [("read", {"p": "[ARGS]"}), ("ls", {})]


def test_b40_mistral_ids_are_nine_letters_and_digits() -> None:
    parser = build(reasoning=None, tool="mistral", tools=tools_named("a"))
    assert parser is not None
    pieces = parser.feed("[TOOL_CALLS]a{}[TOOL_CALLS]a{}")
    ids = [piece.id for piece in pieces if isinstance(piece, Call)]
    assert len(set(ids)) == 2
    assert all(call_id is not None and len(call_id) == 9 and call_id.isascii() and call_id.isalnum() for call_id in ids)


def test_b42_llama4_writes_json_or_python() -> None:
    how = setting("llama4_pythonic", "Bash")
    assert calls(run(how, '{"type":"function","name":"Bash","parameters":{"c":"ls"}}')) == [("Bash", {"c": "ls"})]
    assert calls(run(how, '[Bash(c="a]b, c=1")]')) == [("Bash", {"c": "a]b, c=1"})]


@pytest.mark.parametrize("tool", ["llama3_json", "json", "pythonic", "xlam", "hermes", "sarashina"])
def test_b43_ordinary_json_is_no_call(tool: str) -> None:
    for text in ('{"name":"Alice","age":3}', '[{"name":"Alice"}]', "[1, 2]", "[Alice(age=3)]", '{"name":"f","age":3}'):
        assert run(setting(tool), text) == Outcome(content=text)


def test_b44_cohere_text_marks() -> None:
    text = "<|START_THINKING|>t<|END_THINKING|><|START_TEXT|>Hi<|END_TEXT|>"
    assert run(Setting(reasoning="cohere_cmd"), text) == Outcome(reasoning="t", content="Hi")
    action = '<|START_ACTION|>[{"tool_call_id":"0","tool_name":"f","parameters":{"a":1}}]<|END_ACTION|>'
    outcome = run(setting("cohere", reasoning="cohere_cmd"), action)
    assert calls(outcome) == [("f", {"a": 1})]
    assert outcome.calls[0].id == "0"


def test_b46_a_call_is_closed_before_the_next_begins() -> None:
    deltas = (
        '<tool_call>{"name":"f","arguments":{"a":{"b":',
        '1}}}</tool_call><tool_call>{"name":"g","arguments":{"b":',
        "2}}</tool_call>",
    )
    how = setting("hermes", "f", "g")
    assert calls(run(how, *deltas)) == [("f", {"a": {"b": 1}}), ("g", {"b": 2})]
    second = how.pieces(deltas)[1]
    assert second == [CallArguments(0, "1}}"), Call(1, "g"), CallArguments(1, '{"b":')]


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("deepseek_v31", "<｜tool▁calls▁begin｜>" + "<｜tool▁sep｜>" * 50_000),
        ("glm45", "<tool_call>" + " " * 20_000),
        ("hermes", "<tool_call>" + " " * 20_000),
        ("qwen3_coder", "<tool_call>" + " " * 20_000),
    ],
)
def test_b48_what_is_no_call_is_kept(tool: str, text: str) -> None:
    outcome = setting(tool).outcome([text])
    assert outcome == Outcome(content=text)
    assert setting(tool).outcome([text[i : i + 7] for i in range(0, len(text), 7)]) == outcome


def test_b49_every_delta_of_a_long_argument_is_passed_on() -> None:
    deltas = ['<tool_call>{"name":"f","arguments":{"s":"', *["01234567"] * 20_000, '"}}</tool_call>']
    steps = setting("hermes").pieces(deltas)
    assert all(steps[i] == [CallArguments(0, "01234567")] for i in range(1, 20_001))


@pytest.mark.parametrize("text", ['[{"name": "f", "parameters": {"a": [1]}}, {"name":"g","parameters":{}}]'])
@pytest.mark.parametrize("before", ["", "[TOOL_CALLS]", "[TOOL_CALLS] ", "\n"])
def test_b86_required_as_an_array(text: str, before: str) -> None:
    assert calls(run(setting("json", "f", "g"), before + text)) == [("f", {"a": [1]}), ("g", {})]


def test_forced_tool_as_bare_arguments() -> None:
    """What tool_choice of one tool gives on engines that are held to its schema."""
    for deltas in (['work</think>\n{"a": ', '{"b": 1}}\n'], list('work</think>\n{"a": {"b": 1}}\n')):
        parser = build(reasoning="qwen3", tool="hermes", tools=tools_named("f"), in_think=True, named="f")
        assert parser is not None
        outcome = joined([piece for delta in deltas for piece in parser.feed(delta)] + parser.finish())
        assert outcome == Outcome(reasoning="work", calls=(Made(name="f", arguments='{"a": {"b": 1}}'),))


def test_arguments_given_twice_are_taken_once() -> None:
    text = '<tool_call>{"name":"f","arguments":{"a":1},"parameters":{"a":2}}</tool_call>'
    assert calls(run(setting("hermes"), text)) == [("f", {"a": 1})]


@pytest.mark.parametrize("tool", ["deepseek", "deepseek32", "deepseek_v4"])
def test_decoded_end_of_text_is_dropped(tool: str) -> None:
    assert run(setting(tool), "Done.<｜end▁of▁sentence｜>") == Outcome(content="Done.")


def test_a_mark_cut_between_its_tokens_is_not_shown() -> None:
    assert run(setting("kimi_k3"), "<|open|>tools<|sep|><|open|>") == Outcome()
