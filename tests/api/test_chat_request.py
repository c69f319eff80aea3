"""What a client repeats is checked once: a request that is remembered reads as one that is not, and the memory is bounded."""

import msgspec
import pytest

from smg.api.openai import chat_request
from smg.api.openai.chat_request import REPEATED_BYTES, ChatReader
from smg.errors import InvalidValue, SmgError
from tests.api.fake import request

USER = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def read(reader, body):
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return reader.read(data, request(b""), answer="chatcmpl-1", timeout_s=10)


def test_only_messages_and_names_may_differ():
    reader = ChatReader()
    same = {"model": "m", "tools": TOOLS, "temperature": 0.5}
    first, _ = read(reader, {**same, "messages": USER})
    names = {"user": "u", "rid": "r", "metadata": {"trace": 1}, "safety_identifier": "s", "prompt_cache_key": "k"}
    second, job = read(reader, {**names, **same, "messages": [*USER, *USER]})
    assert second is first
    assert (len(job.input.messages), job.routing.user, job.request_id) == (2, "u", "r-chatcmpl-1")
    assert (reader.hits, reader.misses) == (1, 1)
    other, _ = read(reader, {**same, "temperature": 0.6, "messages": USER})
    assert other.job.sampling.temperature == 0.6


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": None},
        {"messages": "Hi"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "king", "content": "Hi"}]},
        {"messages": [USER[0], {"role": "user", "content": 5}]},
        {"messages": [USER[0], "Hi"]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": msgspec.Raw(b"[" * 300 + b"]" * 300)}]}]},
        {"user": 5},
        {"rid": ["r"]},
        {"request_id": "r" * 129},
        {"temperature": 9},
        {"n": "2"},
        {"seed": 2**70},
    ],
)
def test_mistakes_read_the_same_once_settings_are_known(change):
    body = {"model": "m", "messages": USER, **change}
    known = ChatReader()
    read(known, {"model": "m", "messages": USER})
    with pytest.raises(SmgError) as fresh:
        read(ChatReader(), body)
    with pytest.raises(SmgError) as again:
        read(known, body)
    assert (again.value.param, again.value.message, type(again.value)) == (fresh.value.param, fresh.value.message, type(fresh.value))


def test_nothing_wrong_is_remembered():
    reader = ChatReader()
    for _ in range(2):
        with pytest.raises(InvalidValue):
            read(reader, {"messages": USER, "temperature": 9})
    assert (reader.hits, reader.misses) == (0, 2)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(chat_request, "REMEMBERED_BYTES", 10_000)
    monkeypatch.setattr(chat_request, "LONGEST_BYTES", 500)
    reader = ChatReader()
    for i in range(500):
        read(reader, {"messages": USER, "store": f"{i:0100}"})
        assert sum(map(len, reader._known)) <= 10_000
    known = len(reader._known)
    read(reader, {"messages": USER, "store": "x" * 600})
    assert len(reader._known) == known > 10


def test_the_last_of_duplicate_keys_counts_with_known_settings():
    reader = ChatReader()
    body = b'{"model": "a", "model": "b", "messages": [], "messages": [{"role": "user", "content": "1", "content": "2"}]}'
    jobs = [read(reader, body)[1] for _ in range(2)]
    assert [(job.model, job.input.messages) for job in jobs] == [("b", ({"role": "user", "content": "2"},))] * 2


@pytest.mark.parametrize("text", ["Hi", "word " * 300, "long " * 5000], ids=["short", "kept", "long"])
def test_messages_that_come_again_are_read_as_before(text):
    reader = ChatReader(repeat_bytes=1 << 22)
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    jobs = [read(reader, body)[1] for _ in range(5)]
    assert all((job.input, job.content, job.sampling) == (jobs[0].input, jobs[0].content, jobs[0].sampling) for job in jobs)
    assert (jobs[-1].input.messages[0] is jobs[-2].input.messages[0]) == (len(text) >= REPEATED_BYTES)
    other = read(reader, {**body, "messages": [{"role": "user", "content": text[:-1] + "!"}]})[1]
    assert other.input.messages[0]["content"] == text[:-1] + "!"
    assert other.content != jobs[0].content


def test_what_the_template_is_told_is_in_the_content():
    reader = ChatReader(repeat_bytes=1 << 22)
    bodies = [{}, {"tools": TOOLS}, {"reasoning_effort": "low"}, {"chat_template_kwargs": {"a": 1}}, {"documents": [{"text": "d"}]}]
    contents = {read(reader, {"messages": USER, **more})[1].content for more in bodies}
    assert len(contents) == len(bodies)
    assert read(reader, {"messages": USER, "temperature": 0.5, "max_tokens": 3})[1].content in contents


@pytest.mark.parametrize("messages", [b"[}", b'[{"role": "user", "content": "\xff"}]', b'[{"role": "user"}]'])
def test_wrong_messages_are_refused_each_time(messages):
    reader = ChatReader(repeat_bytes=1 << 22)
    read(reader, {"messages": USER})
    for _ in range(4):
        with pytest.raises(SmgError):
            read(reader, b'{"messages":' + messages + b"}")
