"""What a request may hold: every field reaches its place in the Job, and every mistake is told in words with the field's name."""

import msgspec
import pytest
from msgspec import UNSET

from smg.api.openai.chat import chat_completions
from smg.api.openai.chat_request import ChatReader
from smg.api.openai.completions import completions
from smg.errors import InvalidJson, InvalidValue, RequestError, SmgError, Unimplemented
from smg.types.job import Constraint, Logprobs, Routing, Stops
from tests.api.fake import FakePipeline, call, request, services

USER = [{"role": "user", "content": "Hi"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
TIME = {"type": "function", "function": {"name": "get_time"}}


def read(http=None, *, reader=None, answer="chatcmpl-1", **fields):
    body = msgspec.json.encode({"model": "m", "messages": USER, **fields})
    return (reader or ChatReader()).read(body, http or request(b""), answer=answer, timeout_s=10)[1]


def job(**fields):
    """The job of a body that is seen for the first time, and for the second: they must be the same."""
    reader = ChatReader()
    first, second = read(reader=reader, **fields), read(reader=reader, **fields)
    assert first == msgspec.structs.replace(second, deadline_s=first.deadline_s)
    assert (reader.hits, reader.misses) == (1, 1)
    return first


def refused(body, handler=chat_completions) -> SmgError:
    with pytest.raises(SmgError) as caught:
        call(handler, body, services())
    return caught.value


def test_every_sampling_field_reaches_the_job():
    made = job(
        n=3, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, frequency_penalty=-1, presence_penalty=1, repetition_penalty=1.1,
        seed=7, logit_bias={"5": -100, "6": 2.5}, max_tokens=9, min_tokens=2, ignore_eos=True,
    )  # fmt: skip
    assert msgspec.to_builtins(made.sampling, str_keys=True) == {
        "n": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "frequency_penalty": -1.0, "presence_penalty": 1.0,
        "repetition_penalty": 1.1, "seed": 7, "logit_bias": {"5": -100.0, "6": 2.5}, "max_tokens": 9, "min_tokens": 2, "ignore_eos": True,
    }  # fmt: skip


def test_what_is_not_said_stays_unset():
    made = job(temperature=None, top_k=None)
    assert made.sampling.temperature is made.sampling.top_k is made.sampling.max_tokens is made.sampling.seed is UNSET
    assert (made.sampling.n, made.stops, made.logprobs, made.constraint) == (1, Stops(), Logprobs(), None)
    assert made.skip_special_tokens
    assert made.input.add_generation_prompt


def test_the_other_fields_reach_the_job():
    made = job(
        stop="###", stop_token_ids=[5], include_stop_str_in_output=True, skip_special_tokens=False, spaces_between_special_tokens=False,
        logprobs=True, top_logprobs=3, priority=-2, user="u", max_completion_tokens=5, max_tokens=7, stream=True, top_k=0,
        chat_template="rag", chat_template_kwargs={"a": 1}, reasoning_effort="high", add_generation_prompt=False, documents=[{"text": "d"}],
        separate_reasoning=False, stream_reasoning=False, parallel_tool_calls=False, add_special_tokens=True,
    )  # fmt: skip
    assert made.stops == Stops(strings=("###",), token_ids=(5,), include_in_output=True)
    assert made.logprobs == Logprobs(output=3)
    assert made.routing == Routing(user="u", priority=-2)
    assert (made.sampling.max_tokens, made.sampling.top_k, made.stream) == (5, -1, True)
    assert (made.skip_special_tokens, made.spaces_between_special_tokens) == (False, False)
    source = made.input
    assert (source.chat_template, source.template_kwargs) == ("rag", {"a": 1, "reasoning_effort": "high"})
    assert (source.add_generation_prompt, source.documents, source.add_special_tokens) == (False, ({"text": "d"},), True)
    assert (source.separate_reasoning, source.stream_reasoning, source.parallel_tool_calls) == (False, False, False)


def test_messages_stay_the_clients_own_objects():
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": {"x": 1}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
        {"role": "user", "content": "Hi", "custom": [1]},
    ]
    assert job(messages=messages).input.messages == tuple(messages)


def test_continue_final_message_adds_no_prompt():
    source = job(continue_final_message=True).input
    assert (source.continue_final_message, source.add_generation_prompt) == (True, False)


def test_effort_is_a_template_variable_that_the_clients_own_outweighs():
    assert job(reasoning_effort="none").input.template_kwargs == {"reasoning_effort": "none"}
    kept = {"reasoning_effort": "high", "enable_thinking": True}
    assert job(reasoning_effort="none", chat_template_kwargs=kept).input.template_kwargs == kept


@pytest.mark.parametrize(
    ("choice", "names", "neutral"),
    [
        (None, ["get_weather", "get_time"], "auto"),
        ("none", ["get_weather", "get_time"], "none"),
        ("required", ["get_weather", "get_time"], "required"),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_weather", "get_time"], "get_time"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TIME]}},
            ["get_time"],
            "required",
        ),
    ],
)
def test_tool_choice(choice, names, neutral):
    source = job(tools=[WEATHER, TIME], tool_choice=choice).input
    assert ([tool["function"]["name"] for tool in source.tools], source.tool_choice) == (names, neutral)


@pytest.mark.parametrize(("choice", "neutral"), [(None, "auto"), ("none", "none"), ("auto", "auto"), ({"name": "f"}, "f")])
def test_functions_are_tools(choice, neutral):
    source = job(functions=[{"name": "f", "parameters": {}}], function_call=choice).input
    assert source.tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    assert (source.tool_choice, source.parallel_tool_calls) == (neutral, False)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint(kind="json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "b": 1, "a": 2}}}},
            Constraint(kind="json_schema", value='{"type":"object","b":1,"a":2}'),
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            Constraint(kind="structural_tag", value='{"type":"structural_tag","format":{"type":"any_text"}}'),
        ),
        ({"regex": "a+"}, Constraint(kind="regex", value="a+")),
        ({"ebnf": 'root ::= "a"'}, Constraint(kind="grammar", value='root ::= "a"')),
        ({"json_schema": '{"type": "object"}'}, Constraint(kind="json_schema", value='{"type": "object"}')),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint(kind="choice", value='["a","b"]')),
        ({"structured_outputs": {"grammar": "g"}}, Constraint(kind="grammar", value="g")),
        ({"guided_json": {"type": "string"}}, Constraint(kind="json_schema", value='{"type":"string"}')),
        ({"guided_regex": "x"}, Constraint(kind="regex", value="x")),
    ],
)
def test_constraints(fields, wanted):
    assert job(**fields).constraint == wanted


def test_engine_ids_are_unique_whatever_clients_send():
    own = read(answer="chatcmpl-9")
    theirs = read(request(b"", own_id=False), answer="chatcmpl-9")
    assert (own.request_id, theirs.request_id) == ("chatcmpl-9", "mine-chatcmpl-9")
    assert job(rid="theirs").request_id == "theirs-chatcmpl-1"


def test_routing_headers():
    http = request(b"", headers={"x-smg-routing-key": "k", "x-smg-target-worker": "2"})
    made = read(http)
    assert made.routing == Routing(target_worker="2", key="k")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": "m" * 513}, "model", "model must have at most 512 characters"),
        ({"temperature": 5}, "temperature", "temperature must be between 0 and 2"),
        ({"temperature": -1}, "temperature", "temperature must be between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "temperature must be a number, not a string"),
        ({"top_p": 0}, "top_p", "top_p must be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p", "top_p must be above 0 and at most 1"),
        ({"top_k": -2}, "top_k", "top_k must be between -1 and 2147483647"),
        ({"min_p": 2}, "min_p", "min_p must be between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be above 0"),
        ({"n": 0}, "n", "n must be between 1 and 128"),
        ({"n": 129}, "n", "n must be between 1 and 128"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be between 1 and 2147483647"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be between 1 and 2147483647"),
        ({"max_tokens": 2**40}, "max_tokens", "max_tokens must be between 1 and 2147483647"),
        ({"max_tokens": "8"}, "max_tokens", "max_tokens must be an integer, not a string"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "min_tokens must not be above max_tokens"),
        ({"seed": 2**64}, "seed", "seed must be between -9223372036854775808 and 9223372036854775807"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs to be true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs must be between 0 and 20"),
        ({"stop": [""]}, "stop", "stop must not hold an empty string"),
        ({"stop": ["x"] * 17}, "stop", "stop may have at most 16 entries, not 17"),
        ({"stop": "x" * 10000}, "stop", "stop may have at most 4096 characters in all"),
        ({"stop": [3]}, "stop[0]", "stop[0] must be a string, not an integer"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias has the key 'x', which is not a token id"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias values must be between -100 and 100"),
        ({"logit_bias": {"5": "a"}}, "logit_bias", "logit_bias must be a number, not a string"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options needs stream to be true"),
        ({"messages": []}, "messages", "messages must not be empty"),
        ({"messages": "hi"}, "messages", "messages must be a list, not a string"),
        ({"messages": [3]}, "messages[0]", "messages[0] must be an object, not an integer"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "messages[0].role is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is required"),
        (
            {"messages": [{"role": "alien", "content": "hi"}]},
            "messages[0].role",
            "messages[0].role must be one of system, developer, user, assistant, tool, function",
        ),
        (
            {"messages": [*USER, {"role": "user", "content": 3}]},
            "messages[1].content",
            "messages[1].content must be a string or a list, not an integer",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "messages[0].content[0].text is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages[0].content[0].type",
            "messages[0].content[0].type must be one of text, refusal, image_url, input_audio, audio_url, video_url, file",
        ),
        *(
            (
                {"messages": [*USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": bad}}]}]},
                "messages[1].tool_calls[0].function.arguments",
                "messages[1].tool_calls[0].function.arguments must be the JSON text of an object",
            )
            for bad in ('"Beijing"', "[1]", "{bad")
        ),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice is required, but there are no tools"),
        ({"tool_choice": "sometimes"}, "tool_choice", "tool_choice must be one of none, auto, required or an object"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
            "tool_choice names the function 'g', which is not in tools",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "tools[0].function is required"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "tools[1].function.name is used twice"),
        (
            {"response_format": {"type": "yaml"}},
            "response_format.type",
            "response_format.type must be one of text, json_object, json_schema, structural_tag",
        ),
        ({"response_format": {}}, "response_format.type", "response_format.type is required"),
        ({"regex": "a", "ebnf": "b"}, "ebnf", "only one of ebnf and regex may be given"),
        ({"json_schema": "{"}, "json_schema", "json_schema must be a JSON schema"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "continue_final_message and add_generation_prompt cannot both be true",
        ),
        ({"functions": [{}]}, "functions[0].name", "functions[0].name is required"),
        (
            {"functions": [{"name": "f"}], "tools": [WEATHER]},
            "functions",
            "functions and function_call cannot be given together with tools and tool_choice",
        ),
        (
            {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
            "function_call.name",
            "function_call names the function 'g', which is not in functions",
        ),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call", "function_call must be none, auto or an object"),
        ({"rid": "a\nb"}, "rid", "rid must have at most 128 printable characters"),
    ],
)
def test_mistakes_are_told_in_words(fields, param, message):
    error = refused({"model": "m", "messages": USER, **fields})
    assert isinstance(error, InvalidValue)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize("arguments", ["", None, "{}", {"a": 1}, ' {"a": 1} '])
def test_arguments_that_templates_can_use(arguments):
    call_ = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert job(messages=[{"role": "assistant", "tool_calls": [call_]}]).input.messages[0]["tool_calls"] == [call_]


@pytest.mark.parametrize(
    "fields",
    [
        {"audio": {"voice": "x"}}, {"modalities": ["text", "audio"]}, {"web_search_options": {}},
        {"lora_path": "x"}, {"prompt_logprobs": 0}, {"use_beam_search": True}, {"cache_salt": "s"}, {"echo": True},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, {"bad_words": ["x"]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ],
)  # fmt: skip
def test_what_is_not_built_is_said(fields):
    error = refused({"model": "m", "messages": USER, **fields})
    assert isinstance(error, Unimplemented)
    name = next(iter(fields))
    assert error.param is not None
    assert error.param.startswith(name)
    assert error.param in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True}, {"metadata": {"a": "b"}}, {"user": "u"}, {"service_tier": "auto"}, {"safety_identifier": "s"},
        {"prompt_cache_key": "k"}, {"prediction": {"type": "content", "content": "x"}}, {"verbosity": "low"}, {"modalities": ["text"]},
        {"frobnicate": 1}, {"use_beam_search": False}, {"bad_words": []}, {"stop": None}, {"logit_bias": None}, {"tools": []},
    ],
)  # fmt: skip
def test_harmless_fields_are_taken(fields):
    assert job(**fields).model == "m"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty; it must be a JSON object"),
        (b'{"model": "m", "messages": [', "the body is not valid JSON: expecting value at line 1, column 29"),
        (b'{"model": "m",}', "the body is not valid JSON: "),
        (b'{"messages": NaN}', "the body is not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "the body is not UTF-8: bad byte at position 43"),
        (
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
            "the body is not valid JSON: a \\u escape is one half of a surrogate pair without the other",
        ),
        (b'{"messages": [{"role": "user", "content": "\\udc00 x"}]}', "the body is not valid JSON: a \\u escape is one half"),
        (b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "the body is nested too deeply"),
    ],
)
def test_broken_json(body, message):
    error = refused(body)
    assert isinstance(error, InvalidJson)
    assert error.message.startswith(message)


def test_the_body_must_be_an_object():
    assert refused(b"[]").message == "the body must be an object, not a list"


def test_deep_nesting_in_what_is_kept_is_refused():
    deep = b"[" * 300 + b"]" * 300
    error = refused(b'{"messages": [{"role": "user", "content": "x", "y": ' + deep + b"}]}")
    assert isinstance(error, RequestError)
    assert "nested" in error.message


def test_a_nul_character_is_text():
    pipeline = FakePipeline()
    call(chat_completions, b'{"messages": [{"role": "user", "content": "a\\u0000b"}]}', services(pipeline))
    assert pipeline.jobs[0].input.messages[0]["content"] == "a\0b"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": ["a", 1]}, "prompt"), ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a"] * 1025}, "prompt"), ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "best_of": 1, "n": 2}, "best_of"), ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["a"] * 64, "n": 128}, "n"), ({"prompt": 3}, "prompt"),
    ],
)  # fmt: skip
def test_completion_mistakes(fields, param):
    error = refused({"model": "m", **fields}, completions)
    assert isinstance(error, InvalidValue)
    assert error.param == param


def test_suffix_is_not_built():
    assert isinstance(refused({"model": "m", "prompt": "a", "suffix": "b"}, completions), Unimplemented)
