"""Arguments of past tool calls, as clients send them back (known-bugs B77)."""

import pytest

from smg.api.openai.messages import checked_messages
from smg.errors import InvalidValue


def conversation(arguments: object) -> list[dict[str, object]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize("arguments", ["{}", '{"a": 3}', "", " ", "null", " null\n", None])
def test_b77_objects_and_nothing_pass_as_they_are(arguments):
    messages = conversation(arguments)
    assert checked_messages(messages) == tuple(messages)


@pytest.mark.parametrize("arguments", ['"Beijing"', "[1]", "1", "true", '{"a"', "nullx", "NULL"])
def test_b77_anything_else_is_refused_with_its_place(arguments):
    with pytest.raises(InvalidValue) as caught:
        checked_messages(conversation(arguments))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"
