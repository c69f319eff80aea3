"""The whole gateway with simulated engines: what the control process and the data workers make of each other."""

import os
import pathlib
import signal

import httpx
import msgspec
import pytest

from smg.sim.processes import Child, gateway_command, sim_command, wait_http
from tests.server.harness import Gateway, wait_until

CHAT = {"messages": [{"role": "user", "content": "hello"}], "model": ""}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path


def chat(port: int, *, words: int = 1, stream: bool = False) -> httpx.Response:
    body = {**CHAT, "stream": stream, "messages": [{"role": "user", "content": "word " * words}]}
    return httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60, trust_env=False)


def metric(address: str, name: str) -> dict[str, float]:
    """Values of a metric by its labels, as they stand."""
    text = httpx.get(f"http://{address}/metrics", timeout=30, trust_env=False).text
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(name)]
    return {key.removeprefix(name): float(value) for key, _, value in lines}


def metrics_address(child: Child) -> str:
    return child.output().partition("metrics on http://")[2].partition("/metrics")[0]


def test_the_registry_survives_its_process(folder: pathlib.Path) -> None:
    with Child("sim", command=sim_command(protocol="vllm")) as sim:
        url = sim.wait_ready(within_s=60)
        flags = ("--workers", "2", "--state-dir", str(folder))
        with Child("gateway", command=gateway_command(port=0, engines=[url], flags=flags)) as child:
            made = Gateway(child)
            made.wait_listening()
            wait_http(child, url=f"http://127.0.0.1:{made.port}/readiness", within_s=30)
            address = metrics_address(child)
            requests = 'smg_http_requests_total{method="POST",path="/v1/chat/completions"}'

            def asked(times: int) -> None:
                assert chat(made.port).status_code == 200
                wait_until(lambda: metric(address, requests) == {"": times}, what="counts outlive processes")

            asked(1)
            for times, victim in enumerate((*made.named("control"), *made.named("worker")), 2):
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda gone=victim: gone not in made.children() and len(made.children()) == 3, what="it is back")
                asked(times)
            wait_until(lambda: set(metric(address, "smg_worker_requests_active").values()) == {0}, what="nothing under way")
            wait_until(lambda: set(metric(address, "smg_worker_health{").values()) == {1}, what="the engine is ready")
            assert child.stop() == 0


def test_every_line_of_a_json_log_is_json(folder: pathlib.Path) -> None:
    """grpcio writes lines of its own to standard error, for one when an engine stops."""
    with Child("sim", command=sim_command(protocol="sglang")) as sim:
        flags = ("--workers", "1", "--state-dir", str(folder), "--log-json", "--health-check-interval-secs", "0.2")
        with Child("gateway", command=gateway_command(port=0, engines=[sim.wait_ready(within_s=60)], flags=flags)) as child:
            wait_until(lambda: "engine is READY" in child.output(), what="the engine is ready")
            assert sim.stop() == 0
            wait_until(lambda: "engine is NOT_READY" in child.output(), what="it is missed")
            lines = child.output().splitlines()
    assert len(lines) > 3
    assert all(isinstance(msgspec.json.decode(line), dict) for line in lines)


def test_a_reload_takes_engines_away_and_brings_others(folder: pathlib.Path) -> None:
    with Child("one", command=sim_command(protocol="vllm")) as one, Child("two", command=sim_command(protocol="sglang")) as two:
        urls = [child.wait_ready(within_s=60) for child in (one, two)]
        file = folder / "smg.toml"
        file.write_text(f'[engines]\nworker_urls = ["{urls[0]}"]\n')
        flags = ("--workers", "1", "--state-dir", str(folder), "--config", str(file))
        command = [word for word in gateway_command(port=0, engines=[], flags=flags) if word != "--worker-urls"]
        with Child("gateway", command=command) as child:
            made = Gateway(child)
            made.wait_listening()
            wait_http(child, url=f"http://127.0.0.1:{made.port}/readiness", within_s=30)
            file.write_text(f'[engines]\nworker_urls = ["{urls[1]}"]\n')
            made.signal(signal.SIGHUP)
            statuses = []

            def over() -> bool:
                statuses.append(chat(made.port).status_code)
                return "reloaded" in child.output()

            wait_until(over, what="the reload is over")
            assert set(statuses) == {200}
            healthy = f'worker="{urls[1]}"}}'
            wait_until(lambda: metric(metrics_address(child), "smg_worker_health{") == {healthy: 1}, what="the second engine alone")
            one.kill()
            assert chat(made.port).status_code == 200
            assert child.stop() == 0


def test_a_reload_reads_the_file_of_keys_again(folder: pathlib.Path) -> None:
    """The kept key opens all the while; the old one until the reload is over, the new one from then on."""
    file = folder / "keys"
    file.write_text("old\nkept\n")
    flags = ("--workers", "1", "--state-dir", str(folder), "--api-key-file", str(file))
    with Child("gateway", command=gateway_command(port=0, engines=["grpc://127.0.0.1:1"], flags=flags)) as child:
        made = Gateway(child)
        made.wait_listening()

        def opens(key: str) -> bool:
            url, headers = f"http://127.0.0.1:{made.port}/v1/tokenize", {"authorization": f"Bearer {key}"}
            return httpx.post(url, json={"model": "", "prompt": "a"}, headers=headers, timeout=60, trust_env=False).status_code != 401

        assert [opens(key) for key in ("old", "kept", "new")] == [True, True, False]
        file.write_text("new\nkept\n")
        assert opens("old"), "nothing changes without a reload"
        made.signal(signal.SIGHUP)
        kept = []

        def over() -> bool:
            kept.append(opens("kept"))
            return "reloaded" in child.output() and not opens("old")

        wait_until(over, within_s=30, what="the old key is no longer taken")
        assert all(kept)
        assert [opens(key) for key in ("old", "kept", "new")] == [False, True, True]


def test_an_engine_that_dies_is_left_at_once(folder: pathlib.Path) -> None:
    with Child("one", command=sim_command(protocol="vllm")) as one, Child("two", command=sim_command(protocol="vllm")) as two:
        urls = [child.wait_ready(within_s=60) for child in (one, two)]
        flags = ("--workers", "1", "--state-dir", str(folder), "--policy", "round_robin")
        with Child("gateway", command=gateway_command(port=0, engines=urls, flags=flags)) as child:
            made = Gateway(child)
            made.wait_listening()
            address = metrics_address(child)
            wait_until(lambda: set(metric(address, "smg_worker_health{").values()) == {1}, what="both are ready")
            one.kill()
            assert [chat(made.port).status_code for _ in range(4)] == [200] * 4
            gone = f'worker="{urls[0]}"}}'
            wait_until(lambda: metric(address, "smg_worker_health{")[gone] == 0, what="the dead one is not ready")
            assert child.stop() == 0
