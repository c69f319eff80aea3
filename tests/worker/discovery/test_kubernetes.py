"""Pods found, followed and lost, against an API server of our own."""

import asyncio
import pathlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace

import msgspec
import pytest

from smg.config.tree import Discovery
from smg.worker import EngineSpec
from smg.worker.discovery import kubernetes
from smg.worker.discovery.apiserver import ApiFailed, ApiServer
from smg.worker.discovery.kubernetes import Pods
from smg.worker.discovery.pods import Pod, engines_in
from tests.engine.certificates import make_certificates
from tests.worker.discovery.apiserver import FakeApiServer, pod
from tests.worker.fake import until

UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
SETTINGS = Discovery(service_discovery=True, selector=("app=engine",), service_discovery_port=50051)


class Heard:
    """What the watch told."""

    def __init__(self) -> None:
        self.specs: list[EngineSpec] | None = None
        self.failures = 0

    def take(self, specs: list[EngineSpec]) -> None:
        self.specs = specs

    def fail(self) -> None:
        self.failures += 1

    def hosts(self) -> list[str]:
        return sorted(spec.url.removeprefix("grpc://").rpartition(":")[0] for spec in self.specs or ())


Scene = Callable[[FakeApiServer, Heard], Awaitable[None]]


def play(
    scene: Scene, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, settings: Discovery = SETTINGS, page: int = 500, up: bool = True
) -> None:
    for name, value in (("FIRST_PAUSE_S", 0.01), ("LONGEST_PAUSE_S", 0.05), ("GATHER_S", 0.001), ("SHORT_S", 0.0)):
        monkeypatch.setattr(kubernetes, name, value)
    (folder / "token").write_text("t1\n")

    async def main() -> None:
        server, heard = FakeApiServer(page=page), Heard()
        await server.start()
        if not up:
            server.fail = lambda query: 500
        api = ApiServer(server.url, account=str(folder))
        task = asyncio.create_task(Pods(settings, server=api, found=heard.take, failed=heard.fail).run())
        try:
            async with asyncio.timeout(60):
                await scene(server, heard)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.close()

    asyncio.run(main())


def test_pods_come_change_and_go(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await until(lambda: heard.specs == [])
        await server.put(pod("a", "10.0.0.1"), pod("x", "10.0.0.9", labels={"app": "other"}))
        await until(lambda: heard.hosts() == ["10.0.0.1"])
        assert heard.specs == [
            EngineSpec(
                url="grpc://10.0.0.1:50051",
                source="kubernetes",
                labels=(("smg.ai/namespace", "gpu"), ("smg.ai/pod-name", "a"), ("smg.ai/pod-uid", "uid-a")),
            )
        ]
        await server.put(pod("b", "10.0.0.2", ready=False))
        await server.put(pod("b", "10.0.0.2"))
        await until(lambda: heard.hosts() == ["10.0.0.1", "10.0.0.2"])
        await server.put(pod("a", "10.0.0.1", deletionTimestamp="2026-11-29T21:00:00Z"))
        await until(lambda: heard.hosts() == ["10.0.0.2"])
        await server.delete("a")
        await server.delete("b")
        await until(lambda: heard.specs == [])
        assert server.paths[0] == "/api/v1/pods"
        assert len([query for query in server.asked if "watch" not in query]) == 1
        assert heard.failures == 0

    play(scene, tmp_path, monkeypatch)


def test_a_watch_that_ends_goes_on_where_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await server.put(pod("a", "10.0.0.1"))
        await until(lambda: heard.hosts() == ["10.0.0.1"])
        await server.bookmark()
        await server.put(pod("b", "10.0.0.2"))
        await until(lambda: heard.hosts() == ["10.0.0.1", "10.0.0.2"])
        place = server.pods["b"]["metadata"]["resourceVersion"]  # type: ignore[index]
        await server.cut()
        await until(lambda: server.asked[-1].get("resourceVersion") == place)
        await server.put(pod("c", "10.0.0.3"))
        await until(lambda: len(heard.hosts()) == 3)
        assert len([query for query in server.asked if "watch" not in query]) == 1

    play(scene, tmp_path, monkeypatch)


def test_a_bookmark_moves_the_place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await until(lambda: server.watching == 1)
        await server.bookmark()
        await server.bookmark()
        server.forgotten = 102  # all before the second bookmark
        await until(lambda: server.watching == 1)
        await server.cut()  # what comes before it is sent first
        await until(lambda: server.asked[-1].get("resourceVersion") == "102")
        assert len([query for query in server.asked if "watch" not in query]) == 1
        assert server.asked[-1]["allowWatchBookmarks"] == "true"

    play(scene, tmp_path, monkeypatch)


@pytest.mark.parametrize("how", ["event", "status"])
def test_a_place_that_is_forgotten_is_listed_anew(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await server.put(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
        await until(lambda: len(heard.hosts()) == 2)
        await until(lambda: server.watching == 1)
        del server.pods["a"]  # its end was told while nobody listened
        server.pods["c"] = pod("c", "10.0.0.3")
        if how == "event":
            await server.error(410)
        else:
            server.forgotten = 10_000
            await server.cut()
            await until(lambda: heard.failures > 0)
            server.forgotten = 0
        await until(lambda: heard.hosts() == ["10.0.0.2", "10.0.0.3"])

    play(scene, tmp_path, monkeypatch)


def test_a_watch_that_fails_is_listed_anew(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was restored from a backup says "Too large resource version" (504), and not 410, to a place that it never had."""

    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await server.put(pod("a", "10.0.0.1"))
        await until(lambda: heard.hosts() == ["10.0.0.1"])
        await until(lambda: server.watching == 1)
        server.pods = {"b": pod("b", "10.0.0.2")}
        await server.error(504)
        await until(lambda: heard.hosts() == ["10.0.0.2"])

    play(scene, tmp_path, monkeypatch)


@pytest.mark.parametrize("list_s", [0.0, 10.0])
def test_a_server_that_forgets_each_place_is_not_asked_without_end(list_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its lists take: reading them all the time is what it must be spared."""
    now_s = 0.0
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def slept(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def forgetting(self: ApiServer, path: str, query: object, *, silence_s: float) -> AsyncGenerator[bytes, None]:
        yield b'{"type": "ERROR", "object": {"code": 410}}'

    async def listed(self: ApiServer, path: str, query: object, *, timeout_s: float) -> bytes:
        nonlocal now_s
        now_s += list_s
        lists.append(1)
        return b'{"metadata": {"resourceVersion": "1"}}'

    lists: list[int] = []
    monkeypatch.setattr(ApiServer, "lines", forgetting)
    monkeypatch.setattr(ApiServer, "get", listed)
    monkeypatch.setattr(kubernetes.asyncio, "sleep", slept)
    monkeypatch.setattr(kubernetes, "time", SimpleNamespace(monotonic=lambda: now_s))

    async def main() -> None:
        heard = Heard()
        task = asyncio.create_task(Pods(SETTINGS, server=ApiServer("", account=""), found=heard.take, failed=heard.fail).run())
        while len(lists) < 5:
            await sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pauses.count(kubernetes.FIRST_PAUSE_S) >= len(lists) - 1

    asyncio.run(main())


@pytest.mark.parametrize("where", ["list", "watch"])
def test_an_answer_that_is_nested_without_end_is_a_failure(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not looked at is read all the same, as deep as it goes."""
    deep = b"[" * 100_000 + b"]" * 100_000

    async def watched(self: ApiServer, path: str, query: object, *, silence_s: float) -> AsyncGenerator[bytes, None]:
        yield b'{"type": "ADDED", "object": {"spec": %b}}' % deep

    async def listed(self: ApiServer, path: str, query: object, *, timeout_s: float) -> bytes:
        return b'{"metadata": {"resourceVersion": "1"}, "more": %b}' % (deep if where == "list" else b"1")

    monkeypatch.setattr(ApiServer, "lines", watched)
    monkeypatch.setattr(ApiServer, "get", listed)
    monkeypatch.setattr(kubernetes, "FIRST_PAUSE_S", 0.001)

    async def main() -> None:
        heard = Heard()
        task = asyncio.create_task(Pods(SETTINGS, server=ApiServer("", account=""), found=heard.take, failed=heard.fail).run())
        await until(lambda: heard.failures >= 3 or task.done())
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_server_that_fails_changes_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await until(lambda: heard.failures >= 3)
        assert heard.specs is None  # nothing is known, which is not the same as nothing there
        await server.put(pod("a", "10.0.0.1"))
        server.fail = lambda query: None
        await until(lambda: heard.hosts() == ["10.0.0.1"])
        failures = heard.failures
        await until(lambda: server.watching == 1)
        server.fail = lambda query: 403
        await server.error(500)
        await until(lambda: heard.failures >= failures + 3)
        assert heard.hosts() == ["10.0.0.1"]
        (tmp_path / "token").write_text("t2")
        server.fail = lambda query: None
        await server.put(pod("b", "10.0.0.2"))
        await until(lambda: len(heard.hosts()) == 2)
        assert (server.tokens[0], server.tokens[-1]) == ("Bearer t1", "Bearer t2")

    play(scene, tmp_path, monkeypatch, up=False)


def test_long_lists_come_in_pages(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await until(lambda: heard.specs == [])
        for number in range(25):
            server.pods[f"p{number}"] = pod(f"p{number}", f"10.0.1.{number}")
        await until(lambda: server.watching == 1)
        await server.error(410)
        await until(lambda: len(heard.hosts()) == 25)
        assert [query["continue"] for query in server.asked if "continue" in query] == ["10", "20"]

    play(scene, tmp_path, monkeypatch, page=10)


def test_roles_come_from_selectors_and_one_namespace_is_asked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Discovery(
        service_discovery=True,
        selector=("app=engine",),
        prefill_selector=("app=engine", "role=prefill"),
        decode_selector=("role=decode",),
        service_discovery_namespace="gpu",
    )

    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await server.put(
            pod("a", "10.0.0.1"),
            pod("b", "10.0.0.2", labels={"app": "engine", "role": "prefill"}, annotations={"sglang.ai/bootstrap-port": "8998"}),
            pod("c", "10.0.0.3", labels={"role": "decode"}),
        )
        await until(lambda: len(heard.hosts()) == 3)
        assert {spec.url: (spec.role, spec.bootstrap_port) for spec in heard.specs or ()} == {
            "grpc://10.0.0.1:80": ("regular", 0),
            "grpc://10.0.0.2:80": ("prefill", 8998),
            "grpc://10.0.0.3:80": ("decode", 0),
        }
        assert set(server.paths) == {"/api/v1/namespaces/gpu/pods"}

    play(scene, tmp_path, monkeypatch, settings=settings)


def found(made: dict[str, object], **settings: object) -> list[EngineSpec]:
    return engines_in(msgspec.convert(made, Pod), role="prefill", settings=msgspec.structs.replace(SETTINGS, **settings))


def test_ports_of_a_pod() -> None:
    annotations = {"smg.ai/worker-ports": "8000, 8001,8002", "sglang.ai/bootstrap-port": "9000,9001"}
    specs = found(pod("a", "fd00::1", annotations=annotations))
    assert [(spec.url, spec.bootstrap_port) for spec in specs] == [
        ("grpc://[fd00::1]:8000", 9000),
        ("grpc://[fd00::1]:8001", 9001),
        ("grpc://[fd00::1]:8002", 0),
    ]


@pytest.mark.parametrize("ports", ["x", "0", "70000", "8000;8001", "1" * 5000, ",".join(["80"] * 65), "٣"])
def test_a_pod_with_strange_ports_is_left_out(ports: str) -> None:
    assert found(pod("a", "10.0.0.1", annotations={"smg.ai/worker-ports": ports})) == []


@pytest.mark.parametrize("address", ["", "evil.example/x?", "10.0.0.1@b"])
def test_a_pod_with_a_strange_address_is_left_out(address: str) -> None:
    assert found(pod("a", address)) == []


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "Unknown", ""])
def test_a_pod_that_does_not_run_is_left_out(phase: str) -> None:
    made = pod("a", "10.0.0.1")
    made["status"]["phase"] = phase  # type: ignore[index]
    assert found(made) == []


def test_what_is_wrong_with_a_pod_is_told_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(server: FakeApiServer, heard: Heard) -> None:
        await server.put(pod("a", "10.0.0.1", annotations={"smg.ai/worker-ports": "none"}))
        for number in range(2, 7):
            await server.put(pod(f"p{number}", f"10.0.0.{number}"))
            await until(lambda last=number: heard.hosts()[-1:] == [f"10.0.0.{last}"])  # type: ignore[misc]

    play(scene, tmp_path, monkeypatch)
    assert caplog.text.count("a pod is left out") == 1


def test_who_names_the_model() -> None:
    one = pod("a", "10.0.0.1", labels={"model": "from-label"}, annotations={"model": "from-annotation"})
    names = {"": "", "namespace": "gpu", "label:model": "from-label", "annotation:model": "from-annotation", "label:none": ""}
    for source, name in names.items():
        assert found(one, model_id_from=source)[0].served_as == name


def test_outside_of_a_cluster(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        with pytest.raises(ApiFailed, match="no pod of a cluster"):
            await ApiServer("", account=str(tmp_path), environment={}).get("/x", {}, timeout_s=1)
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
        with pytest.raises(ApiFailed, match="no connection"):
            await ApiServer("", account=str(tmp_path), environment=environment).get("/x", {}, timeout_s=1)

    asyncio.run(main())


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n\r\n", UPGRADE, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"])
def test_answers_that_are_none(tmp_path: pathlib.Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ApiFailed):
            await ApiServer(f"http://127.0.0.1:{port}", account=str(tmp_path)).get("/x", {}, timeout_s=30)
        server.close()

    asyncio.run(main())


def test_the_server_must_be_one_that_the_account_s_authority_vouches_for(tmp_path: pathlib.Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server.pem", made / "server.key")

    async def main() -> None:
        server = FakeApiServer(context=context)
        await server.start()
        api = ApiServer(server.url.replace("127.0.0.1", "localhost"), account=str(tmp_path))
        query = {"labelSelector": "app=engine"}
        with pytest.raises(ApiFailed, match="certificate"):
            await api.get("/api/v1/pods", query, timeout_s=30)
        (tmp_path / "ca.crt").write_bytes((made / "ca.pem").read_bytes())
        assert b"PodList" in await api.get("/api/v1/pods", query, timeout_s=30)
        await server.close()

    asyncio.run(main())


@pytest.mark.parametrize("silent", ["role=prefill", "role=decode", "app=engine"])
def test_nothing_is_told_before_every_selectors_first_list(silent: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else engines of a selector that is late would be taken for gone, and drained."""
    settings = msgspec.structs.replace(SETTINGS, prefill_selector=("role=prefill",), decode_selector=("role=decode",))

    async def scene(server: FakeApiServer, heard: Heard) -> None:
        server.fail = lambda query: 500 if query["labelSelector"] == silent else None
        await until(lambda: heard.failures >= 3)
        for number, labels in enumerate(({"role": "prefill"}, {"role": "decode"}, {"app": "engine"})):
            await server.put(pod(f"p{number}", f"10.0.0.{number + 1}", labels=labels))
        failures = heard.failures
        await until(lambda: heard.failures >= failures + 3)
        assert heard.specs is None
        server.fail = lambda query: None
        await until(lambda: heard.specs is not None)
        await until(lambda: heard.hosts() == ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
        assert sorted(spec.role for spec in heard.specs or ()) == ["decode", "prefill", "regular"]

    play(scene, tmp_path, monkeypatch, settings=settings, up=False)
