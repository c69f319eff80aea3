"""The application under a real server: raw requests in, bytes out, clients that leave, deadlines, drain."""

import asyncio
import contextlib
import logging
import socket
import time

import msgspec
import pytest
import uvloop

from smg.config import Config
from smg.errors import EngineUnavailable
from smg.server import exchange as exchange_module
from smg.server.front import Front
from smg.types.event import Content
from tests.api.fake import HANG, HELLO, STARTED, events
from tests.server.asking import ask, body, error_of, make_app
from tests.server.serving import BOUND_S, connection, exchange, get, post, serving, until


def test_a_whole_answer_and_a_stream():
    status, headers, answer, app = ask(post(body()))
    assert (status, headers["content-type"]) == (200, "application/json")
    assert msgspec.json.decode(answer)["choices"][0]["message"]["content"] == "Hello"
    assert headers["x-request-id"] == msgspec.json.decode(answer)["id"]
    assert app.observer.seen == [("POST", "/v1/chat/completions", 200)]
    status, headers, answer, _ = ask(post(body(stream=True)))
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in events(answer)) == "Hello"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (post(b'{"messages": ['), 400, "invalid_json"),
        (post(b""), 400, "invalid_json"),
        (post(b"[]"), 400, "invalid_value"),
        (post(b'{"messages": 3}'), 400, "invalid_value"),
        (post(b'{"x": ' + b"[" * 3000 + b"]" * 3000 + b"}"), 400, "invalid_json"),
        (post(body(), media="text/plain"), 415, "unsupported_media_type"),
        (post(body(), media=""), 415, "unsupported_media_type"),
        (post(body(), "content-encoding: gzip"), 415, "unsupported_media_type"),
        (post(body(web_search_options={})), 501, "not_implemented"),
        (post(body(), path="/v1/responses"), 501, "not_implemented"),
        (post(body(), path="/nope"), 404, "not_found"),
        (get("/nope"), 404, "not_found"),
        (get("/v1/models/nope"), 404, "model_not_found"),
        (get("/v1/chat/completions"), 405, "method_not_allowed"),
        (get("/health", method="DELETE"), 405, "method_not_allowed"),
    ],
)
def test_errors_before_the_handler(data, status, code):
    got, headers, answer, _ = ask(data)
    assert (got, headers["x-smg-error-code"], error_of(answer)["code"]) == (status, code, code)
    assert set(error_of(answer)) == {"message", "type", "param", "code"}


def test_allow_header():
    assert ask(get("/v1/chat/completions"))[1]["allow"] == "POST, OPTIONS"


def test_head_and_options():
    status, headers, answer, _ = ask(get("/health", method="HEAD"))
    assert (status, answer, headers["content-length"]) == (200, b"", "15")
    status, headers, answer, _ = ask(get("/health", method="OPTIONS"))
    assert (status, answer, headers["allow"]) == (204, b"", "GET, HEAD, OPTIONS")


def test_a_model_name_with_a_slash():
    for path in ("/v1/models/org/m", "/v1/models/org%2Fm"):
        status, _, answer, _ = ask(get(path))
        assert (status, msgspec.json.decode(answer)["id"]) == (200, "org/m")


@pytest.mark.parametrize(
    ("header", "kept"),
    [("x-request-id: abc-1", True), ("x-trace-id: t", True), ("x-request-id: a b", False), ('x-request-id: a"b', False)],
)
def test_request_ids(header, kept):
    for data in (post(body(), header), get("/nope", header), post(b"{", header)):
        told = ask(data)[1]["x-request-id"]
        assert (told == header.partition(": ")[2]) == kept


def test_cors():
    origin = "origin: https://chat.example"
    assert "access-control-allow-origin" not in ask(get("/health", origin))[1]
    allowed = {"cors_allowed_origins": ("https://chat.example",)}
    assert ask(get("/nope", origin), **allowed)[1]["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-origin" not in ask(get("/health", "origin: https://evil.example"), **allowed)[1]
    preflight = get("/v1/chat/completions", origin, "access-control-request-method: POST", method="OPTIONS")
    headers = ask(preflight, **allowed)[1]
    assert headers["access-control-allow-methods"] == "POST, OPTIONS"
    assert "authorization" in headers["access-control-allow-headers"]


def test_keys():
    keys = {"api_key": ("sesame",)}
    for header in ((), ("authorization: Bearer wrong",), ("authorization: Basic sesame",)):
        status, headers, answer, _ = ask(post(body(), *header), **keys)
        assert (status, error_of(answer)["code"], headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert ask(post(body(), "authorization: Bearer sesame"), **keys)[0] == 200
    assert ask(get("/health"), **keys)[0] == 200
    assert ask(get("/v1/models"), **keys)[0] == 200


def test_a_body_over_the_limit_is_refused_before_it_is_sent():
    status, _, answer, _ = ask(post(b"", length=10**12))
    assert (status, error_of(answer)["code"]) == (413, "body_too_large")


def test_a_refused_client_is_not_told_to_go_on():
    status, headers, _, _ = ask(post(b"", "expect: 100-continue", length=10**12))
    assert (status, headers["x-smg-error-code"]) == (413, "body_too_large")
    app, _ = make_app()

    async def run():
        async with serving(app) as port:
            return (await exchange(port, post(body(), "expect: 100-continue")))[0]

    assert asyncio.run(run()) == 100


def test_a_client_that_sends_on_hears_why_not():
    app, _ = make_app(max_payload_bytes=1000)

    def talk(port):
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            with contextlib.suppress(OSError):
                client.sendall(post(b"x" * 20_000_000))
            return client.recv(100_000)

    async def run():
        async with serving(app) as port:
            return [await asyncio.to_thread(talk, port) for _ in range(3)]

    assert all(answer.startswith(b"HTTP/1.1 413") for answer in asyncio.run(run()))


@pytest.mark.parametrize("name", [b"x-request-id", b"authorization", b"content-encoding", b"origin", b"x-smg-routing-key"])
def test_headers_that_are_not_text(name):
    data = post(body()).replace(b"host: x\r\n", b"host: x\r\n%b: \xff\xfe\r\n" % name)
    assert ask(data, cors_allowed_origins=("https://a",))[0] == 200


@pytest.mark.parametrize("path", ["/v1/models/%ff", "/v1/models/%zz", "/v1/models/a%0d%0ax-bad:1", "*", "//health", "/?x=%ff"])
def test_paths_that_are_odd(path):
    status, headers, answer, _ = ask(get(path))
    assert (status, error_of(answer)["code"]) in ((404, "not_found"), (404, "model_not_found"))
    assert "x-bad" not in headers


def test_a_chunked_body_is_counted():
    limit = {"max_payload_bytes": 1000}
    whole = body()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (whole[:10], whole[10:])) + b"0\r\n\r\n"
    assert ask(post(chunks, "transfer-encoding: chunked", length=-1), **limit)[0] == 200
    endless = b"".join(b"200\r\n%b\r\n" % (b" " * 0x200) for _ in range(2))
    status, _, answer, _ = ask(post(endless, "transfer-encoding: chunked", length=-1), **limit)
    assert (status, error_of(answer)["code"]) == (413, "body_too_large")


def test_a_large_body_is_whole():
    text = "x" * 300_000
    app, pipeline = make_app()

    async def run():
        async with serving(app) as port:
            return await exchange(port, post(body(messages=[{"role": "user", "content": text}])))

    assert asyncio.run(run())[0] == 200
    assert pipeline.jobs[0].input.messages[0]["content"] == text


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_body_that_stops_is_given_up(size, monkeypatch):
    monkeypatch.setattr("smg.middleware.body.IDLE_S", 0.05)
    status, _, answer, _ = ask(post(b'{"messages"', length=size))
    assert (status, error_of(answer)["code"]) == (408, "body_timeout")


def test_an_error_before_the_first_token_has_its_own_status():
    status, headers, answer, app = ask(post(body(stream=True)), [[STARTED], EngineUnavailable("the engine went away", retry_after_s=2)])
    assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/json", "2")
    assert error_of(answer)["message"] == "the engine went away"
    assert app.observer.seen[0][2] == 503


def test_an_error_in_mid_stream_is_told_and_is_no_clean_end():
    status, _, answer, app = ask(post(body(stream=True)), [[STARTED], [Content(0, "a")], EngineUnavailable("the engine went away")])
    *chunks, last = events(answer)
    assert status == 200
    assert last["error"]["code"] == "engine_unavailable"
    assert all(part["finish_reason"] is None for chunk in chunks for part in chunk["choices"])
    assert app.observer.seen == [("POST", "/v1/chat/completions", 503)]


@pytest.mark.parametrize("begun", [False, True])
def test_what_an_engine_said_of_its_failure_is_logged_and_not_told(begun, caplog):
    error = EngineUnavailable("the engine went away", detail="UNAVAILABLE: 10.0.0.1:50051")
    error.engine = "grpc://10.0.0.1:50051"
    with caplog.at_level(logging.WARNING):
        _, _, answer, _ = ask(post(body(stream=True)), [[STARTED], *([[Content(0, "a")]] if begun else []), error])
    assert b"10.0.0.1" not in answer
    [record] = [record for record in caplog.records if record.message == "request failed: the engine went away"]
    assert (record.engine, record.cause, record.code) == ("grpc://10.0.0.1:50051", "UNAVAILABLE: 10.0.0.1:50051", "engine_unavailable")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_fault_of_ours_is_logged_and_not_told(stream, begun, caplog):
    script = [[STARTED], *([[Content(0, "a")]] if begun else []), ZeroDivisionError("secret")]
    with caplog.at_level(logging.ERROR):
        status, _, answer, _ = ask(post(body(stream=stream)), script)
    assert status == (200 if stream and begun else 500)
    assert b"secret" not in answer
    assert b"internal_error" in answer
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


def test_a_response_that_cannot_be_ended_is_cut(monkeypatch):
    def fail(*args, **options):
        raise ZeroDivisionError

    monkeypatch.setattr("smg.server.front.responder.ResponseStream", fail)
    app, _ = make_app()

    async def run():
        front = Front(app, config=Config(), loop=asyncio.get_running_loop())
        sock = socket.create_server(("127.0.0.1", 0))
        await front.serve(sock)
        async with connection(sock.getsockname()[1]) as (reader, writer):
            writer.write(post(body(stream=True)))
            assert await asyncio.wait_for(reader.read(), BOUND_S) == b""
            await until(lambda: not app.inflight)
        front.close()

    uvloop.run(run())


def test_the_cause_of_an_engines_failure_is_logged_and_not_told(caplog):
    error = EngineUnavailable("the engine went away")
    error.__cause__ = OSError("10.0.0.7 refused")
    with caplog.at_level(logging.WARNING):
        answer = ask(post(body()), [[STARTED], error])[2]
    assert b"10.0.0.7" not in answer
    assert any("10.0.0.7" in record.__dict__.get("cause", "") for record in caplog.records)


def test_silence_is_filled_with_comments(monkeypatch):
    monkeypatch.setattr(exchange_module, "HEAD_AFTER_S", 0.05)
    app, _ = make_app([[STARTED], HANG], keepalive_interval_s=0.05)

    async def run():
        async with serving(app) as port, connection(port) as (reader, writer):
            writer.write(post(body(stream=True)))
            start = time.monotonic()
            head = await reader.readuntil(b": keep-alive\n\n")
            for _ in range(2):
                await reader.readuntil(b": keep-alive\n\n")
            took = time.monotonic() - start
            writer.close()
            await until(lambda: not app.inflight)
            return head, took

    head, took = asyncio.run(run())
    assert head.startswith(b"HTTP/1.1 200")
    assert 0.14 < took < BOUND_S


def test_an_error_after_the_first_comment_is_an_event(monkeypatch):
    monkeypatch.setattr(exchange_module, "HEAD_AFTER_S", 0.02)
    app, _ = make_app([HANG], request_timeout_s=1.0)

    async def run():
        async with serving(app) as port:
            return await exchange(port, post(body(stream=True)))

    status, _, answer = asyncio.run(run())
    comment, _, rest = answer.partition(b"\n\n")
    assert (status, comment) == (200, b": keep-alive")
    assert events(rest)[0]["error"]["code"] == "engine_timeout"


def test_the_deadline_of_a_request():
    status, _, answer, _ = ask(post(body()), [[STARTED], HANG], request_timeout_s=0.1)
    assert (status, error_of(answer)["code"]) == (504, "engine_timeout")


def test_drain():
    app, pipeline = make_app([[STARTED], [Content(0, "a")], HANG])

    async def run():
        async with serving(app) as port, connection(port) as (reader, writer):
            await asyncio.wait_for(app.drained(), BOUND_S)
            writer.write(post(body(stream=True)))
            await reader.readuntil(b'"a"')
            app.draining = True
            status, _, answer = await exchange(port, get("/readiness"))
            assert (status, msgspec.json.decode(answer)["reason"]) == (503, "the gateway is draining")
            pipeline.script = HELLO
            assert (await exchange(port, post(body())))[0] == 200
            waiting = asyncio.create_task(app.drained())
            await asyncio.sleep(0)
            assert (app.inflight, waiting.done()) == (1, False)
            writer.close()
            await asyncio.wait_for(waiting, BOUND_S)
            assert app.inflight == 0

    asyncio.run(run())


def test_websockets_are_refused():
    app, _ = make_app()

    async def run():
        async with serving(app) as port, connection(port) as (reader, writer):
            upgrade = ("upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==")
            writer.write(get("/v1/realtime", *upgrade).replace(b"connection: close", b"connection: upgrade"))
            return await asyncio.wait_for(reader.readuntil(b"\r\n"), BOUND_S)

    assert asyncio.run(run()).startswith(b"HTTP/1.1 501")
