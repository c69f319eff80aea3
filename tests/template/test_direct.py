"""Direct code gives what Jinja's own sandbox gives, text or error, for any template and any value; its shortcuts open no way out."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from smg.errors import ConfigError, TemplateRefused
from smg.template.environment import ENVIRONMENT, GenerationTag, compile_template


class OddDict(dict[str, Any]):
    """Answers as no dict does."""

    def __getitem__(self, key: str) -> Any:
        return f"item {key}"

    def __contains__(self, key: object) -> bool:
        return True

    def get(self, key: str, default: Any = None) -> Any:
        return f"got {key}"


class OddText(str):
    """Adds as no text does."""

    def __add__(self, other: object) -> Any:
        return "odd sum"

    def strip(self, characters: str | None = None, /) -> str:
        return "odd strip"

    def __len__(self) -> int:
        return 7


class OddList(list[Any]):
    """Has other items than it shows."""

    def __getitem__(self, place: Any) -> Any:
        return "odd item"

    def __len__(self) -> int:
        return 1


class Thing:
    """An object of the host's."""

    role = "thing"
    _hidden = "hidden"

    def __getitem__(self, key: str) -> str:
        if key != "role":
            raise KeyError(key)
        return "thing's item"


VARIABLES: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "hi", "items": "an item", "get": 1},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": "b"}}}]},
        {"role": "user", "content": [{"type": "text", "text": " x "}], "keys": [1]},
    ],
    "message": {"role": "user", "content": " <b> ", "a": {"role": {"content": "deep"}}, "values": 0, "_hidden": "mine", "": "empty"},
    "text": " some text ",
    "number": 3,
    "nothing": None,
    "empty": [],
    "pair": ("a", "b"),
    "odd_dict": OddDict(role="odd"),
    "odd_text": OddText("odd"),
    "odd_list": OddList([1, 2]),
    "safe": Markup("<i>"),
    "thing": Thing(),
}
NAMES = st.sampled_from([*VARIABLES, "absent", "v", "w", "ns"])
ATTRIBUTES = st.sampled_from(
    [
        "role",
        "content",
        "a",
        "items",
        "keys",
        "get",
        "values",
        "tool_calls",
        "function",
        "_hidden",
        "__class__",
        "absent",
        "first",
        "format",
    ]
)
TEXTS = st.sampled_from(["", "a", "user", "role", " ", "{0.__class__}", "<", "%s"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, ATTRIBUTES).map(lambda t: f"{t[0]}.{t[1]}"),
        st.tuples(inner, ATTRIBUTES).map(lambda t: f"{t[0]}[{t[1]!r}]"),
        st.tuples(inner, st.sampled_from(["0", "-1", "1", "1:", ":1", "'0'", "::-1"])).map(lambda t: f"{t[0]}[{t[1]}]"),
        pairs.map(lambda t: f"({t[0]} + {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} + 'x' + {t[1]} + '\\n' + {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"('a' + ({t[0]} + {t[1]}))"),
        pairs.map(lambda t: f"({t[0]} ~ {t[1]} ~ 'y')"),
        st.tuples(inner, st.sampled_from(["and", "or", "==", "!=", "in", "not in", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"({t} == 'user')"),
        inner.map(lambda t: f"({t} not in ['user', 'tool'])"),
        inner.map(lambda t: f"(not {t})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        pairs.map(lambda t: f"({t[0]} if {t[1]})"),
        st.tuples(
            inner,
            st.sampled_from(
                ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "true", "false", "boolean", "number"]
            ),
        ).map(lambda t: f"({t[0]} is {t[1]})"),
        st.tuples(
            inner, st.sampled_from(["trim", "length", "string", "tojson", "upper", "list", "first", "join('-')", "default('d')", "items"])
        ).map(lambda t: f"({t[0]} | {t[1]})"),
        st.tuples(
            inner,
            st.sampled_from(
                [
                    *("strip()", "split('m')", "items()", "get('role')", "get('absent', 1)", "startswith('u')", "upper()", "keys()"),
                    *("format(1)", "get(text)", "split(text, 1)", "strip('a', 'b')", "pop('role')", "get()", "find('e')", "values(1)"),
                ]
            ),
        ).map(lambda t: f"{t[0]}.{t[1]}"),
    )


EXPRESSIONS = st.recursive(
    st.one_of(NAMES, TEXTS.map(repr), st.sampled_from(["1", "none", "true", "[]", "{'a': absent}"])), _grown, max_leaves=6
)
LOOPS = st.sampled_from(["first", "last", "index", "index0", "length", "previtem", "nextitem", "revindex", "depth", "absent"])


def _blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(EXPRESSIONS, inner, EXPRESSIONS, inner).map(
            lambda t: f"{{% if {t[0]} %}}{t[1]}{{% elif {t[2]} %}}{t[3]}{{% else %}}-{{% endif %}}"
        ),
        st.tuples(EXPRESSIONS, st.sampled_from(["", " if v", " if loop is defined"]), LOOPS, inner, LOOPS).map(
            lambda t: f"{{% for v in {t[0]}{t[1]} %}}{{{{ loop.{t[2]} }}}}{t[3]}{{{{ loop.{t[4]} }}}}{{% else %}}none{{% endfor %}}"
        ),
        st.tuples(EXPRESSIONS, inner).map(lambda t: f"{{% for v in {t[0]} %}}{t[1]}{{% endfor %}}"),
        st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda t: f"{{% set w = {t[0]} %}}{{% set ns.w = {t[1]} %}}{{{{ w ~ ns.w }}}}"),
        st.tuples(inner, EXPRESSIONS).map(
            lambda t: f"{{% macro m(v, w='d') %}}{t[0]}{{% endmacro %}}{{{{ m({t[1]}) }}}}{{{{ m(w={t[1]}) }}}}"
        ),
        st.tuples(inner, inner).map("".join),
    )


TEMPLATES = st.recursive(st.one_of(EXPRESSIONS.map(lambda t: f"{{{{ {t} }}}}"), st.just("\nplain\n")), _blocks, max_leaves=5)


def oracle() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, ext.loopcontrols])
    environment.filters["tojson"] = ENVIRONMENT.filters["tojson"]
    environment.globals["raise_exception"] = ENVIRONMENT.globals["raise_exception"]
    return environment


ORACLE = oracle()


def plain(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def expected(source: str) -> tuple[str, str]:
    try:
        return "text", plain(ORACLE.from_string(source).render(VARIABLES))
    except Exception as error:
        return type(error).__name__, plain(str(error))


def found(source: str) -> tuple[str, str]:
    try:
        return "text", plain(compile_template(source).render(VARIABLES))
    except (TemplateRefused, ConfigError) as error:
        return type(error.__cause__).__name__, plain(str(error.__cause__))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # Python's own remarks on `1[1:]`, which Jinja writes out, too
@settings(deadline=None, max_examples=300)
@given(body=TEMPLATES)
def test_property_as_the_sandbox(body: str) -> None:
    source = "{% set ns = namespace(a='n', role='r') %}" + body
    assert found(source) == expected(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ message.items }}{{ messages[0]['items'] }}{{ messages[0].get }}{{ message.values }}",  # the object's own before its items
        "{{ message['values'] }}{{ message['keys'] }}{{ message['_hidden'] }}{{ message._hidden }}{{ message[''] }}",
        "{{ odd_dict.role }}{{ odd_dict['role'] }}{{ odd_dict.absent is defined }}",
        "{% if odd_dict.absent %}y{% endif %}{{ odd_dict.get('a') }}",
        "{{ odd_text + 'a' }}{{ 'a' + odd_text + 'b' }}{{ odd_text | trim }}{{ odd_text.strip() }}{{ odd_text | length }}",
        "{{ odd_list[0] }}{{ odd_list[-1] }}{{ odd_list | length }}{% for v in odd_list %}{{ v }}{{ loop.last }}{% endfor %}",
        "{{ safe + '<b>' }}{{ '<b>' + safe }}{{ '<b>' ~ safe }}{{ safe | trim }}{{ 'x' + safe + '&' }}",
        "{{ message.__class__ }}|{{ message['__class__'] }}|{{ text.__class__ }}|{{ thing._hidden }}|{{ thing.__init__ }}|{{ thing.role }}",
        "{{ absent.role }}",
        "{{ absent + 'x' }}",
        "{{ 'x' + message.absent + 'y' }}",
        "{{ 'x' + nothing + absent.role }}",
        "{{ message.content + number + absent.role }}",
        "{{ none.role }}{{ true.role }}{{ 'text'.role }}{{ 1.role is defined }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
        "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(1) }}{{ ns.__init__ }}{{ ns._x }}",
        "{{ message.pop('role') }}",
        "{{ messages[0].update({'role': 1}) }}",
        "{% set ns = namespace(a=1) %}{{ ns['a'] }}{{ ns.a }}{{ ns.absent }}{% set ns.a = none %}{{ ns.a }}{{ ns }}",
        "{% for v in messages | map(attribute='role') %}{{ loop.index }}{{ v }}{{ loop.last }}{{ loop.length }}{% endfor %}",
        "{% for k, v in message.items() %}{{ k }}{{ loop.last }}{{ loop.index0 }},{% endfor %}",
        "{% for v in messages recursive %}{{ loop.depth }}{{ v.role }}{{ loop([{'role': 'z'}]) if loop.depth < 3 }}{% endfor %}",
        "{% for v in messages %}{% for w in messages %}{{ loop.first }}{% endfor %}{{ loop.first }}{{ loop.cycle(1, 2) }}{% endfor %}",
        "{% for v in messages %}{% macro m() %}{{ loop.first }}{% endmacro %}{{ m() }}{% endfor %}",
        "{% for v in messages if loop is undefined %}{{ loop.last }}{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}",
        "{% for v in messages %}{% set x = v %}{{ x.role }}{% else %}e{% endfor %}{{ x }}{% for v in [] %}{% else %}e{% endfor %}",
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{{ varargs }}{{ caller() if caller }}{% endmacro %}{{ m(1, 2, 3, c=4) }}"
        "{% call m(1) %}c{% endcall %}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}",
        "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'set' %}{{ m() }}{% if number %}{% set late = 1 %}{% endif %}{{ late }}",
        "{% set x %}{{ text }}{{ number }}{% endset %}{{ x }}{% filter upper %}{{ text + 'a' }}{% endfilter %}",
        "{% with a = 1 %}{{ a }}{% endwith %}{{ a }}{{ self }}",
        "{% generation %}{{ text + 'x' }}{% endgeneration %}",
        "{% autoescape true %}{{ '<' + text }}{{ '<' }}{{ message.content }}{% endautoescape %}{{ message.content }}",
        "{% block b %}{{ text + 'x' }}{% for v in messages %}{{ loop.last }}{{ v.role }}{% endfor %}{% endblock %}{{ self.b() }}",
        "{{ raise_exception('no ' + message.role) }}",
        "{{ 'a' + raise_exception('first') + absent.role }}",
        "{{ range(3) | list }}{{ dict(a=1).a }}{{ cycler('a', 'b').next() }}",
        "{{ [1, 2][5] }}{{ 'ab'[0] }}{{ pair[0] }}{{ pair[-1] }}{{ empty[0] }}{{ empty[-1] is defined }}",
        "{{ text[1:] + text[:1] }}{{ message[1:] }}",
    ],
)
def test_as_the_sandbox(source: str) -> None:
    assert found(source) == expected(source)


def test_a_sum_too_deep_for_direct_code_is_compiled_the_sandbox_s_way() -> None:
    source = "{% set x = " + " + ".join(["message.role"] * 120) + " %}{{ x }}"
    assert found(source) == expected(source) == ("text", "user" * 120)


def test_what_a_template_builds_does_not_reach_the_next_render() -> None:
    template = compile_template("{{ x }}{% set x = 'left' %}{% set ns = namespace(y=1) %}{{ x }}")
    assert [template.render({}) for _ in range(2)] == ["left", "left"]
