"""`smg doctor` over simulated engines, ports that are taken, and a machine with too little of something."""

import asyncio
import contextlib
import datetime
import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from smg.cli import main
from smg.commands.diagnosis import machine
from smg.commands.diagnosis.engines import look_at_engines
from smg.config import Config, files
from smg.config.tree import Engines
from smg.sim.processes import Child, free_port, gateway_command, sim_command, wait_http

QUIET = ("--host", "127.0.0.1", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0")


def found(capsys: pytest.CaptureFixture[str], *flags: str, port: int = 0) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and findings by subject."""
    code = main(["doctor", "--json", *QUIET, "--port", str(port), *flags])
    return code, {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}


@contextlib.contextmanager
def engine(protocol: str, *flags: str) -> Iterator[str]:
    """The address of a simulated engine."""
    with Child("engine", command=sim_command(protocol=protocol, flags=flags)) as child:
        yield child.wait_ready(within_s=30)


@pytest.mark.parametrize("protocol", ["vllm", "sglang", "trtllm"])
def test_all_is_well(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    with engine(protocol) as url:
        code, findings = found(capsys, "--worker-urls", url)
    assert code == 0, findings
    assert findings[f"engine {url}"]["seen"].startswith(protocol)
    assert "sim-model" in findings[f"engine {url}"]["seen"]
    [model] = [finding for subject, finding in findings.items() if subject.startswith("model")]
    assert "template renders" in model["seen"]


def test_an_engine_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    with engine("openai") as url:
        code, findings = found(capsys, "--worker-urls", url)
        assert (code, findings[f"engine {url}"]["state"]) == (0, "good"), findings
        assert "over HTTP serves sim-model" in findings[f"engine {url}"]["seen"]
        assert not [subject for subject in findings if subject.startswith("model")], "the engine tokenizes"
        with engine("vllm") as other:
            code, findings = found(capsys, "--worker-urls", url, other)
            assert code == 1
            assert "it gets no request" in findings[f"engine {url}"]["seen"]
    code, findings = found(capsys, "--worker-urls", "http://127.0.0.1:1")
    assert findings["engine http://127.0.0.1:1"]["seen"] == "nobody listens on 127.0.0.1:1"
    assert "its HTTP server" in findings["engine http://127.0.0.1:1"]["advice"]


def test_a_model_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    with engine("vllm") as one, engine("vllm") as other:
        main(["doctor", "--json", *QUIET, "--port", "0", "--worker-urls", one, other])
    subjects = [finding["subject"] for finding in json.loads(capsys.readouterr().out)]
    assert [subject for subject in subjects if "engine " in subject or "model " in subject] == [
        f"engine {one}",
        "model sim-model",
        f"engine {other}",
    ]


def test_words_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", *QUIET, "--port", "0", "--worker-urls", "grpc://127.0.0.1:1"])
    told = capsys.readouterr().out
    assert code == 1
    assert "wrong    engine grpc://127.0.0.1:1: nobody listens on 127.0.0.1:1\n" in told
    assert "-> start the engine" in told
    assert told.endswith("to look at\n")


def test_no_engine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = found(capsys)
    assert code == 0
    assert findings["engines"]["state"] == "warning"


def test_engines_of_a_file_and_of_kubernetes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "workers.toml"
    path.write_text('[[workers]]\nurl = "grpc://127.0.0.1:1"\n')
    flags = ("--workers-file", str(path), "--service-discovery", "--selector", "app=engine")
    code, findings = found(capsys, *flags)
    assert (code, findings["engine grpc://127.0.0.1:1"]["state"]) == (1, "wrong")
    assert findings["Kubernetes"]["state"] == "warning"
    path.write_text("[[workers")
    code, findings = found(capsys, *flags)
    assert (code, findings[f"file {path}"]["state"]) == (1, "wrong")
    assert "engines" not in findings


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = found(capsys, "--worker-urls", "grpc://no-such-name.invalid:5")
    assert code == 1
    assert "no-such-name.invalid is not known" in findings["engine grpc://no-such-name.invalid:5"]["seen"]


def test_a_port_that_does_not_speak_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"grpc://127.0.0.1:{mute.getsockname()[1]}"
        flags = ("--connect-timeout-secs", "0.3", "--health-check-timeout-secs", "0.3")
        code, findings = found(capsys, "--worker-urls", url, *flags)
    assert code == 1
    assert "does not speak gRPC" in findings[f"engine {url}"]["seen"]


def test_an_engine_that_cannot_have_its_part(capsys: pytest.CaptureFixture[str]) -> None:
    with engine("trtllm") as one, engine("sglang", "--role", "decode") as other:
        code, findings = found(capsys, "--prefill", one, "--decode", other)
    assert code == 1
    assert findings[f"engine {one}"]["seen"] == "trtllm engines cannot compute prefill and decode apart"
    assert "engines.worker_urls" in findings[f"engine {one}"]["advice"]
    assert findings[f"engine {other}"]["state"] == "good"


def test_an_engine_that_is_ill(capsys: pytest.CaptureFixture[str]) -> None:
    with engine("sglang", "--health", "down") as url:
        code, findings = found(capsys, "--worker-urls", url)
    assert code == 1
    assert findings[f"engine {url}"]["state"] == "wrong"


def test_a_template_that_does_not_render(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{{ raise_exception('never') }}")
    with engine("sglang") as url:
        code, findings = found(capsys, "--worker-urls", url, "--chat-template", str(template))
    assert code == 1
    assert findings["model sim-model"]["state"] == "wrong"


def test_no_tokenizer_to_be_had(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    with engine("sglang") as url:
        code, findings = found(capsys, "--worker-urls", url, "--model-path", str(empty))
    assert code == 1
    assert "cannot be used" in findings["model sim-model"]["seen"]


def test_mistakes_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = found(capsys, "--policy", "nosuch", "--worker-urls", "nowhere")
    assert code == 1
    assert findings["configuration"]["state"] == "wrong"
    assert "shared memory" in findings, "the machine is looked at all the same"


def test_a_port_that_another_has(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, findings = found(capsys, port=taken.getsockname()[1])
        assert f"sport = :{taken.getsockname()[1]}" in findings["port"]["advice"]
    assert code == 1


def test_a_port_where_the_gateway_serves(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with Child("gateway", command=gateway_command(port=port, engines=["grpc://127.0.0.1:1"], flags=["--workers", "1"])) as child:
        wait_http(child, url=f"http://127.0.0.1:{port}/health", within_s=30)
        _, findings = found(capsys, port=port)
    assert findings["port"] == {"state": "good", "subject": "port", "seen": f"a gateway answers on 127.0.0.1:{port}", "advice": ""}


def test_keys_are_missed_only_where_others_can_come(capsys: pytest.CaptureFixture[str]) -> None:
    assert "keys" not in found(capsys)[1]
    assert found(capsys, "--host", "0.0.0.0")[1]["keys"]["state"] == "warning"
    assert "keys" not in found(capsys, "--host", "0.0.0.0", "--api-key", "secret")[1]


def test_where_keys_go(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of credentials is read by the units alone."""
    assert found(capsys, "--host", "0.0.0.0")[1]["keys"]["advice"].startswith("give --api-key, or ")
    monkeypatch.setattr("smg.commands.diagnosis.unit.DEFAULT_FILE", files.DEFAULT_FILE)
    files.DEFAULT_FILE.parent.mkdir()
    files.DEFAULT_FILE.write_text("[server]\nhost = '0.0.0.0'")
    code = main(["doctor", "--json", "--port", "0", "--prometheus-port", "0"])
    told = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert (code, told["keys"]["advice"].partition(",")[0]) == (0, "put keys into /etc/smg/credentials/api-keys")


@pytest.mark.parametrize(("hard", "state"), [(1024, "wrong"), (4096, "warning"), (1 << 20, "good"), (resource.RLIM_INFINITY, "good")])
def test_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, state: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, hard))
    [finding] = machine.look_at_limits(Config())
    assert finding.state == state


def test_memory_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(machine, "make_block", refuse)
    [finding] = machine.look_at_memory(Config())
    assert finding.state == "wrong"
    assert "Cannot allocate memory" in finding.seen


def test_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_unsynchronised", lambda: False)
    assert [finding.state for finding in machine.look_at_clock(Config())] == ["good"]
    monkeypatch.setattr(machine, "_unsynchronised", lambda: True)
    assert [finding.state for finding in machine.look_at_clock(Config())] == ["warning"]
    monkeypatch.setattr(machine, "NOT_BEFORE", datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC))
    assert [finding.state for finding in machine.look_at_clock(Config())] == ["wrong"]


def test_help_and_wrong_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: smg doctor")
    assert main(["doctor", "--nonsense"]) == 1
    assert "--nonsense" in capsys.readouterr().out


def test_engines_are_asked_at_once_and_told_in_order() -> None:
    urls = tuple(f"grpc://127.0.0.1:{port}" for port in (1, 2, 3))
    findings = asyncio.run(look_at_engines(Config(engines=Engines(worker_urls=urls))))
    assert [finding.subject for finding in findings] == [f"engine {url}" for url in urls]
