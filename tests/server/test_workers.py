"""`/workers` from the request to the control process and back, over its UNIX socket; engines are fake."""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

from smg.api.base import Reply, Request, Services
from smg.api.errors import error_reply
from smg.api.routes import RouteTable
from smg.engine import ModelInfo
from smg.errors import SmgError
from smg.server.admin import AdminServer, call
from smg.server.listen import listen_unix
from smg.server.workers import WorkerCalls
from smg.worker import EngineState, Fleet
from tests.api.fake import services
from tests.worker.fake import FakeEngine, Rig, until

A, B = "grpc://a:1", "grpc://b:1"
ROUTES = RouteTable()


class Client:
    """Asks a data worker's handlers by method and path, as the application does."""

    def __init__(self, made: Services, fleet: Fleet) -> None:
        self.fleet = fleet
        self._services = made

    async def ask(self, method: str, path: str, body: object = None, *, query: str = "") -> tuple[int, dict[str, str], object]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)

        async def read() -> bytes:
            return data

        route, params = ROUTES.find(method, path)
        http = Request(
            method=method, path=path, headers={}, request_id="r", received_s=0, read=read, query=query, client="c", params=params
        )
        try:
            reply = await route.handler(http, self._services)
        except SmgError as error:
            reply = error_reply(error, surface=route.surface)
        assert isinstance(reply, Reply)
        return reply.status, dict(reply.headers), msgspec.json.decode(reply.body)

    async def added(self, **body: object) -> str:
        status, _, answer = await self.ask("POST", "/workers", body)
        assert status == 202, answer
        return answer["worker_id"]

    async def worker(self, number: str) -> dict[str, object]:
        status, _, answer = await self.ask("GET", f"/workers/{number}")
        assert status == 200, answer
        return answer


def play(folder: pathlib.Path, scene: Callable[[Client, Rig], Awaitable[None]], **fields: object) -> None:
    rig = Rig(folder, **fields)

    async def main() -> None:
        fleet = rig.fleet()
        server = AdminServer(WorkerCalls(fleet, rig.registry).methods())
        path = folder / "control.sock"
        with listen_unix(path) as listener:
            await server.start(listener)
            try:
                await scene(Client(services(control=partial(call, path)), fleet), rig)
            finally:
                server.close()
                await fleet.close()

    asyncio.run(main())


def test_a_worker_from_its_post_to_its_end(tmp_path: pathlib.Path) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        rig.up = False
        status, headers, answer = await client.ask("POST", "/workers", {"url": A, "labels": {"zone": "a"}, "api_key": "secret"})
        number = answer["worker_id"]
        assert status == 202
        assert headers["location"] == answer["location"] == f"/workers/{number}"
        assert {key: answer[key] for key in ("status", "url")} == {"status": "accepted", "url": A}
        await until(lambda: client.fleet.watcher(A).seen.is_set())
        worker = await client.worker(number)
        job = worker["job_status"]
        assert (job["job_type"], job["worker_url"], job["status"], job["message"]) == ("AddWorker", A, "processing", "down")
        assert (worker["is_healthy"], worker["status"], worker["source"]) == (False, "pending", "api")
        rig.up = True
        await until(lambda: rig.shm.engine_state(0) == 1)
        worker = await client.worker(number)
        assert "job_status" not in worker
        assert worker == {
            "id": number, "url": A, "worker_type": "regular", "connection_mode": "grpc", "runtime_type": "fake", "priority": 50,
            "cost": 1.0, "is_healthy": True, "load": 0, "status": "ready", "source": "api", "model_id": "m",
            "models": [{"id": "m", "context_length": 100}], "labels": {"zone": "a"},
        }  # fmt: skip
        status, _, answer = await client.ask("DELETE", f"/workers/{number}")
        assert (status, answer["worker_id"]) == (202, number)
        await until(lambda: rig.registry.records() == [])
        status, headers, answer = await client.ask("GET", f"/workers/{number}")
        assert (status, answer["code"], headers["x-smg-error-code"]) == (404, "WORKER_NOT_FOUND", "not_found")

    play(tmp_path, scene, urls=())


def test_whatever_is_not_ready_says_why(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an engine over HTTP that is set aside, and of others that were ready before, nothing was said."""
    answers = asyncio.Event()
    sound = FakeEngine.model_info

    async def model_info(self: FakeEngine) -> ModelInfo:
        await answers.wait()
        return await sound(self)

    monkeypatch.setattr(FakeEngine, "model_info", model_info)

    async def scene(client: Client, rig: Rig) -> None:
        async def said(url: str) -> tuple[object, object]:
            _, _, answer = await client.ask("GET", "/workers")
            worker = next(worker for worker in answer["workers"] if worker["url"] == url)
            return worker["status"], worker.get("job_status", {}).get("message")

        await client.added(url="http://c:1")
        assert await said("http://c:1") == ("pending", "its first checks have not ended")
        answers.set()
        await until(lambda: rig.shm.engine_state(0) == EngineState.READY)
        assert await said("http://c:1") == ("ready", None)
        await client.added(url=B)
        await until(lambda: [rig.shm.engine_state(slot) for slot in (0, 1)] == [EngineState.NOT_READY, EngineState.READY])
        status, message = await said("http://c:1")
        assert (status, "must be of one kind" in message) == ("not_ready", True)
        rig.up = False
        client.fleet.watcher(B).hurry()
        await until(lambda: rig.shm.engine_state(1) == EngineState.NOT_READY)
        assert await said(B) == ("not_ready", "down")

    play(tmp_path, scene, urls=())


def test_the_list(tmp_path: pathlib.Path) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        await client.added(url=B, worker_type="decode", models=[{"id": "n", "aliases": ["short"], "tokenizer_path": "/t"}])
        await until(lambda: all(rig.shm.engine_state(slot) == 1 for slot in (0, 1)))
        _, _, answer = await client.ask("GET", "/workers")
        assert [worker["url"] for worker in answer["workers"]] == [A, B]
        assert (answer["total"], answer["stats"]) == (2, {"prefill_count": 0, "decode_count": 1, "regular_count": 1})
        assert answer["workers"][1]["labels"] == {"tokenizer_path": "/t"}
        for query, found in (("model=n", [B]), ("model=short", [B]), ("model=m", [A, B]), ("model=x", []), ("model=", [A, B])):
            _, _, answer = await client.ask("GET", "/workers", query=query)
            assert [worker["url"] for worker in answer["workers"]] == found

    play(tmp_path, scene)


def test_what_get_says_can_be_put_and_patched(tmp_path: pathlib.Path) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        _, _, answer = await client.ask("GET", "/workers")
        [worker] = answer["workers"]
        path = f"/workers/{worker['id']}"
        runtime = {"runtime_type": "vllm", "models": []}
        status, _, answer = await client.ask("PUT", path, worker | runtime | {"priority": 3, "health": {"check_interval_secs": 7}})
        assert (status, answer["worker_id"]) == (202, worker["id"])
        status, _, _ = await client.ask("PATCH", path, {"cost": 2.5, "labels": {"a": "b"}, "health": {"timeout_secs": 1.5}})
        assert status == 202
        after = await client.worker(worker["id"])
        assert (after["priority"], after["cost"], after["labels"], after["source"]) == (3, 2.5, {"a": "b"}, "api")
        assert after["health"] == {"check_interval_secs": 7.0, "timeout_secs": 1.5}
        status, _, answer = await client.ask("PATCH", path, {"labels": {"policy": "nonsense"}})
        assert (status, answer["error"]) == (400, "policy: 'nonsense' is not known")
        assert (await client.ask("PATCH", path, {"labels": {"policy": "", "reasoning_parser": "none", "tool_parser": "qwen"}}))[0] == 202
        status, _, answer = await client.ask("PUT", path, {"url": B})
        assert (status, answer["code"]) == (400, "BAD_REQUEST")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "url is required"),
        ({"url": "a:1"}, "has no scheme"),
        ({"url": "ftp://a:1"}, "unknown scheme"),
        ({"url": "grpc://a"}, "has no port"),
        ({"url": "grpc://key@a:1"}, "not supported"),
        ({"url": B, "worker_type": "encode"}, "encode workers"),
        ({"url": B, "worker_type": "x"}, "unknown value"),
        ({"url": B, "runtime_type": "x"}, "not one of"),
        ({"url": B, "priority": "high"}, "must be an integer"),
        ({"url": B, "cost": -1}, "not negative"),
        ({"url": B, "bootstrap_port": 70000}, "0..65535"),
        ({"url": B, "labels": {"a": 1}}, "must be a string"),
        ({"url": B, "labels": {str(n): "" for n in range(65)}}, "at most 64"),
        ({"url": B, "labels": {"a": "x" * 3000}}, "longer than"),
        ({"url": B, "labels": {"policy": "least_laod"}}, "policy: 'least_laod' is not known (did you mean least_load?)"),
        ({"url": B, "labels": {"tool_parser": "x" * 2000}}, "tool_parser: 'xxx"),
        ({"url": B, "models": [{"id": "m", "reasoning_parser": "qwen_3"}]}, "reasoning_parser: 'qwen_3' is not known"),
        ({"url": B, "api_key": "a\nb"}, "a header cannot carry"),
        ({"url": B, "models": [{"id": "a"}, {"id": "b"}]}, "one model"),
        ({"url": B, "health": {"timeout_secs": 0}}, "above 0"),
        ({"url": B, "http_pool": {"timeout_secs": 1}}, "'http_pool' is not supported"),
        ({"url": B, "lables": {"a": "b"}}, "'lables' is not supported"),
        ({"url": B, "health": {"drain_settle_secs": 60}}, "'health.drain_settle_secs' is not supported"),
        ({"url": B, "models": [{"id": "m", "chat_template": "x"}]}, "chat_template' is not supported"),
        (b"[1]", "must be an object"),
        (b"{", "not valid JSON"),
        (b'{"url": "grpc://\xff:1"}', "not UTF-8"),
        (b'{"url": "grpc://b:1", "priority": 1e400}', "out of range"),
        (b'{"url": "grpc://b:1", "labels": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bodies_that_are_refused(tmp_path: pathlib.Path, body: object, says: str) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        status, _, answer = await client.ask("POST", "/workers", body)
        assert (status, answer["code"]) == (400, "BAD_REQUEST")
        assert says in answer["error"]
        assert [record.url for record in rig.registry.records()] == [A]

    play(tmp_path, scene)


def test_what_is_there_already_and_what_is_not(tmp_path: pathlib.Path) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        status, _, answer = await client.ask("POST", "/workers", {"url": A})
        assert (status, answer["code"]) == (409, "WORKER_ALREADY_EXISTS")
        assert rig.registry.records()[0].id in answer["error"]
        unknown = "00000000-0000-0000-0000-000000000000"
        for method, body in (("GET", None), ("DELETE", None), ("PUT", {"url": A}), ("PATCH", {"cost": 1})):
            assert (await client.ask(method, f"/workers/{unknown}", body))[0] == 404
            status, _, answer = await client.ask(method, "/workers/7", body)
            assert (status, answer["code"]) == (400, "BAD_REQUEST")

    play(tmp_path, scene)


@pytest.mark.parametrize(("method", "body"), [("PATCH", {"labels": {"a": "b"}, "api_key": "k"}), ("PUT", {"url": B})])
def test_a_worker_that_is_being_removed_is_not_changed(tmp_path: pathlib.Path, method: str, body: object) -> None:
    """What was changed would stay for whoever names the address next, and PUT would undo the DELETE."""

    async def scene(client: Client, rig: Rig) -> None:
        number = await client.added(url=B)
        record = rig.registry.get(B)
        assert record is not None
        rig.shm.acquire(1, record.slot, record.epoch, 5)
        assert (await client.ask("DELETE", f"/workers/{number}"))[0] == 202
        status, _, answer = await client.ask(method, f"/workers/{number}", body)
        assert (status, answer["code"]) == (404, "WORKER_NOT_FOUND")
        assert "being removed" in answer["error"]
        rig.shm.release(1, record.slot, record.epoch, 5)
        await until(lambda: rig.registry.get(B) is None)
        assert rig.registry.edits == {}

    play(tmp_path, scene)


def test_a_worker_that_is_being_removed_is_taken_back(tmp_path: pathlib.Path) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        number = await client.added(url=B)
        record = rig.registry.get(B)
        assert record is not None
        rig.shm.acquire(1, record.slot, record.epoch, 5)
        await client.ask("DELETE", f"/workers/{number}")
        assert (await client.worker(number))["status"] == "draining"
        assert await client.added(url=B, priority=7) == number
        await until(lambda: rig.shm.engine_state(record.slot) == EngineState.READY)
        worker = await client.worker(number)
        assert (worker["priority"], worker["load"]) == (7, 1), "what it had under way goes on there"

    play(tmp_path, scene, urls=())


def test_without_a_control_process_it_is_tried_later(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        client = Client(services(control=partial(call, tmp_path / "none.sock")), None)  # type: ignore[arg-type]
        status, headers, answer = await client.ask("GET", "/workers")
        assert (status, headers["retry-after"], answer["code"]) == (503, "1", "CONTROL_UNAVAILABLE")

    asyncio.run(main())


def test_engines_are_not_added_where_they_may_not_be(tmp_path: pathlib.Path) -> None:
    async def scene(client: Client, rig: Rig) -> None:
        status, headers, answer = await client.ask("POST", "/workers", {"url": "http://169.254.169.254"})
        assert (status, answer["code"], headers["x-smg-error-code"]) == (403, "FORBIDDEN", "forbidden")
        assert rig.registry.get("http://169.254.169.254") is None

    play(tmp_path, scene)
