"""A template that runs for ever, makes something huge or reaches for the host is stopped; healthy ones are not."""

import threading
import time
import tracemalloc
from datetime import datetime

import pytest

from smg.errors import ConfigError, TemplateRefused
from smg.template.environment import CompiledTemplate, compile_template
from smg.template.guard import STEPS_PER_LOOK, Budget

ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in [[1, 2]] recursive %}{{ loop([x, x]) if loop.depth < 60 }}{% endfor %}",
    "{% set ns = namespace(l=range(99999) | list) %}{% for a in range(9999) %}{% for x in ns.l if x < 0 %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 40 + "x" + "{% endcall %}" * 40,
]
HUGE = [
    "{{ 'a' * 10 ** 10 }}",
    "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ 'a' | center(width=9999999999) }}",
    "{{ 'a'.ljust(9999999999) }}",
    "{{ 'a'.zfill(9999999999) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%*d' % (9999999999, 1) }}",
    "{{ '%9999999999d' | format(1) }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=9999999999) }}",
    "{{ 'a' | indent(9999999999, true) }}",
    "{{ [1] | tojson(indent=9999999999) }}",
    "{{ [1] | batch(9999999999, 0) | list }}",
    "{{ [1] | slice(9999999999) | list }}",
    "{% set x = 'a' * 60000 %}{{ x | replace('a', x) }}",
    "{% set x = 'a' * 60000 %}{{ x.replace('a', x) }}",
    "{% set x = 'a' * 600000 %}{{ x.join(range(9999) | map('string') | list) }}",
    "{% macro m(x) %}{{ x }}{{ x }}{{ x }}{{ x }}{% endmacro %}{{ m(m(m(m(m(m(m(m(m(m(m(m('a' * 60000)))))))))))) }}",
    "{{ range(10 ** 9) | list }}",
    # what is small until it is written out
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ 'a' ~ ns.x }}",
    "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x | string }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x] + [ns.x] %}{% endfor %}{{ ns.x | tojson(indent=1) }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x[:]] * 2 %}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% macro m() %}{% set ns.x = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ m(ns.x, ns.x) }}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% macro m() %}{% set ns.x = kwargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ m(a=ns.x, b=ns.x) }}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x | batch(99, ns.x) | list %}{% endfor %}{{ ns.x | tojson }}",
    # many times the same
    "{% set x = 'a' * 60000 %}{{ ([x] * 60000) | join }}",
    "{% set x = 'a' * 60000 %}{{ ([{'a': x}] * 60000) | join('', attribute='a') }}",
    "{% set x = 'a' * 60000 %}{{ range(9999) | join(x) }}",
    "{% set x = 'a' * 600000 %}{{ ('%(a)s' * 1000) | format(a=x) }}",
    "{% set x = 'a' * 600000 %}{{ ('%(a)s' * 1000) % {'a': x} }}",
    "{% set x = 'a' * 600000 %}{{ ('{0}' * 1000).format(x) }}",
    # one by one, never written
    "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['a' * 6000000] %}{% endfor %}",
]
# Work in single steps that are no loops of the template's.
COSTLY = [
    "{% set x = range(99999) | list * 20 %}" + "{% set y = x | sum %}" * 300,
    "{% set x = 'a ' * 3000000 %}" + "{% set y = x | title %}" * 50,
    "{% set x = 'a ' * 3000000 %}" + "{% set y = x.split() %}" * 50,
    "{% set x = 'a' * 6000000 %}" + "{% set y = x | replace('b', 'c') %}" * 500,
]
HOST = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__['__builtins__'] }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ ('%s' | format).__globals__ }}{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ lipsum(n=1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% set x = messages.append(1) %}{{ x }}",
    "{{ messages.__setitem__(0, 1) }}",
]


def run(template: CompiledTemplate, *, seconds: float = 5.0) -> str:
    return template.render({"messages": [{"role": "user", "content": "x"}]}, seconds=seconds)


@pytest.mark.parametrize("source", ENDLESS, ids=range(len(ENDLESS)))
def test_a_template_that_runs_for_ever_is_stopped(source: str) -> None:
    template = compile_template(source)
    start = time.thread_time()
    with pytest.raises(TemplateRefused, match=r"ran for more than|recursion"):
        run(template, seconds=0.3)
    assert time.thread_time() - start < 3


@pytest.mark.parametrize("source", COSTLY, ids=range(len(COSTLY)))
def test_large_values_count_as_steps(source: str) -> None:
    template = compile_template(source)
    start = time.thread_time()
    with pytest.raises(TemplateRefused, match=r"ran for more than|in all"):
        run(template, seconds=0.1)
    assert time.thread_time() - start < 3


def test_all_renders_of_a_request_have_one_budget() -> None:
    template = compile_template("{% for a in range(2000) %}{% for b in range(200) %}{% endfor %}{% endfor %}x")

    def often() -> None:
        for _ in range(1000):
            template.render({}, seconds=5)

    with Budget(0.05), pytest.raises(TemplateRefused, match="ran for more than"):
        often()


@pytest.mark.parametrize("source", HUGE, ids=range(len(HUGE)))
def test_nothing_huge_is_made(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((TemplateRefused, ConfigError)):
            run(compile_template(source))
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", HOST, ids=range(len(HOST)))
def test_the_host_is_out_of_reach(source: str) -> None:
    try:
        text = run(compile_template(source))
    except (TemplateRefused, ConfigError):
        return
    assert not any(word in text for word in ("uid=", "<class", "builtins", "root:", "module"))


def test_the_looks_are_few() -> None:
    """The clock is read once in STEPS_PER_LOOK steps, so healthy templates pay next to nothing."""
    template = compile_template("{% for i in range(10000) %}x{% endfor %}")
    calls = 0
    clock = time.thread_time

    def counting() -> float:
        nonlocal calls
        calls += 1
        return clock()

    time.thread_time = counting  # type: ignore[assignment]
    try:
        assert len(run(template)) == 10000
    finally:
        time.thread_time = clock
    assert 1 <= calls <= 10000 / STEPS_PER_LOOK + 2


def test_threads_have_their_own_budget_and_time() -> None:
    """One thread's endless render does not stop another's; each prompt has its own time."""
    endless, healthy = compile_template(ENDLESS[0]), compile_template("{{ strftime_now('%Y') }}{% for i in range(3000) %}x{% endfor %}")
    refused: list[str] = []

    def forever() -> None:
        try:
            run(endless, seconds=0.5)
        except TemplateRefused as error:
            refused.append(error.message)

    thread = threading.Thread(target=forever)
    thread.start()
    for year in range(2000, 2010):
        assert healthy.render({}, now=datetime(year, 1, 1)).startswith(f"{year}x")
    thread.join(20)
    assert len(refused) == 1


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% for %}", "{{ 'a' | nothing }}", "{% nothing %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"]
)
def test_a_broken_template_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="not valid"):
        compile_template(source)


def test_a_huge_template_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="longer"):
        compile_template("x" * (1 << 21))


def test_own_words_of_a_refusal() -> None:
    with pytest.raises(TemplateRefused) as caught:
        run(compile_template("{{ raise_exception('No such role!') }}"))
    assert caught.value.message == "No such role!"


@pytest.mark.parametrize("name", ["fromjson", "from_json"])
def test_json_filters_of_other_runtimes(name: str) -> None:
    template = compile_template("{{ (text | " + name + ").a }}")
    assert template.render({"text": '{"a": 7}'}) == "7"
