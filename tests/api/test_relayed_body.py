"""What is read of a body that is passed on, and what the one change that is made to it leaves alone."""

import msgspec
import pytest

from smg.api.relayed_body import Outline, outline_of_form, outline_of_json, rename_in_form, rename_in_json
from smg.errors import InvalidJson, InvalidValue

MEDIA = 'multipart/form-data; boundary="--x y"'
SOUND = b"RIFF\r\n--nearly\r\n\r\n\x00\xff" * 100
FORM = (
    b'preamble\r\n----x y\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    + SOUND
    + b'\r\n----x y\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper'
    + b'\r\n----x y\r\ncontent-disposition: form-data; name="stream"\r\n\r\nTrue\r\n----x y--\r\n'
)


def test_an_outline() -> None:
    body = b'{"user":"u","messages":[],"model":"m","stream":true}'
    assert outline_of_json(body) == Outline(model="m", stream=True, user="u")
    assert outline_of_json(b'{"model":null,"user":{"a":1},"stream":null,"n":"x","max_tokens":-1}') == Outline()
    asked = outline_of_json(b'{"max_tokens":5,"max_completion_tokens":7,"n":2}')
    assert (asked.max_tokens, asked.n) == (7, 2)
    assert outline_of_json(b'{"max_output_tokens":6}').max_tokens == 6


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]},
            "\nsystem: S\nuser: U",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 9999}}]}]}, "\nuser: "),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "\nassistant: "),
        ({"system": [{"type": "text", "text": "S"}], "messages": [{"role": "user", "content": "U"}]}, "S\nuser: U"),
        ({"instructions": "I", "input": "U"}, "IU"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "U"}]}]}, "\nuser: U"),
        ({"input": ["a", "b"]}, "a\nb"),
        ({"input": [1, 2]}, ""),
        ({"prompt": "P"}, "P"),
        ({"prompt": ["P", "Q"]}, "P\nQ"),
        ({"query": "Q", "documents": ["d", "e"]}, "Qd\ne"),
        ({"messages": 5, "prompt": {"a": 1}, "documents": [{"text": "d"}]}, "d"),
        ({"tools": [1], "messages": [{"role": "user", "content": "U"}]}, "[1]\nuser: U"),
    ],
)
def test_the_text_of_a_prompt(fields: dict[str, object], text: str) -> None:
    assert outline_of_json(msgspec.json.encode(fields)).text == text


def test_what_goes_on_alike_begins_alike() -> None:
    first = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    more = [*first, {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]
    texts = [outline_of_json(msgspec.json.encode({"model": "m", "messages": messages})).text for messages in (first, more)]
    assert texts[1].startswith(texts[0])


def test_what_cannot_be_read() -> None:
    for body in (b"", b"{", b"[]", b"\xff", b'{"a":' * 100_000):
        with pytest.raises((InvalidJson, InvalidValue)):
            outline_of_json(body)
    with pytest.raises(InvalidValue, match="model must be a string"):
        outline_of_json(b'{"model": 5}')


def test_another_model_and_nothing_else() -> None:
    body = b'{ "z": 1.0e0,\n "model" : "old", "a": {"b" : [1,  2, "\\u00e9"]}, "big": 123456789012345678901234567890}'
    assert rename_in_json(body, 'n"w') == (
        b'{"z":1.0e0,"model":"n\\"w","a":{"b" : [1,  2, "\\u00e9"]},"big":123456789012345678901234567890}'
    )


def test_a_form() -> None:
    assert outline_of_form(FORM, media=MEDIA) == Outline(model="whisper", stream=True)
    assert rename_in_form(FORM, "large", media=MEDIA) == FORM.replace(b"whisper", b"large")
    assert outline_of_form(FORM[:50], media=MEDIA) == Outline()
    assert outline_of_form(b"", media=MEDIA) == Outline()
    with pytest.raises(InvalidValue, match="boundary"):
        outline_of_form(FORM, media="multipart/form-data")


def test_forms_are_read_in_one_walk() -> None:
    many = b"--b\r\n" * 300_000
    assert outline_of_form(many, media="multipart/form-data; boundary=b") == Outline()
    assert outline_of_form(b"--b" + b"\r\n--b name=" * 100_000, media="multipart/form-data; boundary=b") == Outline()
