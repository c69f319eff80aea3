"""The shared gRPC behaviour where the simulator cannot misbehave: malformed messages, archives, credentials, URLs, runtime detection."""

import asyncio
import hashlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from smg.engine import Engine, EngineOptions, detect, open_engine, reader
from smg.errors import ConfigError, EngineError, EngineProtocol, EngineRejected, EngineTimeout, EngineUnavailable, Unimplemented
from smg.pb import common_pb2, vllm_engine_pb2
from smg.sim.processes import free_port
from tests.engine.drive import collect, driver, ids_of, request, until
from tests.engine.fake import HOLD, Fake, Step, serve
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.usefixtures("data_plane")


def chunk(*ids: int, index: int = 0) -> vllm_engine_pb2.GenerateResponse:
    return vllm_engine_pb2.GenerateResponse(chunk=vllm_engine_pb2.GenerateStreamChunk(token_ids=ids, index=index))


def complete(*ids: int, index: int = 0, reason: str = "stop") -> vllm_engine_pb2.GenerateResponse:
    return vllm_engine_pb2.GenerateResponse(complete=vllm_engine_pb2.GenerateComplete(output_ids=ids, index=index, finish_reason=reason))


def part(data: bytes, sha256: str = "") -> common_pb2.GetTokenizerChunk:
    return common_pb2.GetTokenizerChunk(data=data, sha256=sha256)


def play(
    answers: dict[str, Sequence[Step]], scene: Callable[[Engine, Fake], Awaitable[None]], *, runtime: str = "vllm", **options: Any
) -> None:
    async def run() -> None:
        async with serve(answers) as fake, driver(runtime, fake.url, **options) as engine:
            await scene(engine, fake)

    asyncio.run(run())


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([b"\xff\xff\xff"], id="not protobuf"),
        pytest.param([chunk(1), b"\x0a\x7f"], id="cut off"),
        pytest.param([], id="nothing at all"),
        pytest.param([chunk(1), chunk(2)], id="no end"),
        pytest.param([chunk(1, index=4)], id="foreign choice"),
    ],
)
def test_broken_streams(steps: list[Step], caplog: pytest.LogCaptureFixture) -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineProtocol):
            await collect(engine, request())

    caplog.set_level(logging.CRITICAL)
    play({"Generate": steps}, scene)


def test_one_choice_never_ends() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineProtocol):
            await collect(engine, request(n=2))

    play({"Generate": [chunk(1), chunk(2, index=1), complete(1)]}, scene)


@pytest.mark.parametrize("linger_s", [60.0, 0.01])
def test_answer_ends_with_the_last_choice_and_not_with_the_call(linger_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LINGER_S", linger_s)

    async def scene(engine: Engine, fake: Fake) -> None:
        assert ids_of(await collect(engine, request())) == [1, 2]
        if linger_s > 1:
            assert fake.cancelled == 0
        else:  # a call that stays open is not kept for ever
            await until(lambda: fake.cancelled == 1)

    play({"Generate": [chunk(1), chunk(2), complete(2), HOLD]}, scene)


def test_half_an_answer_is_cancelled_at_once() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        deltas = engine.generate(request(), timeout_s=30)
        await anext(deltas)
        watch = Stopwatch()
        await deltas.aclose()  # type: ignore[attr-defined]
        await until(lambda: fake.cancelled == 1)
        assert watch.seconds() < 0.1

    play({"Generate": [chunk(1), HOLD]}, scene)


def test_finish_reason_error() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineError):
            await collect(engine, request())

    play({"Generate": [complete(reason="error")]}, scene)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("top_p must be in (0, 1], got 2.0", True),
        ("grammar: expected 'a/b' at 12:3 of the text", True),
        ("cannot reach 10.0.0.7:5555", False),
        ("failed to load /srv/models/x", False),
        ("see http://inside/", False),
        ("Traceback (most recent call last):\n  boom", False),
    ],
)
def test_refusals_explain_but_do_not_leak(text: str, shown: bool) -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineRejected) as caught:
            await collect(engine, request())
        assert (text in caught.value.message) is shown
        assert text in (caught.value.detail or "")

    play({"Generate": [(grpc.StatusCode.INVALID_ARGUMENT, text)]}, scene)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("CANCELLED", 503),
        ("UNKNOWN", 502),
        ("INVALID_ARGUMENT", 400),
        ("DEADLINE_EXCEEDED", 504),
        ("NOT_FOUND", 400),
        ("ALREADY_EXISTS", 400),
        ("PERMISSION_DENIED", 502),
        ("RESOURCE_EXHAUSTED", 429),
        ("FAILED_PRECONDITION", 400),
        ("ABORTED", 503),
        ("OUT_OF_RANGE", 400),
        ("UNIMPLEMENTED", 502),
        ("INTERNAL", 502),
        ("UNAVAILABLE", 503),
        ("DATA_LOSS", 502),
        ("UNAUTHENTICATED", 502),
    ],
)
def test_every_status(code: str, status: int) -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        for call in (lambda: collect(engine, request()), engine.health):
            with pytest.raises(EngineError) as caught:
                await call()
            assert caught.value.status == status
            assert "scripted" not in caught.value.message or status == 400

    play({"Generate": [grpc.StatusCode[code]], "HealthCheck": [grpc.StatusCode[code]]}, scene)


def test_unary_call_has_a_deadline() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        for call in (engine.health, engine.model_info, engine.loads, lambda: engine.abort("r")):
            watch = Stopwatch()
            with pytest.raises(EngineTimeout):
                await call()
            assert watch.seconds() < 1

    hold = {method: [HOLD] for method in ("HealthCheck", "GetModelInfo", "GetLoads", "Abort")}
    play(hold, scene, unary_timeout_s=0.1)


def test_answer_over_the_message_limit() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineRejected):
            await collect(engine, request())

    play({"Generate": [chunk(*range(3000))]}, scene, max_message_bytes=1000)


GOOD = hashlib.sha256(b"abcdef").hexdigest()


@pytest.mark.parametrize(
    ("steps", "limit", "outcome"),
    [
        pytest.param([part(b"abc"), part(b"def", GOOD)], 6, b"abcdef", id="good"),
        pytest.param([part(b"abc"), part(b"def", GOOD.upper())], 6, b"abcdef", id="upper case"),
        pytest.param([part(b"abc"), part(b"def"), part(b"", GOOD)], 6, b"abcdef", id="sum alone at the end"),
        pytest.param([part(b"abc"), part(b"deX", GOOD)], 6, EngineProtocol, id="wrong sum"),
        pytest.param([part(b"abc", GOOD), part(b"def")], 6, EngineProtocol, id="sum not at the end"),
        pytest.param([part(b"abc"), part(b"def")], 6, EngineProtocol, id="no sum"),
        pytest.param([], 6, EngineProtocol, id="empty"),
        pytest.param([part(b"abc"), part(b"def", GOOD)], 5, EngineProtocol, id="over the limit"),
        pytest.param([part(b"abc"), b"\xff\xff"], 6, EngineProtocol, id="not protobuf"),
        pytest.param([part(b"abc"), grpc.StatusCode.UNAVAILABLE], 6, EngineUnavailable, id="goes away"),
        pytest.param([grpc.StatusCode.UNIMPLEMENTED], 6, Unimplemented, id="not offered"),
    ],
)
def test_tokenizer_archive(steps: list[Step], limit: int, outcome: bytes | type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        if isinstance(outcome, bytes):
            assert await engine.tokenizer_archive() == outcome
            return
        with pytest.raises(outcome):
            await engine.tokenizer_archive()

    caplog.set_level(logging.CRITICAL)
    play({"GetTokenizer": steps}, scene, max_archive_bytes=limit)


def test_endless_archive_is_left() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineProtocol):
            await engine.tokenizer_archive()
        await until(lambda: fake.cancelled == 1)

    play({"GetTokenizer": [part(bytes(2000)), HOLD]}, scene, max_archive_bytes=1000)


def test_api_key_goes_with_every_call() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        await collect(engine, request())
        assert fake.metadata["authorization"] == "Bearer secret"
        fake.metadata = {}
        await engine.health()
        assert fake.metadata["authorization"] == "Bearer secret"

    answers = {"Generate": [complete(1)], "HealthCheck": [vllm_engine_pb2.HealthCheckResponse(healthy=True)]}
    play(answers, scene, api_key="secret")


def test_unix_socket(tmp_path: Path) -> None:
    async def run() -> None:
        async with serve({"Generate": [complete(1)]}, address=f"unix:{tmp_path}/s"):
            for url in (f"unix:{tmp_path}/s", f"unix://{tmp_path}/s"):
                async with driver("vllm", url) as engine:
                    assert ids_of(await collect(engine, request())) == [1]

    asyncio.run(run())


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual tls"])
def test_tls(certificates: Path, mutual: bool) -> None:
    def pem(name: str) -> bytes:
        return (certificates / name).read_bytes()

    async def run() -> None:
        pair = [(pem("server.key"), pem("server.pem"))]
        credentials = grpc.ssl_server_credentials(pair, pem("ca.pem") if mutual else None, mutual)
        client = {"client_cert_path": str(certificates / "client.pem"), "client_key_path": str(certificates / "client.key")}
        trust = {"ca_cert_path": str(certificates / "ca.pem")}
        async with serve({"Generate": [complete(1)]}, credentials=credentials) as fake:
            async with driver("vllm", fake.url, **trust, **(client if mutual else {})) as engine:
                assert ids_of(await collect(engine, request())) == [1]
            async with driver("vllm", fake.url, **(trust if mutual else {}), connect_timeout_s=1) as engine:
                with pytest.raises(EngineUnavailable):
                    await collect(engine, request())

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        "ftp://localhost:1",
        "localhost:1",
        "grpc://localhost",
        "grpc://:80",
        "grpc://localhost:99999",
        "grpc://localhost:1/path",
        "grpc://me@localhost:1",
        "unix:",
        "",
    ],
)
def test_bad_urls(url: str) -> None:
    async def run() -> None:
        with pytest.raises(ConfigError):
            await open_engine(url, runtime="vllm").start()
        with pytest.raises(ConfigError):
            await detect(url)

    asyncio.run(run())


def test_certificate_files_that_are_not_there() -> None:
    async def run() -> None:
        for options in (EngineOptions(ca_cert_path="/nowhere.pem"), EngineOptions(client_cert_path="/nowhere.pem")):
            with pytest.raises(ConfigError):
                await open_engine("grpcs://localhost:1", runtime="vllm", options=options).start()

    asyncio.run(run())


def test_unknown_runtime() -> None:
    with pytest.raises(ConfigError, match="did you mean vllm"):
        open_engine("grpc://localhost:1", runtime="vlm")


def test_driver_that_was_not_started() -> None:
    with pytest.raises(EngineUnavailable):
        asyncio.run(collect(open_engine("grpc://localhost:1", runtime="vllm"), request()))


def test_detect_without_an_engine() -> None:
    async def run() -> None:
        watch = Stopwatch()
        with pytest.raises(EngineUnavailable):
            await detect(f"grpc://127.0.0.1:{free_port()}")
        with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises((EngineUnavailable, EngineTimeout)):
            await detect(f"grpc://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.3)
        async with serve({}) as fake:
            with pytest.raises(EngineProtocol, match="none of the known protocols"):
                await detect(fake.url)
        assert watch.seconds() < 3

    asyncio.run(run())


def test_detect_takes_an_engine_that_is_not_well() -> None:
    async def run() -> None:
        async with serve({"HealthCheck": [grpc.StatusCode.INTERNAL]}) as fake:
            original = fake.service
            fake.service = lambda details: original(details) if "MlxEngine" in details.method else None  # type: ignore[method-assign]
            assert await detect(fake.url, options=EngineOptions(api_key="k")) == "mlx"
            assert fake.metadata["authorization"] == "Bearer k"

    asyncio.run(run())


def test_cancelled_task_stays_cancelled() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        for call in (lambda: collect(engine, request()), engine.health):
            task: asyncio.Task[object] = asyncio.ensure_future(call())  # type: ignore[assignment]
            seen = len(fake.requests)
            await until(lambda seen=seen: len(fake.requests) > seen)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: fake.cancelled == 2)

    play({"Generate": [HOLD], "HealthCheck": [HOLD]}, scene)


def test_request_over_the_message_limit() -> None:
    async def scene(engine: Engine, fake: Fake) -> None:
        with pytest.raises(EngineRejected, match="larger than a message may be") as caught:
            await collect(engine, request(prompt_ids=[70_000] * 1000))
        assert "Sent message larger than max" in str(caught.value.detail)
        assert not fake.requests
        assert ids_of(await collect(engine, request())) == [1]

    play({"Generate": [complete(1)]}, scene, max_message_bytes=2000)
