"""The parts that grammars are made of: marks, margins, JSON values, literals, schemas, typed arguments."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg.parser.margin import Margin
from smg.parser.matcher import Matcher
from smg.parser.tool.grammar.literal import Literal, literal_as_json
from smg.parser.tool.grammar.schema import as_json, kinds_of
from smg.parser.tool.grammar.value import JsonValue


def scanned(marks: tuple[str, ...], deltas: list[str]) -> list[str]:
    """Text and marks in order, text joined."""
    matcher, found, text = Matcher(marks), [], ""
    for delta in deltas:
        at = 0
        while at < len(delta):
            released, mark, at = matcher.scan(delta, at, len(delta))
            text += released
            if mark is not None:
                found += [text, mark]
                text = ""
    return [*found, text + matcher.take()]


@pytest.mark.parametrize("text", ["<<a>", "<a><a>", "a<a", "<<<<a>>x<a>", "<<a<a>", ""])
def test_marks_are_found_from_the_left(text: str) -> None:
    marks = ("<<a>", "<a>")
    whole = scanned(marks, [text])
    assert "".join(whole) == text
    assert scanned(marks, list(text)) == whole


def test_earliest_mark_wins() -> None:
    assert scanned(("<<a>", "<a>"), ["<<a>"]) == ["", "<<a>", ""]
    assert scanned(("<<a>", "<a>"), ["<<<a>y<a>"]) == ["<", "<<a>", "y", "<a>", ""]


@given(st.lists(st.sampled_from("<a>/x"), max_size=30).map("".join), st.integers(1, 5))
def test_marks_do_not_depend_on_the_division(text: str, size: int) -> None:
    marks = ("<a>", "</a>", "<<x", "xxa/")
    assert scanned(marks, [text[i : i + size] for i in range(0, len(text), size)]) == scanned(marks, [text])


@pytest.mark.parametrize("marks", [("<a", "<ab"), ("<a>", "<<a>>x")])
def test_a_mark_that_begins_another_is_a_mistake(marks: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="begins or lies inside"):
        Matcher(marks)


def shown(*parts: str, opened: bool = False, spaces: bool = False) -> str:
    """What a margin shows; None-like "|" stands for a mark."""
    out: list[str] = []
    margin = Margin(out.append, opened=opened, spaces=spaces)
    for part in parts:
        if part == "|":
            margin.mark()
        else:
            margin.text(part)
    margin.finish()
    return "".join(out)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("a\n", "|"), "a"),
        (("a \n\n", "|"), "a "),
        (("a \n", "|", "\nb"), "a \n\nb"),
        (("a\n",), "a\n"),
        (("\n\na",), "\n\na"),
        (("|", "\n\n  a"), "  a"),
        (("|", "\n \n"), ""),
        (("a", "|", " ", "|", " b"), "a  b"),
        (("a", "|", " "), "a"),
        (("\n", "|", "\n", "|"), ""),
    ],
)
def test_margins(parts: tuple[str, ...], expected: str) -> None:
    assert shown(*parts) == expected
    assert shown(*[char for part in parts for char in part]) == expected


def test_margin_with_spaces_as_layout() -> None:
    assert shown("  a b ", "|", opened=True, spaces=True) == "a b"


def values(text: str, deltas: list[str]) -> tuple[str, bool, bool]:
    value, out = JsonValue(), ""
    for delta in deltas:
        piece, at = value.read(delta, 0)
        out += piece
        if at < len(delta):
            break
    return out, value.done, value.broken


@pytest.mark.parametrize(
    ("text", "passed", "done", "broken"),
    [
        ('{"a": [1, {"b": "}"}]}rest', '{"a": [1, {"b": "}"}]}', True, False),
        ('"x\\"y"z', '"x\\"y"', True, False),
        (" 12,", "12", True, False),
        ("null}", "null", True, False),
        ('{"a\nb": 1}', '{"a\\nb": 1}', True, False),
        (r'{"a": "\d\'"}', r'{"a": "\\d\\' + "'" + '"}', True, False),
        ('{"a": <', '{"a": ', False, True),
        ("[1}", "[1", False, True),
        ('{"a": "b', '{"a": "b', False, False),
        ("<x", "", False, True),
    ],
)
def test_json_values(text: str, passed: str, done: bool, broken: bool) -> None:
    assert values(text, [text]) == values(text, list(text)) == (passed, done, broken)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=10,
)


@given(json_values.filter(lambda value: isinstance(value, dict | list)), st.booleans())
def test_json_is_passed_on_as_it_is(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert values(text, [text + "}"]) == values(text, [*text, "}"]) == (text, True, False)


@given(json_values)
def test_python_literals_become_json(value: object) -> None:
    made = literal_as_json(repr(value))
    assert made is not None
    assert json.loads(made) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'''a'b''c'''", "a'b''c"),
        ("r'\\d'", "\\d"),
        ("'\\x41\\u00e9\\U0001F600\\q\\\n'", "Aé😀\\q"),
        ("(1, 2,)", [1, 2]),
        ("{'a': (True, None), 2: ''}", {"a": [True, None], "2": ""}),
        ("[]", []),
        ("{}", {}),
        ("''", ""),
        ("'\\ud83d\\ude00'", "😀"),
        ("word", "word"),
        ("'a\nb'", "a\nb"),
    ],
)
def test_literals(text: str, value: object) -> None:
    made = literal_as_json(text if text != "word" and text != "''" else f"[{text}]")
    assert made is not None
    assert json.loads(made) == (value if text not in ("word", "''") else [value])


@pytest.mark.parametrize("text", ["[1", "[,]", "{'a' 1}", "f(", "[1] 2", "'a"])
def test_what_is_no_literal(text: str) -> None:
    assert literal_as_json(text) is None


def test_literals_with_a_quote_mark() -> None:
    text = '{a:<|"|>x "y" <b<|"|>,<|"|>k<|"|>:[1,true]}'
    for deltas in ([text], list(text)):
        value = Literal(mark='<|"|>')
        out = "".join(value.read(delta, 0)[0] for delta in deltas)
        assert value.done
        assert json.loads(out) == {"a": 'x "y" <b', "k": [1, True]}


@pytest.mark.parametrize(
    ("declared", "kinds"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1]}, {"string", "number"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/x"}, {"array"}),
        ({"$ref": "#/$defs/loop"}, {"string"}),
        ({"allOf": [{"oneOf": [{"type": "object"}]}]}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"properties": {}}, {"object"}),
        ({}, {"string"}),
        (True, {"string"}),
    ],
)
def test_types_in_schemas(declared: object, kinds: set[str]) -> None:
    root = {"properties": {"p": declared}, "$defs": {"x": {"type": "array"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert kinds_of(root, "p") == kinds  # type: ignore[arg-type]
    assert kinds_of({}, "p") == {"string"}


@pytest.mark.parametrize(
    ("text", "kinds", "made"),
    [
        ("7", {"integer"}, "7"),
        (" -1.5e3 ", {"number"}, "-1.5e3"),
        ("007", {"integer"}, '"007"'),
        ("True", {"boolean"}, "true"),
        ("None", {"string", "null"}, "null"),
        ("yes", {"boolean"}, '"yes"'),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ("{'a': None}", {"object"}, '{"a": null}'),
        ("{bad", {"object"}, '"{bad"'),
        ("[NaN]", {"array"}, '["NaN"]'),
        ("[" * 100_000, {"array"}, json.dumps("[" * 100_000)),
        ("12", {"string", "integer"}, "12"),
        ("null", {"any"}, "null"),
    ],
)
def test_text_made_json_by_type(text: str, kinds: set[str], made: str) -> None:
    assert as_json(text, frozenset(kinds)) == made
