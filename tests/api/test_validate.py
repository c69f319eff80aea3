"""`x-smg-validate`: which outputs fit, which schemas are refused, and that neither can cost more than it may."""

import asyncio
import json
import socket
import threading

import pytest

from smg.api.errors import error_reply
from smg.api.openai.chat import chat_completions
from smg.api.openai.completions import completions
from smg.api.openai.schema_check import SchemaCheck
from smg.api.openai.validate import OutputCheck, output_check
from smg.errors import InvalidValue, OutputInvalid
from smg.types.event import Content, Finished, Reasoning, ToolArguments, ToolCall, Usage
from smg.types.job import ChatInput, Constraint, Job, TextInput
from tests.api.fake import STARTED, FakePipeline, call, request, services

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"$ref": "#/$defs/word"}}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
}
USAGE = Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=0, reasoning_tokens=0)


def constraint(schema=SCHEMA):
    return Constraint(kind="json_schema", value=json.dumps(schema))


def tool(name, schema, strict=True):
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}


def job(of=None, tools=()):
    source = ChatInput(messages=({"role": "user", "content": "x"},), tools=tuple(tools))
    return Job(request_id="r", surface="openai.chat", model="m", input=source, constraint=of)


def made(of=None, tools=(), asked="true") -> OutputCheck | None:
    return asyncio.run(output_check(job(of, tools), asked=asked))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1}', None),
        ('{"a": 1, "b": ["x", "yz"]}', None),
        (' {"a":1}\n', None),
        ('{"a": "1"}', 'a: "1" is not of type "integer"'),
        ('{"a": 1, "b": ["x", "Y"]}', 'b[1]: "Y" does not match "^[a-z]+$"'),
        ("{}", '"a" is a required property'),
        ('{"a": 1, "c": 2}', "Additional properties"),
        ('{"a": 1', "it is no JSON: input data was truncated"),
        ("", "it is no JSON: input data was truncated"),
        ('{"a": 1} and more', "it is no JSON: trailing characters (byte 10)"),
        ('{"a": NaN}', "it is no JSON: invalid character (byte 6)"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_schema(text, fault):
    found = made(constraint()).check(text, [])
    if fault is None:
        assert found is None
    else:
        assert found.startswith("the output does not fit the response format: ")
        assert fault in found


@pytest.mark.parametrize(("text", "fits"), [("{}", True), ('{"a":[1]}', True), ("[]", False), ('"x"', False), ("{", False), ("hi", False)])
def test_any_object(text, fits):
    assert (made(Constraint(kind="json_object")).check(text, []) is None) is fits


def test_calls_of_strict_tools():
    check = made(tools=[tool("f", SCHEMA), tool("g", SCHEMA, strict=False), tool("h", None)])
    assert check.check("prose", [("f", '{"a":1}'), ("g", "broken"), ("h", "{}"), ("unknown", "x")]) is None
    assert "the arguments of f do not fit" in check.check("", [("f", '{"a":1}'), ("f", '{"a":[]}')])
    assert "the arguments of h do not fit" in check.check("", [("h", "[1]")])


def test_text_beside_calls_is_not_the_formatted_output():
    assert made(constraint()).check("Let me look.", [("f", "{}")]) is None


@pytest.mark.parametrize("asked", [None, "", "false", "0", "False"])
def test_nothing_is_checked_unasked(asked):
    assert made(constraint(), asked=asked) is None


def test_nothing_to_check():
    assert made() is None
    assert made(Constraint(kind="regex", value="a+")) is None
    assert made(tools=[tool("f", SCHEMA, strict=False)]) is None
    plain = Job(request_id="r", surface="s", model="m", input=TextInput(text="x"), constraint=constraint())
    assert asyncio.run(output_check(plain, asked=" TRUE ")).check("{}", [])


def test_a_header_that_makes_no_sense():
    with pytest.raises(InvalidValue, match="x-smg-validate must be true or false"):
        made(asked="yes please")


def take(check, *lists):
    async def run():
        return [await check.take(events) for events in lists]

    return asyncio.run(run())


def test_a_choice_that_ends_badly_ends_the_answer_before_its_end():
    said = [Content(0, '{"a"'), Reasoning(0, "hm"), Content(0, ": "), Content(1, '{"a": 1}')]
    results = take(made(constraint()), said, [Finished(1, "stop")], [Content(0, "x}"), Finished(0, "stop"), USAGE])
    assert results[0] == (said, None)
    assert results[1] == ([Finished(1, "stop")], None)
    shown, error = results[2]
    assert shown == [Content(0, "x}")]
    assert isinstance(error, OutputInvalid)


def test_good_answers_pass_as_they_are():
    said = [Content(0, '{"a": 1}'), Finished(0, "stop"), USAGE]
    assert take(made(constraint()), said) == [(said, None)]


def test_calls_are_put_together_from_their_pieces():
    events = [ToolCall(0, 0, "i", "f"), ToolArguments(0, 0, '{"a"'), ToolCall(0, 1, "j", "f"), ToolArguments(0, 1, '{"a":1}')]
    _, error = take(made(tools=[tool("f", SCHEMA)]), [*events, Finished(0, "tool_calls")])[0]
    assert "the arguments of f" in error.message
    good = [*events[:2], ToolArguments(0, 0, ":2}"), *events[2:]]
    assert take(made(tools=[tool("f", SCHEMA)]), [*good, Finished(0, "tool_calls")])[0][1] is None


def test_an_output_that_was_cut_off_says_so():
    _, error = take(made(constraint()), [Content(0, '{"a": '), Finished(0, "length")])[0]
    assert error.message.endswith("(it was cut off at the limit of its length)")


def test_an_empty_output_is_no_object():
    assert isinstance(take(made(constraint()), [Finished(0, "stop")])[0][1], OutputInvalid)


def test_an_aborted_choice_has_its_own_error():
    assert take(made(constraint()), [Finished(0, "abort")]) == [([Finished(0, "abort")], None)]


def test_large_outputs_leave_the_event_loop(monkeypatch):
    threads = []
    original = OutputCheck.check
    monkeypatch.setattr(OutputCheck, "check", lambda *args: threads.append(threading.current_thread()) or original(*args))
    take(made(constraint()), [Content(0, '{"a": 1}'), Finished(0, "stop")])
    text = json.dumps({"a": 1, "b": ["x"] * 10_000})
    assert take(made(constraint()), [Content(0, text), Finished(0, "stop")])[0][1] is None
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def doubling(levels: int) -> dict[str, object]:
    """A schema of few bytes whose places double with each level."""
    steps = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(levels)}
    return {"$defs": {**steps, f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def chain(length: int) -> dict[str, object]:
    steps = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": {**steps, f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def constraint_of_deep(depth: int) -> Constraint:
    return Constraint(kind="json_schema", value='{"items":' * depth + "{}" + "}" * depth)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"properties": 3},
        {"$ref": "http://127.0.0.1:9/x"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json#/a"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
        {"$schema": "http://127.0.0.1:9/x"},
        {"$dynamicRef": "#x"},
        {"properties": {"a": {"$id": "http://a/"}}},
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "a{1000}{1000}{1000}"},
        {"pattern": "[["},
        {"allOf": [{"pattern": f"^{i}$"} for i in range(101)]},
        {"patternProperties": {f"^{i}$": {} for i in range(101)}},
        doubling(40),
        doubling(4000),
        {"properties": {"default": doubling(40), "$defs": {}}, "$defs": doubling(40)["$defs"]},
        chain(20_000),
        nested(400),
        {"anyOf": [{"const": i} for i in range(12_000)]},
    ],
)
def test_schemas_that_cannot_be_held_are_refused_before_anything_runs(schema):
    with pytest.raises(InvalidValue) as caught:
        made(constraint(schema))
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_nesting_is_bounded(depth):
    with pytest.raises(InvalidValue):
        made(constraint_of_deep(depth))


def test_a_tools_schema_is_refused_by_name():
    with pytest.raises(InvalidValue) as caught:
        made(tools=[tool("f", {"pattern": "(?=a)b"})])
    assert caught.value.param == "tools (f)"


def test_references_are_never_fetched():
    """Somebody listens there, and nobody knocks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
        for schema in ({"$ref": url}, {"$schema": url}, {"$id": url, "$ref": f"{url}#/a"}):
            with pytest.raises(InvalidValue):
                made(constraint(schema))
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_patterns_take_linear_time():
    """A backtracking engine would not come back."""
    assert SchemaCheck({"pattern": "^(a+)+$"}, param="s").fault(json.dumps("a" * 50_000 + "b"))


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}]
)
def test_schemas_that_only_refer_to_themselves(schema):
    assert SchemaCheck(schema, param="s").fault("1") is None


@pytest.mark.parametrize("word", ["oneOf", "anyOf", "allOf"])
def test_recursive_schemas_take_no_longer_at_depth(word):
    """Two ways down at each level: without memory, a check of 2**60 steps."""
    node = {"type": "object", word: [{"properties": {"c": {"$ref": "#/$defs/n"}}}, {"properties": {"c": {"$ref": "#/$defs/n"}}}]}
    value: object = 1
    for _ in range(60):
        value = {"c": value}
    assert SchemaCheck({"$defs": {"n": node}, "$ref": "#/$defs/n"}, param="s").fault(json.dumps(value))


def test_recursive_schemas_work():
    tree = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["v"],
    }
    check = SchemaCheck(tree, param="s")
    assert check.fault('{"v": 1, "kids": [{"v": 2, "kids": []}]}') is None
    assert check.fault('{"v": 1, "kids": [{"v": "2"}]}') == "it does not fit the schema"


def test_work_is_bounded():
    schema = {"items": {"$ref": "#/$defs/d0"}, "$defs": doubling(8)["$defs"]}
    check = SchemaCheck(schema, param="s")
    assert check.fault(json.dumps([1] * 500)) is None
    assert check.fault(json.dumps([1] * 5_000)) == "it is too large to be checked against this schema"


def test_names_that_are_keywords_elsewhere():
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in ("$ref", "pattern", "const", "$id", "enum", "items")}}
    check = SchemaCheck({"$id": "http://a/b", "$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, param="s")
    assert check.fault('{"$ref": 1, "pattern": 2, "const": 3, "$id": 4}') is None
    assert check.fault('{"$ref": "1"}') == '$ref: "1" is not of type "integer"'


def test_what_is_told_is_short():
    told = SchemaCheck({"type": "integer"}, param="s").fault(json.dumps("x" * 10_000))
    assert len(told) < 300


TRUE = {"x-smg-validate": "true"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def ask(script, *, body=None, headers=TRUE, handler=chat_completions):
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": FORMAT} | (body or {})
    return call(handler, asked, services(FakePipeline([[STARTED], *script])), headers=headers)


BAD = [[Content(0, '{"a": '), Content(0, '"1"}')], [Finished(0, "stop")], [USAGE]]
GOOD = [[Content(0, '{"a": '), Content(0, "1}")], [Finished(0, "stop")], [USAGE]]


def test_a_whole_chat_that_does_not_fit_is_an_error():
    with pytest.raises(OutputInvalid) as caught:
        ask(BAD)
    reply = error_reply(caught.value, surface="openai")
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (502, "output_invalid")


@pytest.mark.parametrize("headers", [None, {}, {"x-smg-validate": "false"}])
def test_nobody_is_held_up_who_did_not_ask(headers):
    assert json.loads(ask(BAD, headers=headers)[0])["choices"][0]["message"]["content"] == '{"a": "1"}'


@pytest.mark.parametrize("stream", [False, True])
def test_checked_answers_are_what_unchecked_ones_are(stream):
    one, other = (ask(GOOD, body={"stream": stream}, headers=asked)[0] for asked in (TRUE, None))
    assert one == other


def test_a_streamed_chat_that_does_not_fit_ends_in_an_error_and_has_no_finish_reason():
    async def run():
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": FORMAT, "stream": True}
        reply = await chat_completions(request(body, headers=TRUE), services(FakePipeline([[STARTED], *BAD])))
        writes = []
        with pytest.raises(OutputInvalid):
            await reply.pump(lambda chunk: writes.append(chunk) or True)
        return b"".join(writes)

    told = asyncio.run(run())
    assert b'"1\\"}' in told
    assert b'"finish_reason":"stop"' not in told


def test_completions_are_checked_one_prompt_at_a_time():
    body = {"prompt": ["x", "y"], "messages": None}
    assert [one["text"] for one in json.loads(ask(GOOD, body=body, handler=completions)[0])["choices"]] == ['{"a": 1}'] * 2
    with pytest.raises(OutputInvalid):
        ask(BAD, body=body, handler=completions)


def test_schemas_are_refused_before_an_engine_is_asked():
    made = services(FakePipeline([[STARTED], *GOOD]))
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "(?=x)"}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": schema}
    with pytest.raises(InvalidValue):
        call(chat_completions, body, made, headers=TRUE)
    assert made.pipeline.jobs == []
    call(chat_completions, body, made)
    assert len(made.pipeline.jobs) == 1
