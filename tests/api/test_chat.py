"""Chat completions over a scripted pipeline: the exact shapes, and that stream and whole answer tell the same."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg.api.openai.chat import chat_completions
from smg.errors import EngineError, EngineUnavailable
from smg.types.event import Content, Finished, Reasoning, TokenLogprob, ToolArguments, ToolCall, TopLogprob, Usage
from tests.api.fake import HELLO, STARTED, USAGE, FakePipeline, answer, call, events, services

BASE = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


def stream(script, **fields):
    """The chunks of a streamed answer."""
    return events(call(chat_completions, {**BASE, "stream": True, **fields}, services(FakePipeline(script)))[0])


def whole(script, **fields):
    return answer(chat_completions, {**BASE, **fields}, services(FakePipeline(script)))


def joined(chunks):
    """What a client that adds up deltas ends with, by choice: the message, the finish reason, the logprobs."""
    choices: dict[int, dict] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            made = choices.setdefault(part["index"], {"message": {}, "finish": None, "matched": None, "logprobs": []})
            for name, value in part["delta"].items():
                if name == "tool_calls":
                    for call_ in value:
                        calls = made["message"].setdefault("tool_calls", {})
                        kept = calls.setdefault(call_["index"], {"function": {"arguments": ""}})
                        kept["id"] = call_.get("id", kept.get("id"))
                        kept["function"]["name"] = call_["function"].get("name", kept["function"].get("name"))
                        kept["function"]["arguments"] += call_["function"].get("arguments", "")
                else:
                    made["message"][name] = made["message"].get(name, "") + value if name != "role" else value
            made["logprobs"] += (part["logprobs"] or {}).get("content", [])
            made["finish"] = part["finish_reason"] or made["finish"]
            made["matched"] = part.get("matched_stop", made["matched"])
    return choices


def same(script, **fields):
    """Asserts that both modes tell the same, and gives the joined choices."""
    choices, full = joined(stream(script, **fields)), whole(script, **fields)
    assert len(choices) == len(full["choices"])
    for choice in full["choices"]:
        made = choices[choice["index"]]
        assert (made["message"].get("content") or None) == (choice["message"]["content"] or None)
        assert made["message"].get("reasoning_content") == choice["message"].get("reasoning_content")
        calls = [
            {"id": one["id"], "type": "function", "function": one["function"]} for one in made["message"].get("tool_calls", {}).values()
        ]
        assert calls == [
            {**one, "function": {"arguments": one["function"]["arguments"], "name": one["function"]["name"]}}
            for one in choice["message"].get("tool_calls", [])
        ]
        assert made["finish"] == choice["finish_reason"]
        assert made["matched"] == choice.get("matched_stop")
        assert made["logprobs"] == ((choice["logprobs"] or {}).get("content") or [])
    return choices


def test_stream_has_the_shapes_of_the_reference():
    chunks = stream(HELLO)
    head = {name: chunks[0][name] for name in ("id", "object", "created", "model", "system_fingerprint")}
    assert (head["id"], head["object"], head["model"]) == ("chatcmpl-1", "chat.completion.chunk", "m")
    assert all({name: chunk[name] for name in head} == head and "usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "Hel"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "lo"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]


def test_whole_answer_has_the_shape_of_the_reference():
    full = whole(HELLO)
    assert full.pop("created") > 0
    assert full.pop("system_fingerprint").startswith("fp_")
    assert full == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_usage_is_the_last_chunk_only_where_it_was_asked_for():
    chunks = stream(HELLO, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole(HELLO)["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert all("usage" not in chunk for chunk in stream(HELLO, stream_options={"include_usage": False}))


def test_events_of_one_list_leave_in_one_write():
    script = [[STARTED], [Content(0, "a"), Content(0, "b"), Finished(0, "stop"), USAGE]]
    _, writes = call(chat_completions, {**BASE, "stream": True, "stream_options": {"include_usage": True}}, services(FakePipeline(script)))
    assert [write.count(b"data: ") for write in writes] == [5, 1]


def test_nothing_is_written_before_the_first_token():
    made = services(FakePipeline([[STARTED], EngineUnavailable("gone")]))
    with pytest.raises(EngineUnavailable):
        call(chat_completions, {**BASE, "stream": True}, made)


def test_choices_interleave():
    script = [
        [STARTED],
        [Content(0, "a"), Content(1, "x")],
        [Content(1, "y"), Finished(1, "length")],
        [Content(0, "b"), Finished(0, "stop", "###")],
        [Usage(prompt_tokens=1, completion_tokens=4)],
    ]
    choices = same(script, n=2)
    assert [(choices[i]["message"]["content"], choices[i]["finish"], choices[i]["matched"]) for i in (0, 1)] == [
        ("ab", "stop", "###"),
        ("xy", "length", None),
    ]
    roles = [part["index"] for chunk in stream(script, n=2) for part in chunk["choices"] if "role" in part["delta"]]
    assert roles == [0, 1]


def test_reasoning_and_tool_calls():
    script = [
        [STARTED],
        [Reasoning(0, "let me "), Reasoning(0, "see")],
        [ToolCall(0, 0, "call_a", "get_weather"), ToolArguments(0, 0, '{"city":')],
        [ToolArguments(0, 0, '"Ulm"}'), ToolCall(0, 1, "call_b", "get_weather"), ToolArguments(0, 1, "{}")],
        [Finished(0, "tool_calls"), USAGE],
    ]
    choices = same(script, tools=[WEATHER])
    assert choices[0]["message"]["reasoning_content"] == "let me see"
    assert choices[0]["finish"] == "tool_calls"
    message = whole(script, tools=[WEATHER])["choices"][0]["message"]
    assert message["content"] is None
    assert [(one["id"], one["function"]["arguments"]) for one in message["tool_calls"]] == [
        ("call_a", '{"city":"Ulm"}'),
        ("call_b", "{}"),
    ]
    firsts = [part for chunk in stream(script) for c in chunk["choices"] for part in c["delta"].get("tool_calls", []) if "id" in part]
    assert [(one["index"], one["id"], one["function"]) for one in firsts] == [
        (0, "call_a", {"name": "get_weather", "arguments": ""}),
        (1, "call_b", {"name": "get_weather", "arguments": ""}),
    ]


def test_reasoning_is_left_out_where_the_client_does_not_want_it():
    script = [[STARTED], [Reasoning(0, "hm"), Content(0, "4")], [Finished(0, "stop"), USAGE]]
    assert same(script, include_reasoning=False)[0]["message"] == {"role": "assistant", "content": "4"}


def test_a_named_call_ends_with_stop_as_at_openai():
    script = [[STARTED], [ToolCall(0, 0, "c", "get_weather"), ToolArguments(0, 0, "{}")], [Finished(0, "tool_calls"), USAGE]]
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert same(script, tools=[WEATHER], tool_choice=named)[0]["finish"] == "stop"
    assert same(script, tools=[WEATHER], tool_choice="required")[0]["finish"] == "tool_calls"


def test_functions_are_answered_with_one_function_call():
    calls = [ToolCall(0, 0, "c", "f"), ToolArguments(0, 0, '{"a"'), ToolArguments(0, 0, ":1}"), ToolCall(0, 1, "d", "f")]
    script = [[STARTED], calls, [Finished(0, "tool_calls"), USAGE]]
    choice = whole(script, functions=[{"name": "f"}])["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": {"name": "f", "arguments": '{"a":1}'},
    }
    assert choice["finish_reason"] == "function_call"
    chunks = [chunk["choices"][0] for chunk in stream(script, functions=[{"name": "f"}])]
    assert [chunk["delta"] for chunk in chunks[1:]] == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
        {},
    ]
    assert chunks[-1]["finish_reason"] == "function_call"


def test_logprobs_carry_true_bytes():
    half = TokenLogprob(5, b"\xf0\x9f", -0.25, (TopLogprob(5, b"\xf0\x9f", -0.25), TopLogprob(6, b"a", float("-inf"))))
    rest = TokenLogprob(7, b"\xa4\xa3", -0.5)
    script = [[STARTED], [Content(0, "", (half,))], [Content(0, "🤣", (rest,))], [Finished(0, "stop"), USAGE]]
    made = same(script, logprobs=True, top_logprobs=2)[0]["logprobs"]
    assert made == [
        {
            "token": "\ufffd",
            "logprob": -0.25,
            "bytes": [0xF0, 0x9F],
            "top_logprobs": [
                {"token": "\ufffd", "logprob": -0.25, "bytes": [0xF0, 0x9F]},
                {"token": "a", "logprob": -9999.0, "bytes": [97]},
            ],
        },
        {"token": "\ufffd\ufffd", "logprob": -0.5, "bytes": [0xA4, 0xA3], "top_logprobs": []},
    ]


def test_an_aborted_choice_is_no_clean_end():
    script = [[STARTED], [Content(0, "a")], [Finished(0, "abort"), USAGE]]
    for extra in ({}, {"stream": True}):
        with pytest.raises(EngineError):
            call(chat_completions, {**BASE, **extra}, services(FakePipeline(script)))


def test_the_run_is_closed_when_the_client_closes_the_stream():
    import asyncio

    from tests.api.fake import first_write, request

    async def run():
        pipeline = FakePipeline([[STARTED], [Content(0, "a")], "hang"])
        reply = await chat_completions(request({**BASE, "stream": True}), services(pipeline))
        assert b'"a"' in await first_write(reply)
        return pipeline.running, len(pipeline.closed)

    assert asyncio.run(run()) == (0, 1)


texts = st.text(st.characters(codec="utf-8"), max_size=8)
pieces = st.one_of(st.builds(Content, st.integers(0, 1), texts), st.builds(Reasoning, st.integers(0, 1), texts))


@given(st.lists(st.lists(pieces, max_size=4), max_size=6))
def test_both_modes_tell_the_same(lists):
    same([[STARTED], *lists, [Finished(0, "stop"), Finished(1, "length"), USAGE]], n=2)


def test_text_survives_json():
    text = 'quote " slash \\ line\nnul\0 sep\u2028 emoji 🤣'
    chunks = stream([[STARTED], [Content(0, text)], [Finished(0, "stop"), USAGE]])
    assert joined(chunks)[0]["message"]["content"] == text
    assert msgspec.json.decode(msgspec.json.encode(chunks)) == chunks
