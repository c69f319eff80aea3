"""Engines that a running gateway finds: in a file that changes, in a Kubernetes of our own."""

import asyncio
import contextlib
import pathlib
import threading
from collections.abc import Iterator

from smg.sim.processes import Child, free_port, gateway_command, sim_command, wait_http
from tests.e2e.conftest import SIM_FLAGS
from tests.e2e.fleet import READY_WITHIN_S, TAG, Fleet, Gateway, SimEngine, wait_until
from tests.e2e.test_workers import ask
from tests.worker.discovery.apiserver import FakeApiServer, pod


def engine(own_fleet: Fleet, *flags: str) -> SimEngine:
    command = sim_command(protocol="vllm", flags=("--status-port", "0", *SIM_FLAGS, *flags))
    return SimEngine(own_fleet._stack.enter_context(Child("found", command=command, environment={TAG: own_fleet.tag})))


def launch(own_fleet: Fleet, *flags: str) -> Gateway:
    """A gateway that knows no engine at its start."""
    port = free_port()
    command = gateway_command(port=port, engines=[], flags=("--workers", "1", *flags))
    child = own_fleet._stack.enter_context(Child("gateway", command=command, environment={TAG: own_fleet.tag}))
    gateway = Gateway(child, base_url=f"http://127.0.0.1:{port}", engines=[])
    wait_http(child, url=f"{gateway.base_url}/health", within_s=READY_WITHIN_S)
    own_fleet._gateways.append(gateway)
    return gateway


def serves(gateway: Gateway, model: str) -> bool:
    with gateway.http() as http:
        return ask(http, model).status_code == 200


def listed(gateway: Gateway) -> dict[str, str]:
    """Addresses with who named them."""
    with gateway.http() as http:
        return {worker["url"]: worker["source"] for worker in http.get("/workers").json()["workers"]}


def entry(url: str) -> str:
    return f'[[workers]]\nurl = "{url}"\n'


def test_a_file_that_changes(own_fleet: Fleet, tmp_path: pathlib.Path) -> None:
    first, second = engine(own_fleet), engine(own_fleet, "--served-name", "other-model")
    path = tmp_path / "workers.toml"
    path.write_text(entry(first.url))
    gateway = launch(own_fleet, "--workers-file", str(path))
    wait_until(lambda: serves(gateway, "sim-model"), what="the first engine serves")
    path.write_text(entry(first.url) + entry(second.url))
    wait_until(lambda: serves(gateway, "other-model"), what="the second engine serves")
    path.write_text(entry(second.url) + "[[")
    wait_until(lambda: "is not taken" in gateway.child.output(), what="the broken file is told of")
    assert listed(gateway) == {first.url: "file", second.url: "file"}
    path.write_text(entry(second.url))
    wait_until(lambda: listed(gateway) == {second.url: "file"}, what="the first engine is gone")
    assert serves(gateway, "other-model")


@contextlib.contextmanager
def api_server() -> Iterator[tuple[FakeApiServer, asyncio.AbstractEventLoop]]:
    """An API server on an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = FakeApiServer()

    def run(coroutine) -> None:  # type: ignore[no-untyped-def]
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    run(server.start())
    try:
        yield server, loop
    finally:
        run(server.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_pods(own_fleet: Fleet, tmp_path: pathlib.Path) -> None:
    sim = engine(own_fleet)
    port = sim.url.rpartition(":")[2]
    (tmp_path / "token").write_text("t")
    with api_server() as (server, loop):
        flags = ("--service-discovery", "--selector", "app=engine", "--service-discovery-port", port, "--model-id-from", "namespace")
        gateway = launch(own_fleet, *flags, "--kubernetes-api", server.url, "--kubernetes-account-dir", str(tmp_path))
        asyncio.run_coroutine_threadsafe(server.put(pod("a", "127.0.0.1")), loop).result(30)
        wait_until(lambda: serves(gateway, "gpu"), what="the pod serves")
        assert listed(gateway) == {sim.url: "kubernetes"}
        asyncio.run_coroutine_threadsafe(server.put(pod("a", "127.0.0.1", deletionTimestamp="2026-11-29T21:00:00Z")), loop).result(30)
        wait_until(lambda: listed(gateway) == {}, what="the pod that ends is let go")
