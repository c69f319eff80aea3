"""Where the messages stand in a body, found by native code and by its specification; and what is made of the two parts."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smg._ext import value_span
from smg.api.openai.division import NOBODY, Division, Names, divided, plain_value_span

NAME = b"messages"
FINDERS = pytest.mark.parametrize("find", [value_span, plain_value_span], ids=["native", "plain"])

PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b" ",
    b"\n",
    b"\t",
    b'"messages"',
    b'"a"',
    b'"a\\"b"',
    b"1",
    b"null",
    b"{}",
    b"[]",
    b"\xc3",
    b"\x00",
    b"\\u006d",
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.just("messages"), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.sampled_from(PIECES), max_size=24).map(b"".join))
@example(b'{"messages":[]}')
@example(b'{"messages":"\\\\"}')
@example(b'{"messages":[}]}')
@example(b'{"messages":1]}')
def test_native_code_finds_what_the_specification_finds(body: bytes) -> None:
    for text in (body, b'{"messages":' + body, b'{"messages":' + body + b"}", b'{"a":' + body + b',"messages":[]}'):
        assert value_span(text, NAME) == plain_value_span(text, NAME)


@FINDERS
@given(
    content=st.dictionaries(st.text(max_size=8), values, max_size=4),
    messages=values,
    indent=st.none() | st.integers(0, 2),
    ascii=st.booleans(),
)
def test_a_value_is_found_in_any_json(find, content, messages, indent, ascii) -> None:
    content.pop("messages", None)
    body = json.dumps({**content, "messages": messages}, indent=indent, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    span = find(body, NAME)
    if any("\\" in json.dumps(key, ensure_ascii=ascii) for key in content):
        assert span is None
    else:
        assert json.loads(body[slice(*span)].decode("utf-8", "surrogatepass")) == messages


@FINDERS
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages":1',
        b'{"messages":}',
        b'{"messages":,}',
        b'{"messages":1}x',
        b'{"messages":1,"messages":2}',
        b'{"messages" 1}',
    ],
)
def test_what_cannot_be_divided(find, body: bytes) -> None:
    assert find(body, NAME) is None
    assert divided(body) is None


def test_the_parts_of_a_body() -> None:
    body = b'{"model": "m", "user": "u", "messages": [ {"role": "user"} ] , "metadata": {"messages": 1}, "n": 1}'
    assert divided(body) == Division(b'[ {"role": "user"} ]', Names(user="u"), b'{"model":"m","n":1}')
    assert divided(b'{"messages":[}') is None
    other = divided(b'{"messages":[broken]}')
    assert other == Division(b"[broken]", NOBODY, b"{}")  # whoever reads the messages finds out
    assert divided(b'{"messages":[],"user":5}') is None


def test_a_long_body_is_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    escapes = b'{"messages":"' + b'\\"' * 300_000 + b'"}'
    assert value_span(escapes, NAME) == (12, len(escapes) - 1)
    nested = b'{"messages":' + b"[" * 400_000 + b"]" * 400_000 + b"}"
    assert value_span(nested, NAME) == (12, len(nested) - 1)
    assert divided(nested) == Division(nested[12:-1], NOBODY, b"{}")
    assert msgspec.json.decode(b"[1]") == [1]
