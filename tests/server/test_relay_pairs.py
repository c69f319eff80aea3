"""Requests that two engines over HTTP compute together: what each is told, byte by byte, and that nobody keeps anything when either part,
or the client, is gone."""

import asyncio
import json
from typing import Any

import pytest

from smg.engine import ServerInfo
from smg.pipeline.relay_pairs import rendezvous
from smg.worker import EngineRecord, EngineState
from smg.worker.breaker import Condition
from tests.engine.http.upstream import STREAM_HEAD, Asked, Script, answer, chunked, upstream
from tests.server.relaying import Relaying, config, relaying
from tests.server.serving import until
from tests.server.test_relay import hang, idle, run, saying

PARAMS = b'{ "do_remote_prefill" :true,"remote_block_ids": [1,2 ],"remote_host":"10.0.0.1"}'
HANDED = b'{"id":"x","choices":[],"kv_transfer_params":' + PARAMS + b"}"
PAIR: tuple[dict[str, object], ...] = ({"role": "prefill"}, {"role": "decode"})
HEADERS = {"content-type": "application/json"}
RUNTIMES = pytest.mark.parametrize("runtime", ["vllm", "sglang"])


def helping(go: asyncio.Event) -> Script:
    """A prefill engine that has computed the prompt once it may go."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(answer(HANDED))

    return script


def test_vllm_is_told_one_after_the_other() -> None:
    """The client's own bytes stay, odd space and order too; the prefill engine's words go on as they are."""
    body = (
        b'{ "stream" : true, "model":"org/m",\n"messages":[{"role":"user","content":"}\\u007d{"}] , "max_completion_tokens": 64,'
        b'"stream_options":{"include_usage":true},"min_tokens":3,"seed":1e0}\n'
    )
    told = (
        b'{ "stream" : false, "model":"org/m",\n"messages":[{"role":"user","content":"}\\u007d{"}] , "max_completion_tokens": 1,'
        b'"stream_options":null,"min_tokens":0,"seed":1e0,"max_tokens":1,'
        b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}\n'
    )
    stream = b"data: 1\n\ndata: [DONE]\n\n"

    async def scene() -> None:
        decode = saying(STREAM_HEAD + chunked(stream) + b"0\r\n\r\n")
        async with relaying(saying(answer(HANDED)), decode, records=PAIR) as gateway:
            reply = await gateway.http.post("/v1/chat/completions", content=body, headers={**HEADERS, "x-request-id": "mine"})
            assert (reply.status_code, reply.content) == (200, stream)
            [first], [second] = (server.asked for server in gateway.servers)
            assert first.body == told
            assert second.body == body[:-2] + b',"kv_transfer_params":' + PARAMS + b"}\n"
            assert first.headers["x-request-id"] == second.headers["x-request-id"]
            await idle(gateway)
            assert any('"http"' in name for name in gateway.counted("smg_pd_prefill_duration_seconds"))

    run(scene())


@pytest.mark.parametrize(("fields", "rooms"), [({}, 1), ({"n": 3}, 3), ({"prompt": ["a", "b"], "n": 2}, 4), ({"prompt": [[1, 2], [3]]}, 2)])
def test_sglang_is_told_at_once(fields: dict[str, object], rooms: int) -> None:
    body = json.dumps({"model": "org/m", "prompt": "Hi", **fields}, indent=1).encode()
    records = ({"role": "prefill", "bootstrap_port": 8999}, {"role": "decode"})

    async def scene() -> None:
        meet = asyncio.Barrier(2)  # neither answers before both were asked

        async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await meet.wait()
            writer.write(answer(b'{"choices":[]}'))

        async with relaying(script, script, runtime="sglang", records=records) as gateway:
            reply = await gateway.http.post("/v1/completions", content=body, headers=HEADERS)
            assert reply.content == b'{"choices":[]}'
            first, second = (server.asked[0].body for server in gateway.servers)
            assert first == second
            added = first.removeprefix(body[:-1])
            place = json.loads(b"{" + added.removeprefix(b","))
            if rooms == 1:
                place = {name: [value] for name, value in place.items()}
            assert place["bootstrap_host"] == ["127.0.0.1"] * rooms
            assert place["bootstrap_port"] == [8999] * rooms
            assert len(set(place["bootstrap_room"])) == rooms
            assert all(0 <= room < 1 << 63 for room in place["bootstrap_room"])
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize(("said", "told", "port"), [(8999, 9000, 8999), (0, 9000, 9000), (0, 0, None)])
def test_sglang_is_told_the_port_that_the_prefill_engine_names(said: int, told: int, port: int | None) -> None:
    """Unless an operator names another."""
    first = {"role": "prefill", "bootstrap_port": said, "server": ServerInfo(bootstrap_port=told)}

    async def scene() -> None:
        script = saying(answer(b'{"choices":[]}'))
        async with relaying(script, script, runtime="sglang", records=(first, {"role": "decode"})) as gateway:
            await gateway.http.post("/v1/completions", json={"model": "org/m", "prompt": "Hi"})
            assert [json.loads(server.asked[0].body)["bootstrap_port"] for server in gateway.servers] == [port] * 2
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize(("url", "host"), [("http://[fd00::1]:80/v1", "[fd00::1]"), ("https://Gpu1:8000", "gpu1")])
def test_sglang_engines_put_the_port_behind_the_host(url: str, host: str) -> None:
    record = EngineRecord(slot=0, epoch=1, id="e", url=url, bootstrap_port=8998)
    assert json.loads(rendezvous(record, rooms=1)["bootstrap_host"]) == host


def test_too_many_rooms_are_refused() -> None:
    async def scene() -> None:
        async with relaying(hang, hang, runtime="sglang", records=PAIR) as gateway:
            reply = await gateway.http.post("/v1/completions", json={"model": "org/m", "prompt": "Hi", "n": 1 << 30})
            assert reply.status_code == 400
            assert not any(server.asked for server in gateway.servers)
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Hi", "n": 2}),
        ("/v1/completions", {"prompt": "Hi", "n": "2"}),
        ("/v1/completions", {"prompt": "Hi", "n": 2.0}),
        ("/v1/completions", {"prompt": ["Hi", "Ho"]}),
        ("/v1/completions", {"prompt": "Hi", "echo": True}),
        ("/v1/chat/completions", {"messages": [], "prompt_logprobs": 1}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
def test_what_a_vllm_engine_computes_alone(path: str, fields: dict[str, object]) -> None:
    async def scene() -> None:
        async with relaying(hang, saying(answer()), records=PAIR) as gateway:
            assert (await gateway.http.post(path, json={"model": "org/m", **fields})).status_code == 200
            assert json.loads(gateway.servers[1].asked[0].body) == {"model": "org/m", **fields}
            await idle(gateway)

    run(scene())


OWN = '{"do_remote_prefill":true,"remote_host":"10.9.9.9"}'


@pytest.mark.parametrize("name", ["kv_transfer_params", "kv\\u005ftransfer_params"])
@pytest.mark.parametrize(
    ("path", "more", "handed"),
    [
        ("/v1/completions", '"prompt":"Hi"', PARAMS),
        ("/v1/completions", '"prompt":"Hi"', b"null"),
        ("/v1/completions", '"prompt":"Hi","n":2', b"null"),
        ("/v1/responses", '"input":"Hi"', b"null"),
    ],
)
def test_a_clients_own_words_of_caches_reach_neither_engine(path: str, more: str, handed: bytes, name: str) -> None:
    """Twice, too: engines take the last, whatever stands before it."""
    body = f'{{"model":"org/m","{name}":{OWN},{more},"kv_transfer_params":{OWN}}}'.encode()

    async def scene() -> None:
        helps = saying(answer(b'{"kv_transfer_params":%b}' % handed))
        async with relaying(helps, saying(answer()), records=PAIR) as gateway:
            assert (await gateway.http.post(path, content=body, headers=HEADERS)).status_code == 200
            for server in gateway.servers:
                assert not any(b"10.9.9.9" in asked.body for asked in server.asked)
            assert json.loads(gateway.servers[1].asked[0].body)["kv_transfer_params"] == json.loads(handed)
            await idle(gateway)

    run(scene())


def test_what_other_engines_cannot() -> None:
    async def scene() -> None:
        async with relaying(hang, hang, runtime="sglang", records=PAIR) as gateway:
            assert (await gateway.http.post("/v1/responses", json={"model": "org/m", "input": "Hi"})).status_code == 501
        async with relaying(hang, hang, runtime="llamacpp", records=PAIR) as gateway:
            reply = await gateway.http.post("/v1/completions", json={"model": "org/m", "prompt": "Hi"})
            assert (reply.status_code, "apart" in reply.text) == (400, True)
            await idle(gateway)

    run(scene())


async def asking(gateway: Relaying, **fields: object) -> Any:
    return await gateway.http.post("/v1/completions", json={"model": "org/m", "prompt": "Hi", **fields})


@RUNTIMES
def test_what_the_prefill_engine_says_of_the_request_is_passed_on(runtime: str) -> None:
    said = b'{"message": "the prompt is too long"}'

    async def scene() -> None:
        async with relaying(saying(answer(said, status="400 Bad Request")), hang, runtime=runtime, records=PAIR) as gateway:
            reply = await asking(gateway)
            assert (reply.status_code, reply.content) == (400, said)
            await idle(gateway)
            assert [gateway.shm.counts(slot)[:2] for slot in (0, 1)] == [(1, 0), (0, 0)], "the decode engine has not served it"

    run(scene())


def in_turn() -> tuple[Script, Script]:
    """Gives a prefill engine, and a decode engine that answers once that has."""
    helped = asyncio.Event()

    async def helps(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(HANDED))
        helped.set()

    async def decodes(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await helped.wait()
        writer.write(answer())

    return helps, decodes


@RUNTIMES
@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests", ""])
def test_a_prefill_engine_that_fails_is_passed_over(runtime: str, status: str) -> None:
    """And it is the one that is blamed."""

    async def scene() -> None:
        ill = saying(answer(b"{}", status=status)) if status else saying(close=True)
        many = ({"role": "prefill"}, {"role": "prefill"}, {"role": "decode"})
        made = config(routing={"prefill_policy": "passthrough"})
        helps, decodes = in_turn()
        async with relaying(ill, helps, decodes, runtime=runtime, records=many, made=made) as gateway:
            reply = await asking(gateway)
            assert reply.status_code == 200, reply.text
            assert [len(server.asked) > 0 for server in gateway.servers] == [True] * 3
            full = status.startswith("429")
            assert [gateway.shm.counts(slot)[:2] for slot in range(3)] == [(0, not full), (1, 0), (1, 0)], "successes and failures"
            assert bool(gateway.counted("smg_worker_errors_total")) is not full
            await idle(gateway)

    run(scene())


@RUNTIMES
def test_a_prefill_engine_without_another_is_asked_again_after_pauses(runtime: str, caplog: pytest.LogCaptureFixture) -> None:
    """And one request that it does not survive is one failure of it."""
    caplog.set_level("INFO")

    async def scene() -> None:
        scripts = (saying(close=True), hang)
        async with relaying(*scripts, runtime=runtime, records=PAIR) as gateway:
            assert (await asking(gateway)).status_code == 503
            assert len(gateway.servers[0].asked) == 5
            assert len(gateway.counted("smg_worker_retry_backoff_seconds")) == 4
            await idle(gateway)
            assert [Condition.of(gateway.shm.breaker(slot)).count for slot in (0, 1)] == [1, 0]
            assert [gateway.shm.counts(slot)[:2] for slot in (0, 1)] == [(0, 5), (0, 0)]
            assert gateway.shm.take_suspect(0)
            assert not gateway.shm.take_suspect(1)
            again = [record.__dict__["engine"] for record in caplog.records if record.message == "the request is sent again"]
            assert again == [gateway.servers[0].url] * 4

    run(scene())


def test_a_deadline_in_the_pause_for_a_prefill_engine_is_not_the_decode_engines_fault() -> None:
    async def scene() -> None:
        made = config(server={"request_timeout_s": 0.5}, resilience={"retry_initial_backoff_ms": 60_000, "retry_max_backoff_ms": 60_000})
        async with relaying(saying(close=True), hang, records=PAIR, made=made) as gateway:
            assert (await asking(gateway)).status_code == 503
            assert len(gateway.servers[0].asked) == 1
            assert list(gateway.counted("smg_worker_retries_total").values()) == [1]
            await idle(gateway)
            assert [gateway.shm.counts(slot)[:2] for slot in (0, 1)] == [(0, 1), (0, 0)]

    run(scene())


@RUNTIMES
@pytest.mark.parametrize("lost", [0, 2])
def test_a_request_that_waits_at_a_lost_engine_goes_to_another(runtime: str, lost: int) -> None:
    """A part that has said nothing yet, at an engine that does not answer checks any more."""

    async def scene() -> None:
        helps, decodes = in_turn()
        scripts = [helps, helps, decodes, decodes]
        scripts[lost] = hang
        roles = tuple({"role": role} for role in ("prefill", "prefill", "decode", "decode"))
        made = config(routing={"policy": "passthrough"})
        async with relaying(*scripts, runtime=runtime, records=roles, made=made) as gateway:
            asked = asyncio.ensure_future(asking(gateway))
            await until(lambda: gateway.servers[lost].asked)
            gateway.shm.set_engine_state(lost, EngineState.NOT_READY)
            gateway.app.services.relay.tend()
            assert (await asked).status_code == 200
            assert gateway.servers[lost + 1].asked
            await asyncio.wait_for(gateway.servers[lost].left.wait(), 30)
            await idle(gateway)

    run(scene())


def test_a_decode_engine_that_is_lost_while_the_prompt_is_computed_costs_nothing_yet() -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async with relaying(helping(go), saying(answer()), records=PAIR) as gateway:
            asked = asyncio.ensure_future(asking(gateway))
            await until(lambda: gateway.servers[0].asked)
            gateway.shm.set_engine_state(1, EngineState.NOT_READY)
            gateway.app.services.relay.tend()
            go.set()
            assert (await asked).status_code == 200
            assert [len(server.asked) for server in gateway.servers] == [1, 1]
            await idle(gateway)

    run(scene())


def test_a_deadline_while_the_prompt_is_computed_is_the_prefill_engines_fault() -> None:
    async def scene() -> None:
        async with relaying(hang, hang, records=PAIR, made=config(server={"request_timeout_s": 1.0})) as gateway:
            assert (await asking(gateway)).status_code == 504
            await idle(gateway)
            assert [Condition.of(gateway.shm.breaker(slot)).count for slot in (0, 1)] == [1, 0]
            assert not gateway.servers[1].asked

    run(scene())


def test_a_prompt_is_computed_once_where_no_decode_engine_was_asked() -> None:
    async def scene() -> None:
        async with upstream(hang) as gone:
            pass
        roles = ({"role": "prefill"}, {"role": "decode", "url": gone.url}, {"role": "decode"})
        made = config(routing={"decode_policy": "passthrough"})
        async with relaying(saying(answer(HANDED)), hang, saying(answer()), records=roles, made=made) as gateway:
            assert (await asking(gateway)).status_code == 200
            assert [len(server.asked) for server in gateway.servers] == [1, 0, 1]
            assert PARAMS in gateway.servers[2].asked[0].body
            await idle(gateway)

    run(scene())


def test_a_cache_that_a_decode_engine_may_have_fetched_is_not_used_again() -> None:
    """Its blocks may be another prompt's by then."""

    async def scene() -> None:
        roles = ({"role": "prefill"}, {"role": "decode"}, {"role": "decode"})
        made = config(routing={"decode_policy": "passthrough"})
        async with relaying(saying(answer(HANDED)), saying(close=True), saying(answer()), records=roles, made=made) as gateway:
            assert (await asking(gateway)).status_code == 200
            assert len(gateway.servers[0].asked) == 2
            await idle(gateway)

    run(scene())


def test_a_prefill_engine_that_says_nothing_of_its_cache() -> None:
    async def scene() -> None:
        async with relaying(saying(answer(b'{"kv_transfer_params":null}')), saying(answer()), records=PAIR) as gateway:
            assert (await asking(gateway)).status_code == 200
            assert json.loads(gateway.servers[1].asked[0].body) == {"model": "org/m", "prompt": "Hi"}
            await idle(gateway)

    run(scene())


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_one_part_ends_the_other(broken: int, stream: bool) -> None:
    """Known bug B120: the decode engine waits for minutes by itself."""

    async def scene() -> None:
        go = asyncio.Event()

        async def breaks(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            writer.close()

        scripts = (breaks, hang) if broken == 0 else (hang, breaks)
        made = config(resilience={"disable_retries": True})
        async with relaying(*scripts, runtime="sglang", records=PAIR, made=made) as gateway:
            asked = asyncio.ensure_future(asking(gateway, stream=stream))
            await until(lambda: all(server.asked for server in gateway.servers))
            go.set()
            assert (await asked).status_code == 503
            await asyncio.wait_for(gateway.servers[1 - broken].left.wait(), 30)
            await idle(gateway)

    run(scene())


def test_a_prefill_engine_that_is_lost_in_mid_stream_ends_the_stream() -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async def breaks(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            writer.close()

        async def begins(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(STREAM_HEAD + chunked(b"data: 1\n\n"))
            await asyncio.Event().wait()

        async with relaying(breaks, begins, runtime="sglang", records=PAIR) as gateway:
            body = {"model": "org/m", "prompt": "Hi", "stream": True}
            async with gateway.http.stream("POST", "/v1/completions", json=body) as reply:
                text = ""
                async for piece in reply.aiter_text():
                    text += piece
                    go.set()
            assert text.startswith("data: 1\n\n")
            assert "engine_unavailable" in text
            await asyncio.wait_for(gateway.servers[1].left.wait(), 30)
            await idle(gateway)

    run(scene())
