"""What `smg doctor` says of KV events and of systemd's unit: with and without a gateway that runs, with a systemd of our own making."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from smg.cli import main
from smg.commands.diagnosis import unit
from smg.commands.diagnosis.events import events_told, followed
from smg.commands.diagnosis.finding import Finding
from smg.config import Config
from smg.config.files import DEFAULT_FILE
from smg.config.tree import Metrics, Routing, Server
from smg.sim.processes import Child, free_port, gateway_command, sim_command, wait_http
from tests.e2e.fleet import wait_until

URL = "grpc://gpu1:50051"
BY_CACHES = Config(routing=Routing(policy="cache_aware"))
QUIET = ("--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1")


def events_of(capsys: pytest.CaptureFixture[str], url: str, *flags: str, metrics: int = 0) -> dict[str, str]:
    """The finding about the KV events of an engine."""
    main(["doctor", "--json", *QUIET, "--prometheus-port", str(metrics), "--worker-urls", url, *flags])
    [finding] = [finding for finding in json.loads(capsys.readouterr().out) if finding["subject"] == f"KV events of {url}"]
    return dict(finding)


@contextlib.contextmanager
def engine(protocol: str, *flags: str) -> Iterator[str]:
    """The address of a simulated engine."""
    with Child("engine", command=sim_command(protocol=protocol, flags=flags)) as child:
        yield child.wait_ready(within_s=30)


def test_an_engine_that_has_events(capsys: pytest.CaptureFixture[str]) -> None:
    with engine("vllm") as url:
        finding = events_of(capsys, url)
    assert finding["state"] == "good"
    assert "takes the subscription" in finding["seen"] or "flow" in finding["seen"]


def test_an_engine_that_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with engine("vllm", "--no-kv-events") as url:
        plain, by_caches = (events_of(capsys, url, "--policy", policy) for policy in ("round_robin", "cache_aware"))
    assert (plain["state"], by_caches["state"]) == ("good", "warning")
    assert "--kv-events-config" in by_caches["advice"]


def test_a_protocol_that_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be done about it."""
    with engine("mlx") as url:
        assert events_of(capsys, url, "--policy", "cache_aware")["state"] == "good"
    assert events_told(URL, {"smg_kv_events_live": {URL: 0.0}}, BY_CACHES, possible=False).state == "good"


def test_a_running_gateway_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    port, metrics = free_port(), free_port()
    with engine("vllm") as url, engine("vllm") as other:
        command = gateway_command(port=port, engines=[url], flags=["--workers", "1", "--prometheus-port", str(metrics)])
        with Child("gateway", command=command) as child:
            wait_http(child, url=f"http://127.0.0.1:{port}/readiness", within_s=30)
            wait_until(lambda: "smg_kv_events_live" in (told(metrics) or {}), within_s=30, what="the events are followed")
            known, unknown = events_of(capsys, url, metrics=metrics), events_of(capsys, other, metrics=metrics)
    assert known["state"] == "good"
    assert known["seen"].startswith("the running gateway")
    assert unknown["state"] == "warning"
    assert "systemctl reload smg" in unknown["advice"]


def told(port: int, host: str = "127.0.0.1") -> dict[str, dict[str, float]] | None:
    return followed(Config(metrics=Metrics(prometheus_host=host, prometheus_port=port)))


@pytest.mark.parametrize(
    ("seen", "state", "words"),
    [
        ({"live": 1.0, "lag_seconds": 0.1}, "good", "follows them"),
        ({"live": 1.0, "lag_seconds": 42.0}, "warning", "42 s late"),
        ({"live": 0.0, "stale_seconds": 3.0}, "good", "just asked"),
        ({"live": 0.0, "stale_seconds": 90.0}, "warning", "not had them for 90 s"),
        ({"live": 0.0}, "warning", "has none"),
        ({}, "warning", "does not follow"),
    ],
)
def test_what_the_gateway_says_is_judged(seen: dict[str, float], state: str, words: str) -> None:
    finding = events_told(URL, {f"smg_kv_events_{name}": {URL: value} for name, value in seen.items()}, BY_CACHES)
    assert finding.state == state
    assert words in finding.seen
    assert bool(finding.advice) == (state == "warning")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>" + b"a" * 100_000)

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


def test_another_program_at_the_metrics_port_is_no_gateway() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert told(server.server_port) is None
        server.shutdown()
        thread.join()
    assert told(free_port(), host="0.0.0.0") is None


def units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: str, *, file: Path = DEFAULT_FILE, grace_s: float = 180) -> list[Finding]:
    """What is said of a unit of which systemctl shows this; the file keeps what it was asked."""
    program = tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat << END\n{shown}\nEND\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return list(unit.look_at_unit(Config(server=Server(shutdown_grace_period_s=grace_s)), files=[file]))


@pytest.mark.parametrize(
    ("span", "grace_s", "state"),
    [
        ("3min 20s", 180, "good"),
        ("1min 30s", 180, "warning"),
        ("1min 30s", 60, "good"),
        ("3min 500ms", 180, "warning"),
        ("1h", 3595, "warning"),
        ("infinity", 1e6, "good"),
    ],
)
def test_time_to_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, span: str, grace_s: float, state: str) -> None:
    [finding] = units(monkeypatch, tmp_path, f"LoadState=loaded\nTimeoutStopUSec={span}\nNeedDaemonReload=no", grace_s=grace_s)
    assert finding.state == state, finding
    assert ("TimeoutStopSec=" in finding.advice) == (state == "warning")
    assert "smg.service" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("before", [None, "/opt/lib"])
def test_systemctl_gets_its_own_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None) -> None:
    """The frozen program's are another OpenSSL than that of Debian 13, with which its systemctl does not start."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "frozen"))
    if before is not None:
        monkeypatch.setenv("LD_LIBRARY_PATH_ORIG", before)
    units(monkeypatch, tmp_path, f"$(echo $LD_LIBRARY_PATH > {tmp_path}/libraries)")
    assert (tmp_path / "libraries").read_text().strip() == (before or "")


def test_unit_of_an_instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = Path("/etc/smg/instances/two/smg.toml")
    [stop, changed] = units(monkeypatch, tmp_path, "LoadState=loaded\nTimeoutStopUSec=1s\nNeedDaemonReload=yes", file=file)
    assert "systemctl edit smg@two.service" in stop.advice
    assert changed.advice == "systemctl daemon-reload"


@pytest.mark.parametrize("shown", ["", "System has not been booted with systemd", "LoadState=not-found\nTimeoutStopUSec=1s"])
def test_no_such_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: str) -> None:
    assert units(monkeypatch, tmp_path, shown) == []


def test_settings_of_no_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert units(monkeypatch, tmp_path, "LoadState=loaded\nTimeoutStopUSec=1s", file=tmp_path / "smg.toml") == []
    assert not (tmp_path / "asked").exists()


def test_advice_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who does as it says hears no more of it."""
    [finding] = units(monkeypatch, tmp_path, "LoadState=loaded\nTimeoutStopUSec=5s", grace_s=300)
    seconds = finding.advice.partition("TimeoutStopSec=")[2].split()[0]
    [finding] = units(monkeypatch, tmp_path, f"LoadState=loaded\nTimeoutStopUSec={seconds}s", grace_s=300)
    assert finding.state == "good"
