"""The native data plane says byte for byte what the reference path says, over every protocol."""

import asyncio
import time

import msgspec
import pytest

from smg.api.openai.answer import Head
from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_switches import Switches
from smg.api.sse import DONE
from smg.config import Config
from smg.errors import ClientGone, EngineTimeout, EngineUnavailable, SmgError
from smg.tokenizer import load_tokenizer
from smg.types.event import Event
from smg.types.job import Job, Logprobs, Sampling, Stops
from tests.engine.drive import until
from tests.pipeline.fleet import MODEL, PROTOCOLS, Fleet, chat, collect, fleet, text_of
from tests.pipeline.test_run import settled

HEAD = Head(id="chatcmpl-1", object="chat.completion.chunk", created=1, model="m", system_fingerprint="fp")
PROSE = 'Zażółć gęślą jaźń, 北京 is a city. 👩‍👩‍👧 "quoted" \\ and\ttabs\n\nthen one two three four five six seven.'


def config(plane: str) -> Config:
    """A configuration with that data plane, and without the parser that the model's template asks for."""
    default = Config()
    engines = msgspec.structs.replace(default.engines, data_plane=plane)
    return msgspec.structs.replace(default, engines=engines, model=msgspec.structs.replace(default.model, reasoning_parser="none"))


async def told(engines: Fleet, job: Job) -> bytes:
    """Everything that is written for a job, its error included."""
    stream = ChatStream(HEAD, Switches(choices=job.sampling.n, usage=True, logprobs=job.logprobs.output is not None))
    written: list[bytes] = []
    try:
        written.append(await engines.pipeline.stream(job, renderer=stream, write=lambda chunk: written.append(chunk) or True))
    except SmgError as error:
        written.append(f"{type(error).__name__} {error.status} {error.code} {error.message}".encode())
    return b"".join(written)


async def whole(engines: Fleet, job: Job) -> list[Event]:
    """The events of an answer that is taken whole, which come at once."""
    batches: list[list[Event]] = []
    await engines.pipeline.whole(job, take=batches.append)
    (events,) = batches
    return events


def said(answer: bytes) -> str:
    """Joins the content of one choice."""
    chunks = [msgspec.json.decode(line.removeprefix(b"data: ")) for line in answer.removesuffix(DONE).split(b"\n\n") if line]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


async def both(protocol: str, jobs: list[Job], **options: object) -> list[bytes]:
    """What both planes say to the same jobs; they must agree."""
    answers = []
    for plane in ("aio", "native"):
        async with fleet(protocol, config=config(plane), **options) as engines:
            answers.append([await told(engines, job) for job in jobs])
            await until(lambda: settled(engines))
    assert answers[0] == answers[1]
    return answers[1]


# A token in the middle of the prose.
END = load_tokenizer(MODEL).encode(PROSE)[20]

JOBS = [
    {},
    {"max_tokens": 3},
    {"stops": Stops(strings=("ee fo",))},
    {"stops": Stops(strings=("ee fo", "four"), include_in_output=True)},
    {"stops": Stops(strings=("jaźń, 北",))},
    {"stops": Stops(strings=("seven.", "no such"))},
    {"stops": Stops(token_ids=(END,))},
    {"stops": Stops(token_ids=(END,), include_in_output=True)},
    {"sampling": Sampling(max_tokens=200, ignore_eos=True)},
    {"skip_special_tokens": False},
    {"logprobs": Logprobs(output=2)},
]


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_planes_say_the_same(protocol: str, interval: int) -> None:
    async def run() -> None:
        jobs = [chat(PROSE, **{"max_tokens": 200, **fields}) for fields in JOBS]
        answers = await both(protocol, jobs, stream_interval=interval)
        assert b'"finish_reason":"stop"' in answers[0]
        assert b'"usage":{"prompt_tokens"' in answers[0]
        assert b'"matched_stop":"ee fo"' in answers[2]
        assert b'"matched_stop":%d' % END in answers[6]

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm", "tokenspeed"])
def test_both_planes_say_the_same_of_several_choices(protocol: str) -> None:
    async def run() -> None:
        (answer,) = await both(protocol, [chat("one two three", n=3, stops=Stops(strings=("two",)))])
        assert answer.count(b'"finish_reason":"stop"') == 3

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["rst@3", "die@3", "end@3", "error:INTERNAL@2", "error:INVALID_ARGUMENT@0", "error:RESOURCE_EXHAUSTED@0"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_planes_say_the_same_of_faults(protocol: str, fault: str) -> None:
    async def run() -> None:
        await both(protocol, [chat("one two three four five six")], fault=fault, itl_ms=5)

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_native_way_was_taken(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with fleet(protocol, config=config("native")) as engines:
            monkeypatch.setattr(engines.pipeline, "_generation", None)
            assert said(await told(engines, chat("one two"))) == "one two"
            assert text_of(await collect(engines, chat("one two"))) == "one two"
            assert text_of(await whole(engines, chat("one two", stream=False))) == "one two"

    asyncio.run(run())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("after", [0, 3])
def test_a_client_that_leaves_aborts_the_engine_within_100_ms(protocol: str, after: int) -> None:
    async def run() -> None:
        async with fleet(protocol, config=config("native"), itl_ms=5, ttft_ms=0 if after else 5000) as engines:
            written: list[bytes] = []
            stream = ChatStream(HEAD, Switches(choices=1))
            job = chat("word " * 200, max_tokens=400)
            task = asyncio.ensure_future(engines.pipeline.stream(job, renderer=stream, write=lambda chunk: written.append(chunk) or True))
            await until(lambda: engines.sims[0].counters.started == 1 and len(written) >= after)
            task.cancel()
            assert await until(lambda: engines.sims[0].counters.aborted == 1) < 0.1
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
            await until(lambda: settled(engines))

    asyncio.run(run())


def test_a_refused_write_ends_the_job() -> None:
    async def run() -> None:
        async with fleet("vllm", config=config("native"), itl_ms=2) as engines:
            with pytest.raises(ClientGone):
                await engines.pipeline.stream(
                    chat("word " * 200, max_tokens=400), renderer=ChatStream(HEAD, Switches(choices=1)), write=lambda chunk: False
                )
            await until(lambda: settled(engines))
            assert engines.sims[0].counters.aborted == 1

    asyncio.run(run())


def test_the_deadline_ends_a_hanging_engine() -> None:
    async def run() -> None:
        async with fleet("sglang", config=config("native"), fault="hang@2") as engines:
            job = chat("one two three four", deadline_s=time.monotonic() + 0.3)
            with pytest.raises(EngineTimeout):
                await engines.pipeline.stream(job, renderer=ChatStream(HEAD, Switches(choices=1)), write=lambda chunk: True)
            await until(lambda: settled(engines))

    asyncio.run(run())


def test_a_dead_engine_is_passed_over() -> None:
    async def run() -> None:
        async with fleet("vllm", "mlx", config=config("native")) as engines:
            engines.sims[0].kill()
            for _ in range(4):
                assert said(await told(engines, chat("hello"))) == "hello"
            assert engines.load == 0

    asyncio.run(run())


@pytest.mark.parametrize("way", ["whole", "run"])
def test_an_engine_that_dies_after_its_first_message_is_not_replaced(way: str) -> None:
    async def run() -> None:
        async with fleet("vllm", "vllm", config=config("native"), fault="die@3", itl_ms=5) as engines:
            job = chat("one two three four five six", stream=False, stops=Stops(strings=("no such",)))
            with pytest.raises(EngineUnavailable):
                await (whole if way == "whole" else collect)(engines, job)
            assert sum(sim.counters.started for sim in engines.sims) == 1
            assert engines.load == 0

    asyncio.run(run())
