"""The native stream machine with its chat exit against its specification: driver, answer, generation, stream machines, chat renderer.

Both get the same engine messages. Compared are the bytes of each message's chunks, how the answer ended, the token counts, and whether the
engine is to be aborted.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from smg._ext import ChatSink, FieldTable, StopStrings, Vocabulary
from smg.api.openai.answer import Head
from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_switches import Switches
from smg.engine import ENGINES, EngineRequest, GrpcEngine, ResolvedSampling, field_table
from smg.errors import EngineError, EngineProtocol
from smg.pipeline.deadlines import Deadlines
from smg.pipeline.generation import Aborts, Generation
from smg.pipeline.stream import StreamSpec
from smg.sim.model import load_model
from smg.tokenizer import Decoder, Tokenizer, load_tokenizer
from smg.tokenizer.decoder import BytesDecoder
from smg.types.event import Usage

RUNTIMES = [name for name in ENGINES.names() if issubclass(ENGINES.get(name), GrpcEngine)]
HEAD = Head(id="chatcmpl-1", object="chat.completion.chunk", created=1, model="m", system_fingerprint="fp_1")
PIECES = [bytes([i]) for i in range(256)] + [
    *(b"ab", b"abc", b"bc\n", b"STOP", b"ST", b"OP", b"", "é".encode(), "€😀".encode()),
    *(b"\xf0\x9f", b"\x98\x80", b"\xed\xa0", b"\xe2\x82", b'"\\\x00\x7f', b"<|end|>", b"<|hidden|>"),
]
SPECIAL = frozenset({len(PIECES) - 1, len(PIECES) - 2})
STOPS = ["ab", "abc", "bc", "b", "STOP", "TO", "OPST", "é", "€", "😀", "\ufffd", "\ufffd\ufffd", "\n", "aab", "the", " the", 'q"\\']


class Words:
    """A vocabulary in both forms."""

    def __init__(self, tokenizer: Tokenizer, pieces: list[bytes], special: frozenset[int], make: Callable[[bool], Decoder]) -> None:
        self.tokenizer = tokenizer
        self.size = len(pieces)
        self.native = Vocabulary(pieces, special)
        self.decoder = make


def simulated() -> Words:
    tokenizer = load_tokenizer(load_model("").folder)
    assert tokenizer.byte_level
    pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    return Words(tokenizer, pieces, tokenizer.special_ids, lambda skip: tokenizer.decoder(skip_special_tokens=skip))


def made_up(tokenizer: Tokenizer) -> Words:
    def decoder(skip: bool) -> Decoder:
        return BytesDecoder(lambda i: PIECES[i] if i < len(PIECES) and not (skip and i in SPECIAL) else None)

    return Words(tokenizer, PIECES, SPECIAL, decoder)


SIMULATED = simulated()
WORDS = [SIMULATED, made_up(SIMULATED.tokenizer)]
TABLES = {
    runtime: FieldTable(field_table(ENGINES.get(runtime).service.methods_by_name["Generate"].output_type))  # type: ignore[attr-defined]
    for runtime in RUNTIMES
}


class Case:
    """One request and the messages that an engine answers it with."""

    def __init__(self, draw: random.Random, runtime: str) -> None:
        self.runtime = runtime
        self.words = draw.choice(WORDS)
        self.n = 1 if runtime == "mlx" else draw.choice((1, 1, 2, 3))
        self.stops = tuple(draw.sample(STOPS, draw.choice((0, 0, 1, 2, 5))))
        self.reported = frozenset(draw.sample(range(self.words.size), draw.choice((0, 0, 1, 30))))
        self.ends = self.reported | frozenset(draw.sample(range(self.words.size), draw.choice((0, 1, 20))))
        self.min_tokens = draw.choice((0, 0, 0, 1, 3, 9))
        self.include_stop = draw.random() < 0.4
        self.skip_special = draw.random() < 0.6
        self.usage = draw.random() < 0.5
        self.kind = GetMessageClass(ENGINES.get(runtime).service.methods_by_name["Generate"].output_type)  # type: ignore[attr-defined]
        self.messages = self._messages(draw)

    def _messages(self, draw: random.Random) -> list[bytes]:
        lines = [self._choice(draw, i) for i in range(self.n)]
        out: list[bytes] = []
        while any(lines):
            out.append(draw.choice([line for line in lines if line]).pop(0))
        if draw.random() < 0.15:
            odd = self._chunk(draw.choice((0, self.n, 2**31, 2**32 - 1)), [1, 2])
            out.insert(draw.randrange(len(out) + 1), draw.choice((odd, b"\xff", b"", self._complete(0, [5], reason="stop"))))
        return out[: draw.randrange(len(out) + 1)] if draw.random() < 0.1 else out

    def _choice(self, draw: random.Random, index: int) -> list[bytes]:
        few = draw.random() < 0.7
        ids = [self._id(draw, few) for _ in range(draw.choice((0, 1, 5, 30)))]
        parts: list[list[int]] = []
        rest = list(ids)
        while rest:
            size = draw.choice((1, 1, 1, 2, 7))
            parts.append(rest[:size])
            rest = rest[size:]
        last = draw.choice(([], parts[-1] if parts else [], ids, [*ids, 97, 98]))
        if parts and draw.random() < 0.2:
            last = ids
            parts.pop()
        reason = draw.choice(("stop", "stop", "length", "tool_calls", "content_filter", "eos", "", "error", "abort", "timeout"))
        return [*[self._chunk(index, part) for part in parts], self._complete(index, last, reason=reason, draw=draw)]

    def _id(self, draw: random.Random, few: bool) -> int:
        if draw.random() < 0.02:
            return draw.choice((self.words.size, 2**32 - 1))
        if self.words is SIMULATED:
            return draw.randrange(300 if few else self.words.size)
        return draw.choice(range(256, self.words.size)) if few else draw.randrange(self.words.size)

    def _chunk(self, index: int, ids: list[int]) -> bytes:
        field = "sequence_index" if self.runtime == "trtllm" else "index"
        body = {"token_ids": ids, field: index, "prompt_tokens": 3, "completion_tokens": len(ids), "cached_tokens": len(ids)}
        return self.kind(chunk=body).SerializeToString()

    def _complete(self, index: int, ids: list[int], *, reason: str, draw: random.Random | None = None) -> bytes:
        trtllm = self.runtime == "trtllm"
        body: dict[str, Any] = {"output_token_ids" if trtllm else "output_ids": ids, "sequence_index" if trtllm else "index": index}
        body |= {"finish_reason": reason, "cached_tokens": 9, "prompt_tokens": 0 if draw is None else draw.choice((0, 4))}
        if draw is not None and draw.random() < 0.4:
            token = "matched_stop_token_id" if self.runtime == "mlx" else "matched_token_id"
            body |= {token: draw.choice([7, *self.reported])}
        elif draw is not None and self.runtime != "mlx" and draw.random() < 0.3:
            body |= {"matched_stop_str": draw.choice(("", "STOP", 'é"\n'))}
        return self.kind(complete=body).SerializeToString()


class Replay:
    """A reader that gives a case's messages; `given` counts them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.given = 0

    async def read(self) -> Message | None:
        if self.given == len(self.case.messages):
            return None
        self.given += 1
        try:
            return self.case.kind.FromString(self.case.messages[self.given - 1])
        except DecodeError as error:
            raise EngineProtocol("the engine sent a message that is not of its protocol") from error

    def leave(self, *, whole: bool) -> None:
        pass


Outcome = tuple[list[bytes], tuple[type[EngineError], str] | None, Usage | None, bool]


def specified(case: Case) -> Outcome:
    """What the specification makes of a case: chunks by message, the error, the usage, whether the engine is aborted."""
    replay = Replay(case)
    engine: Any = ENGINES.get(case.runtime)("grpc://host:1")
    aborted: list[str] = []

    async def reader(*_: object, **__: object) -> Replay:
        return replay

    async def abort(request_id: str) -> None:
        aborted.append(request_id)

    engine._reader, engine.abort = reader, abort
    generation = Generation(
        engine,
        EngineRequest(request_id="r", prompt_ids=[1] * 7, sampling=ResolvedSampling(n=case.n), stop_token_ids=tuple(case.ends)),
        spec=StreamSpec(
            tokenizer=case.words.tokenizer,
            stop_strings=case.stops,
            include_stop=case.include_stop,
            end_ids=case.ends,
            reported_end_ids=case.reported,
            min_tokens=case.min_tokens,
        ),
        make_decoder=lambda: case.words.decoder(case.skip_special),
        make_parser=lambda: None,
        deadlines=Deadlines(),
        aborts=(aborts := Aborts()),
    )
    stream = ChatStream(HEAD, Switches(choices=case.n, usage=case.usage))
    chunks: list[bytes] = [b""] * len(case.messages)

    async def run() -> Usage | None:
        usage = None
        try:
            async for events in generation.batches(time.monotonic() + 60):
                usage = events[0] if isinstance(events[0], Usage) else None
                if usage is None:
                    chunks[replay.given - 1] = stream.feed(events)
        finally:
            await aborts.close()
        return usage

    try:
        usage = asyncio.run(run())
    except EngineError as error:
        return chunks, (type(error), error.message), None, True
    return chunks, None, usage, bool(aborted)


def native(case: Case) -> Outcome:
    """What the native machine makes of it."""
    ends: list[tuple[str, int, str]] = []
    written: list[bytes] = []
    frame = ChatStream(HEAD, Switches(choices=case.n, usage=case.usage)).frame
    sink = ChatSink(
        TABLES[case.runtime],
        case.words.native,
        StopStrings(case.stops) if case.stops else None,
        choices=case.n,
        ends=case.ends,
        reported=case.reported,
        min_tokens=case.min_tokens,
        skip_special=case.skip_special,
        include_stop=case.include_stop,
        prompt_tokens=7,
        prefix=frame.prefix,
        tail=frame.tail,
        write=written.append,
        done=lambda *end: ends.append(end),
    )
    chunks: list[bytes] = []
    for message in case.messages:
        written.clear()
        before = len(ends)
        sink.feed(message)
        assert len(written) <= 1
        chunks.append(b"".join(written) or (sink.last if len(ends) > before else b""))
    assert len(ends) <= 1
    if not ends:
        return chunks, (EngineProtocol, "the engine ended its answer without finishing it"), None, True
    error, status, _ = ends[0]
    if error:
        return chunks, (EngineError if status else EngineProtocol, error), None, True
    prompt, completion, cached = sink.usage
    return chunks, None, Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached), sink.cut


def described(case: Case) -> Sequence[object]:
    return [
        case.runtime,
        case.n,
        case.stops,
        sorted(case.ends),
        sorted(case.reported),
        case.min_tokens,
        case.include_stop,
        case.skip_special,
    ]


@pytest.mark.parametrize("runtime", RUNTIMES)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_native_equals_specification(runtime: str, seed: int) -> None:
    case = Case(random.Random(seed), runtime)
    assert native(case) == specified(case), described(case)
