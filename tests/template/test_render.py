"""What a request's messages go through before and after the template: content formats, arguments, roles, prefill, named templates,
switches."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from smg.errors import ConfigError, InvalidValue, TemplateRefused
from smg.template import ChatTemplate, load_template
from smg.template.content import iterates_content
from smg.template.environment import compile_template
from smg.tokenizer import ModelFolder
from smg.types.job import ChatInput

LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
USER: dict[str, Any] = {"role": "user", "content": "hi"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "The answer "}


def render(source: str, *messages: dict[str, Any], **more: Any) -> str:
    return ChatTemplate({"default": source}, special_tokens={"bos_token": "<s>"}).render(ChatInput(messages=messages, **more)).text


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


class TestContent:
    def test_b75_a_word_in_a_comment_says_nothing(self) -> None:
        assert render("{# revision: content of each image #}{{ messages[0].content }}", {"role": "user", "content": parts("hi")}) == "hi"

    def test_b75_a_loop_hidden_in_a_macro(self) -> None:
        source = (
            "{% macro r(x) %}{% for p in x %}{{ p.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ r(m.content) }}{% endfor %}"
        )
        assert render(source, USER) == "hi"
        assert render(source, {"role": "user", "content": parts("h", "i")}) == "hi"

    def test_parts_are_joined_by_lines_for_a_text_template(self) -> None:
        assert render(LOOP, {"role": "user", "content": parts("a", "b")}) == "[user]a\nb"

    def test_a_template_that_takes_both_gets_what_came(self) -> None:
        source = (
            "{% for m in messages %}{% if m.content is string %}S{{ m.content }}{% else %}"
            "{% for p in m.content %}P{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
        )
        assert render(source, USER, {"role": "user", "content": parts("a")}) == "ShiPa"

    def test_b82_formats_are_found_for_each_role(self) -> None:
        source = (
            "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}{% for p in m.content %}{{ p.text }}{% endfor %}"
            "{% else %}{{ m.content }}{% endif %}|{% endfor %}"
        )
        answer = {"role": "assistant", "content": parts("4")}
        assert render(source, {"role": "user", "content": parts("2+2?")}, answer, USER) == "2+2?|4|hi|"

    def test_b81_media_keep_their_place(self) -> None:
        source = (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
            "{% if p.type == 'text' %}{{ p.text }}{% else %}<{{ p.type }}>{% endif %}{% endfor %}{% endif %}{% endfor %}"
        )
        image, sound = {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "input_audio", "input_audio": {}}
        content = [*parts("a"), image, *parts("b"), sound]
        assert render(source, {"role": "user", "content": content}) == "a<image>b<audio>"

    def test_a_text_template_refuses_media(self) -> None:
        with pytest.raises(InvalidValue, match="text only") as caught:
            render(LOOP, USER, {"role": "user", "content": [*parts("a"), {"type": "image_url", "image_url": {"url": "x"}}]})
        assert caught.value.param == "messages[1].content[1]"

    @pytest.mark.parametrize(
        ("source", "loops"),
        [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
            ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", True),
            ("{% set c = messages[0].content %}{% for p in c | list %}{% endfor %}", True),
            ("{% macro r(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ r(messages[0].content) }}", True),
            ("{% macro r(a, c=1) %}{% for p in c %}{% endfor %}{% endmacro %}{{ r(1, c=messages[0].content) }}", True),
            ("{% macro r(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ r(messages) }}{{ messages[0].content }}", False),
            ("{# for p in message.content #}{% for t in tools %}{{ t.content }}{% endfor %}", False),
        ],
    )
    def test_the_flow_of_content(self, source: str, loops: bool) -> None:
        assert iterates_content(compile_template(source).tree) is loops


class TestArguments:
    SOURCE = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};"
        "{% endfor %}!{% endfor %}{% endfor %}"
    )

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [('{"b": 3, "a": "x"}', "b=3;a=x;!"), ("", "!"), (None, "!"), (" ", "!"), ({"a": 1}, "a=1;!"), ("{}", "!"), ("null", "!")],
    )
    def test_b76_templates_get_mappings(self, arguments: Any, text: str) -> None:
        assert render(self.SOURCE, USER, call(arguments)) == text

    @pytest.mark.parametrize("arguments", ['"Beijing"', "[1]", "{bad", "3", '{"a": NaN}', "[" * 100_000, 7, ["a"]])
    def test_b77_what_is_no_object_is_refused_with_its_place(self, arguments: Any) -> None:
        with pytest.raises(InvalidValue) as caught:
            render(self.SOURCE, USER, call(arguments))
        assert caught.value.param == "messages[1].tool_calls[0].function.arguments"

    def test_the_client_s_own_messages_are_not_changed(self) -> None:
        message = call('{"a": 1}')
        render(self.SOURCE, USER, message)
        assert message == call('{"a": 1}')


class TestRoles:
    ALTERNATING = (
        "{% if messages[0].role == 'system' %}S:{{ messages[0].content }};{% set rest = messages[1:] %}{% else %}"
        "{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('unexpected ' + m.role) }}{% endif %}"
        "{{ m.content }};{% endfor %}"
    )
    SKIPPING = "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"

    def test_b78_a_system_message_in_the_middle_moves_to_the_head_when_refused(self) -> None:
        roles = ["system", "user", "assistant", "system", "user"]
        conversation = [{"role": role, "content": role[0] + str(i)} for i, role in enumerate(roles)]
        assert render(self.ALTERNATING, *conversation) == "S:s0\n\ns3;u1;a2;u4;"
        assert render(LOOP, *conversation) == "[system]s0[user]u1[assistant]a2[system]s3[user]u4"

    def test_developer_is_system_where_the_template_does_not_know_it(self) -> None:
        developer = {"role": "developer", "content": "Be brief."}
        assert render(self.ALTERNATING, developer, USER) == "S:Be brief.;hi;"
        assert render(self.SKIPPING, developer, USER) == "system:Be brief.;user:hi;"
        assert render(LOOP, developer, USER) == "[developer]Be brief.[user]hi"

    def test_a_refusal_that_cannot_be_mended_keeps_its_first_words(self) -> None:
        with pytest.raises(TemplateRefused, match="unexpected tool"):
            render(self.ALTERNATING, USER, {"role": "tool", "content": "x"})

    def test_null_content_is_empty_where_the_template_joins_texts(self) -> None:
        assert render("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", USER, call({})) == "<hi><>"
        assert render("{% for m in messages %}{{ m.content is none }}{% endfor %}", USER, call({})) == "FalseTrue"

    def test_exactly_mends_nothing(self) -> None:
        template = ChatTemplate({"default": self.SKIPPING})
        assert template.render_exactly(ChatInput(messages=({"role": "developer", "content": "x"}, USER))) == "user:hi;"


class TestPrefill:
    def test_the_prompt_ends_inside_the_last_message(self) -> None:
        source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
        assert render(source, USER, ANSWER, continue_final_message=True) == "[user]hi[end][assistant]The answer "

    def test_a_template_that_trims(self) -> None:
        source = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"
        assert render(source, USER, ANSWER, continue_final_message=True) == "[user]hi[end][assistant]The answer"

    def test_parts(self) -> None:
        source = (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m.content %}{{ p.text }};{% endfor %}{% endif %}.{% endfor %}"
        )
        answer = {"role": "assistant", "content": parts("a", "b")}
        assert render(source, USER, answer, continue_final_message=True) == "hi.a;b"

    def test_nothing_to_go_on_with(self) -> None:
        with pytest.raises(InvalidValue):
            render(LOOP, USER, call({}), continue_final_message=True)
        with pytest.raises(TemplateRefused, match="leaves out"):
            render(
                "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
                USER,
                ANSWER,
                continue_final_message=True,
            )


class TestVariables:
    def test_b73_time_and_tags(self) -> None:
        template = ChatTemplate({"default": "{{ strftime_now('%d %b %Y %H:%M') }}"})
        assert template.render(ChatInput(messages=(USER,)), now=datetime(2026, 1, 15, 12)).text == "15 Jan 2026 12:00"

    def test_b80_tokens_that_are_not_there_are_undefined(self) -> None:
        assert render("{{ bos_token }}{% if eos_token is defined %}E{% endif %}", USER) == "<s>"

    def test_kwargs_reach_the_template_and_cannot_take_its_inputs(self) -> None:
        assert render("{{ enable_thinking }}", USER, template_kwargs={"enable_thinking": False}) == "False"
        for name in ("messages", "tools", "documents", "raise_exception", "strftime_now"):
            with pytest.raises(InvalidValue, match=name):
                render(LOOP, USER, template_kwargs={name: []})

    @pytest.mark.parametrize(("kwargs", "text"), [({}, "on"), ({"reasoning_effort": "none"}, "off"), ({"reasoning_effort": "high"}, "on")])
    def test_no_effort_switches_thinking_off(self, kwargs: dict[str, Any], text: str) -> None:
        for name in ("enable_thinking", "thinking"):
            assert render(f"{{{{ 'on' if {name} | default(true) else 'off' }}}}", USER, template_kwargs=kwargs) == text

    def test_the_client_s_own_switch_wins(self) -> None:
        kwargs = {"reasoning_effort": "none", "thinking": True}
        assert render("{{ thinking }}", USER, template_kwargs=kwargs) == "True"


class TestNamed:
    SET = {"default": "D{{ messages[0].content }}", "tool_use": "T", "rag": "R"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("more", "text"),
        [
            ({}, "Dhi"),
            ({"tools": ({"type": "function"},)}, "T"),
            ({"documents": ({"title": "t"},)}, "R"),
            ({"tools": ({"type": "function"},), "documents": ({"title": "t"},)}, "T"),
            ({"chat_template": "rag"}, "R"),
            ({"chat_template": "own {{ messages[0].content }}"}, "own hi"),
        ],
    )
    def test_choice(self, more: dict[str, Any], text: str) -> None:
        assert ChatTemplate(self.SET, trust_client=True).render(ChatInput(messages=(USER,), **more)).text == text

    @pytest.mark.parametrize(("source", "words"), [("{% if %}", "not valid"), ("x" * 40000, "longer than")])
    def test_a_bad_template_of_the_client(self, source: str, words: str) -> None:
        with pytest.raises(InvalidValue, match=words) as caught:
            ChatTemplate(self.SET, trust_client=True).render(ChatInput(messages=(USER,), chat_template=source))
        assert caught.value.param == "chat_template"

    def test_the_client_s_own_template_is_taken_only_where_trusted(self) -> None:
        template = ChatTemplate(self.SET)
        assert template.render(ChatInput(messages=(USER,), chat_template="rag")).text == "R"
        with pytest.raises(InvalidValue, match=r"trust-request-chat-template is off.*default, tool_use, rag") as caught:
            template.render(ChatInput(messages=(USER,), chat_template="own {{ messages[0].content }}"))
        assert caught.value.param == "chat_template"

    def test_override(self, tmp_path: Path) -> None:
        folder = ModelFolder(path=tmp_path, chat_templates=self.SET)
        tools = ChatInput(messages=(USER,), tools=({"type": "function"},))
        file = tmp_path / "own.jinja"
        file.write_text("F{{ messages[0].content }}")
        for override, text in ((None, "T"), (str(file), "Fhi"), ("X{{ 1 }}", "X1")):
            template = load_template(folder, override=override)
            assert template is not None
            assert template.render(tools).text == text
        named = load_template(folder, override="rag")
        assert named is not None
        assert named.source == "R"
        with pytest.raises(ConfigError, match="no such file"):
            load_template(folder, override="nowhere.jinja")
        assert load_template(ModelFolder(path=tmp_path)) is None
