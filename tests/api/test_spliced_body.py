"""Fields set in a body that is passed on: the others stay as they were sent."""

import msgspec
import pytest

from smg._ext import value_span
from smg.api import spliced_body
from smg.api.openai.division import plain_value_span
from smg.api.spliced_body import Asked, asked_in, spliced
from smg.errors import InvalidJson

SPANS = pytest.mark.parametrize("span", [value_span, plain_value_span], ids=["native", "plain"])


@SPANS
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"a":[1],"b":null}'),
        (b" { } \n", b' { "a":[1],"b":null} \n'),
        (b'{"a":{"a":"}"},"z":1.50}', b'{"a":[1],"z":1.50,"b":null}'),
        (b'{ "b" : "x" ,\n"a":1 }', b'{ "b" : null ,\n"a":[1] }'),
        (b'{"z":{"a":1}}', b'{"z":{"a":1},"a":[1],"b":null}'),
    ],
)
def test_all_else_stays(span: object, body: bytes, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spliced_body, "find_value", span)
    assert spliced(body, {"a": b"[1]", "b": b"null"}) == expected


@SPANS
@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'{"\\u0061":1}', b'{"a":1,"\\u0061":2}'])
def test_no_second_field_of_a_name_is_left(span: object, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spliced_body, "find_value", span)
    assert spliced(body, {"a": b"5"}) == b'{"a":5}'


def test_some_fields_are_only_replaced() -> None:
    assert spliced(b'{"a":1}', {}, {"a": b"2", "b": b"3"}) == b'{"a":2}'


def test_what_is_no_object() -> None:
    with pytest.raises(InvalidJson):
        spliced(b'{"a":', {"a": b"1"})


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, Asked()),
        ({"prompt": "[1]"}, Asked()),
        ({"prompt": [1, 2]}, Asked()),
        ({"prompt": []}, Asked()),
        ({"prompt": ["a", "b", "c"]}, Asked(prompts=3)),
        ({"prompt": [[1], [2, 3]]}, Asked(prompts=2)),
        ({"prompt_logprobs": 0}, Asked(scored=True)),
        ({"prompt_logprobs": None, "echo": None}, Asked()),
        ({"echo": True}, Asked(scored=True)),
        ({"echo": False}, Asked()),
    ],
)
def test_what_is_asked_for(fields: dict[str, object], asked: Asked) -> None:
    assert asked_in(msgspec.json.encode(fields)) == asked
    assert asked_in(msgspec.json.format(msgspec.json.encode(fields), indent=2)) == asked
