"""What is generated from the tree: the TOML file, the tables, the help. Read back, a tree is the same tree."""

import re
import tomllib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg.config.fields import Field, Kind, convert, fields, sections
from smg.config.help import render_help
from smg.config.reference import render_markdown, render_toml, toml_value, value_of
from smg.config.tree import Config

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
STRATEGIES: dict[Kind, st.SearchStrategy[object]] = {
    "bool": st.booleans(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "text": TEXT,
    "list": st.lists(TEXT),
}


def accepted(field: Field, raw: object) -> bool:
    try:
        convert(field, raw, text=False)
    except ValueError:
        return False
    return True


def values_of(field: Field) -> st.SearchStrategy[object]:
    allowed = field.allowed()
    any_value = st.sampled_from([field.default, *allowed]) if allowed else STRATEGIES[field.kind]
    if field.kind in ("int", "float"):  # most numbers lie outside a range, so start from the one that is surely right
        any_value = st.one_of(st.just(field.default), any_value, st.integers(1, 200).map(lambda n: n + field.default))
    # not filter(): with this many fields nearly every tree would hold one value that is thrown away, and the tree with it
    return any_value.map(lambda raw: raw if accepted(field, list(raw) if isinstance(raw, tuple) else raw) else field.default)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    made: dict[str, dict[str, object]] = {name: {} for name in sections()}
    for field in fields():
        if not field.secret:
            raw = draw(values_of(field))
            made[field.section][field.name] = convert(field, list(raw) if isinstance(raw, tuple) else raw, text=False)
    return Config(**{name: cls(**made[name]) for name, cls in sections().items()})


def parse(text: str) -> Config:
    return msgspec.convert(tomllib.loads(text), Config)


@given(configs())
@settings(max_examples=60, deadline=None)
def test_a_tree_written_as_toml_reads_back_the_same(config: Config) -> None:
    assert parse(render_toml(config)) == config


def test_the_reference_with_its_keys_uncommented_is_the_defaults() -> None:
    text = render_toml(comment_out=True)
    assert tomllib.loads(text) == {name: {} for name in sections()}
    keys = re.sub(r"(?m)^#(\S)", r"\1", text)
    assert parse(keys) == Config()
    assert [f"{name}.{key}" for name, table in tomllib.loads(keys).items() for key in table] == [field.path for field in fields()]


@pytest.mark.parametrize("value", ["", 'a"b\\c', "a\nb\tc", "\x00\x1f\x7f", "ü€😀\u2028", "# no comment", "'''"])
def test_text_of_every_kind(value: str) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
    assert tomllib.loads(f"x = {toml_value((value, value))}") == {"x": [value, value]}


def test_secrets_are_hidden_and_origins_shown() -> None:
    config = msgspec.structs.replace(Config(), server=msgspec.structs.replace(Config().server, api_key=("sk-1",), port=7))
    text = render_toml(config, origins={"server.port": "--port"})
    assert "sk-1" not in text
    assert 'api_key = ["***"]' in text
    assert "port = 7  # --port\n" in text


def test_the_tables_have_every_key_flag_and_variable() -> None:
    text = render_markdown()
    for field in fields():
        row = next(line for line in text.splitlines() if f"`{field.variable}`" in line)
        assert f"`{field.name}`" in row
        assert all(f"`{flag}`" in row for flag in field.flags)
        assert len(re.findall(r"(?<!\\)\|", row)) == 6


@pytest.mark.parametrize("width", [60, 120])
def test_help_has_every_flag_with_its_meaning_and_default(width: int) -> None:
    text = render_help(width=width)
    for field in fields():
        for flag in field.flags:
            assert re.search(rf"(?m)^  (\S+, )*{re.escape(flag)}[ ,\n]", text), flag
            assert field.kind != "bool" or f"--no-{flag[2:]}" in text
    words = " ".join(text.split())
    for field in fields():
        assert field.description in words
    assert "listen on; 0 takes a free one and logs it (30000)" in words
    assert "/etc/smg/smg.toml" in text
    assert all(f"[{name}]" in text for name in sections())


def test_help_tells_a_long_choice_once_and_fits_the_terminal() -> None:
    text = render_help(width=100)
    assert text.count("power_of_two") == 1
    assert "--backend, --runtime auto|vllm|" in text
    assert "--decode-policy POLICY" in text
    assert [line for line in text.splitlines() if len(line) > 100 and line[0] not in "[ "] == []
    assert all(len(line) <= 100 for line in text.partition("\n[server]")[0].splitlines())


def test_value_of_reads_the_tree() -> None:
    assert {field.path: value_of(Config(), field) for field in fields()} == {field.path: field.default for field in fields()}
