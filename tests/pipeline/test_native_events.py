"""The native machine with its event exit against the stream machine, for every parser, on random tokens in random messages and wake-ups.

Compared are the events of each wake-up, the counts, and whether the engine is to be aborted. A token is any piece of text, so that marks
come whole, in parts, inside others and as special tokens.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from smg._ext import ChatSink, EventSink, FieldTable, StopStrings, Vocabulary
from smg.api.openai.answer import Head
from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_switches import Switches
from smg.api.openai.chat_whole import ChatWhole
from smg.engine import EngineDelta, EngineFinish, field_table
from smg.errors import EngineError
from smg.parser import REASONING, TOOLS, marks
from smg.pb import vllm_engine_pb2 as pb
from smg.pipeline.native import EVENTS
from smg.pipeline.parsing import Parsing
from smg.pipeline.stream import StreamMachine, StreamSpec
from smg.tokenizer import load_tokenizer
from smg.tokenizer.decoder import BytesDecoder
from smg.types.event import Content, Event, Finished, Reasoning, ToolArguments, ToolCall, Usage
from tests.parser.oracle import tools_named
from tests.parser.writers import SCHEMA, TOOL_WRITERS
from tests.pipeline.fleet import MODEL

HEAD = Head(id="chatcmpl-1", object="chat.completion.chunk", created=1, model="m", system_fingerprint="fp_1")
NAMES = ("f", "get_weather")
TOOLS_GIVEN = tuple(tools_named(*NAMES, **SCHEMA))
TOKENIZER = load_tokenizer(MODEL)
TABLE = FieldTable(field_table(pb.GenerateResponse.DESCRIPTOR))
CALLS = [("get_weather", {"s": 'a "b"\n<c> é東\\', "i": 7, "o": {"k": [1, None]}}), ("f", {})]
PROSE = ("a", " b", "\n", "\n\n", " ", ".", "Grüße", "北京", "👩‍👩‍👧", "\ufffd", "<", "</", "{", "[", "`", '{"name":', "Here is my ", "\t")
STOPS = ("b", "\n\n", "</think>", "👩", "ab", "<", '"', " ")
ENDS: tuple[EngineFinish, ...] = ("stop", "stop", "length", "tool_calls", "content_filter", "abort")
PARSERS = [("", ""), *((name, "") for name, _ in REASONING), *(("", name) for name, _ in TOOLS)]


class Case:
    """One job and its answer: token ids for each choice, in messages."""

    def __init__(self, draw: random.Random, reasoning: str, tool: str) -> None:
        self.draw = draw
        reasoning = reasoning or draw.choice(("", TOOLS.get(tool).thinks, "qwen3") if tool else ("",))
        tool = tool or draw.choice(("", "hermes", "json", "pythonic") if reasoning else ("",))
        self.marks = marks(reasoning or None, tool or None)
        self.parsing = Parsing(
            reasoning=reasoning or None,
            tool=tool or None,
            tools=TOOLS_GIVEN if tool else (),
            stream_reasoning=draw.random() < 0.8,
            named="f" if tool and draw.random() < 0.05 else None,
            parallel=draw.random() < 0.8,
        )
        self.thinking = bool(reasoning) and draw.random() < 0.5
        self.n = draw.choice((1, 1, 2, 3))
        self.stops = tuple(draw.sample(STOPS, draw.choice((0, 0, 0, 1, 2))))
        self.include_stop, self.skip_special = draw.random() < 0.4, draw.random() < 0.7
        self.min_tokens = draw.choice((0, 0, 0, 1, 9))
        self.pieces: list[bytes] = []
        self.special: set[int] = set()
        self.kept: set[int] = set()
        self.messages = list(self._interleaved([self._choice() for _ in range(self.n)]))
        size = len(self.pieces)
        self.reported = frozenset(draw.sample(range(size), min(size, draw.choice((0, 0, 1)))))
        self.ends = self.reported | frozenset(draw.sample(range(size), min(size, draw.choice((0, 0, 1)))))
        self.prompt_tail = [self._token("é".encode()[:1])] if draw.random() < 0.1 else []

    def _interleaved(self, lines: list[list[EngineDelta]]) -> Iterator[EngineDelta]:
        while any(lines):
            index = self.draw.choice([i for i, line in enumerate(lines) if line])
            yield structs.replace(lines[index].pop(0), choice=index)

    def _choice(self) -> list[EngineDelta]:
        ids: list[int] = []
        for text in self._texts():
            ids += self._tokens(text)
        deltas = [EngineDelta(token_ids=part) for part in self._cut(ids)]
        matched = self.draw.choice((None, None, "word", *ids[-1:]))
        return [*deltas, EngineDelta(finish=self.draw.choice(ENDS), matched=matched)]

    def _texts(self) -> Iterator[str]:
        writer = TOOL_WRITERS.get(self.parsing.tool or "")
        for _ in range(self.draw.choice((0, 2, 8, 20))):
            kind = self.draw.random()
            if kind < 0.3 and self.marks:
                yield self.draw.choice(self.marks)
            elif kind < 0.4 and writer is not None:
                yield writer.write(CALLS)
            else:
                yield self.draw.choice(PROSE)

    def _tokens(self, text: str) -> Iterator[int]:
        """Ids that join to the text: as one special token, or cut anywhere, in the middle of a character too."""
        special = text.startswith(("<", "[")) and self.draw.random() < 0.5
        if special or self.draw.random() < 0.3:
            token_id = self._token(text.encode())
            if special:
                self.special.add(token_id)
                self.kept |= {token_id} if text in self.marks else set()
            return iter((token_id,))
        return iter([self._token(bytes(part)) for part in self._cut(list(text.encode()))])

    def _token(self, piece: bytes) -> int:
        self.pieces.append(piece)
        return len(self.pieces) - 1

    def _cut(self, whole: list[int]) -> Iterator[list[int]]:
        size = self.draw.choice((1, 1, 3, 50))
        while whole:
            count = self.draw.randint(1, size)
            yield whole[:count]
            whole = whole[count:]

    def wakes(self) -> Iterator[list[EngineDelta]]:
        """The messages as they come: those of one list are read at once."""
        places = sorted({0, len(self.messages), *(self.draw.randrange(len(self.messages)) for _ in range(4))})
        sizes = places if self.draw.random() < 0.7 else list(range(len(self.messages) + 1))
        for begin, end in itertools.pairwise(sizes):
            yield self.messages[begin:end]

    @property
    def kind(self) -> tuple[FieldTable, Vocabulary, StopStrings | None]:
        """What a sink is made of."""
        return TABLE, Vocabulary(self.pieces, self.special), StopStrings(self.stops) if self.stops else None

    @property
    def options(self) -> dict[str, Any]:
        """What every sink is told of the job."""
        return {
            "choices": self.n,
            "ends": self.ends,
            "reported": self.reported,
            "min_tokens": self.min_tokens,
            "skip_special": self.skip_special,
            "include_stop": self.include_stop,
            "prompt_tokens": 7,
            "kept": self.kept,
            "prompt_tail": self.prompt_tail,
            "in_think": self.thinking,
            "stream_thoughts": self.parsing.stream_reasoning,
        }

    def machines(self) -> list[StreamMachine]:
        spec = StreamSpec(
            tokenizer=TOKENIZER,
            stop_strings=self.stops,
            include_stop=self.include_stop,
            end_ids=self.ends,
            reported_end_ids=self.reported,
            min_tokens=self.min_tokens,
            stream_reasoning=self.parsing.stream_reasoning,
            starts_thinking=self.thinking,
        )
        hidden = self.special - self.kept if self.skip_special else set()
        machines = []
        for i in range(self.n):
            decoder = BytesDecoder(lambda token_id: None if token_id in hidden else self.pieces[token_id])
            decoder.feed(self.prompt_tail)
            machines.append(
                StreamMachine(spec, choice=i, decoder=decoder, parser=self.parsing.parser(in_think=self.thinking, native=False))
            )
        return machines


class Native:
    """The native side of a case."""

    def __init__(self, case: Case, *, gather: bool) -> None:
        self.events: list[Event] = []
        self.ends: list[tuple[str, int, str]] = []
        self.sink = EventSink(
            *case.kind,
            **case.options,
            marks=case.parsing.thought_marks,
            parsers=case.parsing.native_parsers(case.n, in_think=case.thinking),
            split=case.parsing.by_token,
            gather=gather,
            shapes=EVENTS,
            take=self.events.extend,
            done=lambda *end: self.ends.append(end),
        )

    def feed(self, deltas: Sequence[EngineDelta]) -> list[Event]:
        self.sink.feed(*map(message, deltas))
        events, self.events[:] = list(self.events), []
        return events


class Chat:
    """The native side of a case that needs no parser in Python, up to the client's bytes; and the renderer that is its specification."""

    def __init__(self, case: Case, *, whole: bool = False) -> None:
        self.switches = Switches(choices=case.n, usage=False, logprobs=False, reasoning=case.draw.random() < 0.8)
        self.renderer = ChatStream(HEAD, self.switches)
        self.written: list[bytes] = []
        self.ends: list[tuple[str, int, str]] = []
        self.sink = ChatSink(
            *case.kind,
            **case.options,
            marks=case.parsing.thought_marks,
            prefix=self.renderer.frame.prefix,
            tail=self.renderer.frame.tail,
            hide_thoughts=self.renderer.frame.hide_thoughts,
            write=self.written.append,
            whole=whole,
            done=lambda *end: self.ends.append(end),
        )


def message(delta: EngineDelta) -> bytes:
    """A delta as vLLM's protocol says it."""
    if delta.finish is None:
        return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=delta.token_ids, index=delta.choice)).SerializeToString()
    body = pb.GenerateComplete(finish_reason=delta.finish, index=delta.choice)
    if isinstance(delta.matched, int):
        body.matched_token_id = delta.matched
    elif delta.matched is not None:
        body.matched_stop_str = delta.matched
    return pb.GenerateResponse(complete=body).SerializeToString()


def named(events: Sequence[Event]) -> list[Event]:
    """The events without the chance in ids of calls."""
    return [
        structs.replace(event, id=re.sub("[0-9A-Za-z]{9,}", "…", event.id)) if isinstance(event, ToolCall) else event for event in events
    ]


def joined(events: Sequence[Event], choice: int) -> list[object]:
    """What a client makes of a choice."""
    content = "".join(event.text for event in events if isinstance(event, Content) and event.choice == choice)
    thoughts = "".join(event.text for event in events if isinstance(event, Reasoning) and event.choice == choice)
    calls = [(event.index, event.name) for event in events if isinstance(event, ToolCall) and event.choice == choice]
    arguments: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolArguments) and event.choice == choice:
            arguments[event.index] = arguments.get(event.index, "") + event.text
    ends = [event for event in events if isinstance(event, Finished) and event.choice == choice]
    return [content, thoughts, calls, arguments, ends]


@pytest.mark.parametrize(("reasoning", "tool"), PARSERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_native_equals_specification(reasoning: str, tool: str, seed: int) -> None:
    case = Case(random.Random(seed), reasoning, tool)
    machines, native, whole = case.machines(), Native(case, gather=False), Native(case, gather=True)
    specified: list[Event] = []
    for deltas in case.wakes():
        events = [event for delta in deltas for event in machines[delta.choice].feed(delta)]
        assert named(native.feed(deltas)) == named(events), case.parsing
        specified += events
    gathered = whole.feed(case.messages)
    for choice in range(case.n):
        assert joined(gathered, choice) == joined(specified, choice), case.parsing
    for side in (native, whole):
        assert side.ends == [("", 0, "")]
        assert side.sink.reasoning_tokens == sum(machine.reasoning_tokens for machine in machines), case.parsing
        assert side.sink.usage == (7, sum(machine.completion_tokens for machine in machines), 0)
        assert side.sink.cut == any(machine.cut for machine in machines)


@pytest.mark.parametrize("reasoning", ["", *(name for name, _ in REASONING if Parsing(reasoning=name).thought_marks is not None)])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_chat_equals_specification(reasoning: str, seed: int) -> None:
    case = Case(random.Random(seed), reasoning, "")
    case.parsing = structs.replace(case.parsing, tool=None, tools=(), named=None)
    machines, chat = case.machines(), Chat(case)
    for deltas in case.wakes():
        chat.written.clear()
        over = bool(chat.ends)
        chat.sink.feed(*map(message, deltas))
        specified = b""
        for delta in deltas:
            events = machines[delta.choice].feed(delta)
            if Finished(delta.choice, "abort", None) in [structs.replace(e, matched_stop=None) for e in events if isinstance(e, Finished)]:
                assert chat.ends == [("the engine aborted the request before it was finished", 13, "")]
                assert chat.written == ([specified] if specified else [])
                return
            specified += chat.renderer.feed(events)
        assert b"".join(chat.written) + (chat.sink.last if chat.ends and not over else b"") == specified
    assert chat.ends == [("", 0, "")]
    assert chat.sink.reasoning_tokens == sum(machine.reasoning_tokens for machine in machines)


@pytest.mark.parametrize("reasoning", ["", *(name for name, _ in REASONING if Parsing(reasoning=name).thought_marks is not None)])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whole_chat_equals_specification(reasoning: str, seed: int) -> None:
    case = Case(random.Random(seed), reasoning, "")
    case.parsing = structs.replace(case.parsing, tool=None, tools=(), named=None)
    if case.n > 1:
        return  # those are told as events
    (machine,), chat = case.machines(), Chat(case, whole=True)
    specified, native = ChatWhole(HEAD, chat.switches), ChatWhole(HEAD, chat.switches)
    for delta in case.messages:
        chat.sink.feed(message(delta))
    assert not chat.written
    events = [event for delta in case.messages for event in machine.feed(delta)]
    if any(isinstance(event, Finished) and event.reason == "abort" for event in events):
        with pytest.raises(EngineError) as caught:
            specified.feed(events)
        assert chat.ends == [(caught.value.message, 13, "")]
        return
    specified.feed(events)
    assert chat.ends == [("", 0, "")]
    usage = Usage(prompt_tokens=7, completion_tokens=machine.completion_tokens, reasoning_tokens=machine.reasoning_tokens)
    specified.feed([usage])
    native.take(chat.sink.last, usage)
    assert native.body() == specified.body()
    assert chat.sink.usage[1] == machine.completion_tokens


def test_common_families_need_no_parser_in_python() -> None:
    for name in ("deepseek_r1", "qwen3", "qwen3_thinking", "glm45", "kimi", "mistral", "seed_oss", "nano_v3"):
        assert Parsing(reasoning=name).thought_marks is not None
    for name in ("openai_gptoss", "inkling", "granite", "cohere_cmd", "kimi_k3"):
        assert Parsing(reasoning=name).thought_marks is None
