"""The tools themselves: they build, run, say something sensible, and their verdicts can fail. No figure is judged here."""

import os
import pathlib
import subprocess
import sys

import msgspec
import pytest

from bench import gateway, growth, soak, stages
from bench.rig.measure import cpu_s, pss_mb, rss_mb, tree
from bench.rig.model import BenchModel
from bench.rig.scenarios import KINDS, find

ROOT = pathlib.Path(__file__).parents[2]


def test_make_bench_prints_its_table(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "a4,s4,b4", "--quick", "--no-pin", "--out", str(tmp_path / "x.json")]
    assert gateway.main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in ("a4", "s4", "b4"))
    assert "us a streamed token" in out
    measured = msgspec.json.decode((tmp_path / "x.json").read_bytes())["measurements"]
    assert [one["scenario"] for one in measured] == ["a4", "s4", "b4"]
    for one, events in zip(measured, (131, 19, 0), strict=True):  # role, tokens, finish reason, [DONE]
        assert one["ok"] > 0
        assert one["failed"] == 0
        assert one["events"] == events
        assert 40 <= one["prompt_tokens"] <= 60
        assert one["cpu_us"] >= one["worker_us"] > 0
        assert one["peak_rss_mb"] > 20


def test_every_stage_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["--seconds", "0.001"]) == 0, capsys.readouterr().out
    lines = [line for line in capsys.readouterr().out.splitlines() if " us" in line]
    assert [line[:50].strip() for line in lines] == [name for name, _, _ in stages.STAGES]


def test_growth_tells_linear_from_quadratic(capsys: pytest.CaptureFixture[str]) -> None:
    axis = growth.Axis(name="x", unit="u", sizes=(1, 10, 100), field="prompt_tokens", unit_field="prompt_tokens")
    assert growth.report(axis, {1: 9.0, 10: 1.0, 100: 0.5}, limit=growth.LIMIT)
    assert not growth.report(axis, {1: 1.0, 10: 1.0, 100: 10.0}, limit=growth.LIMIT)
    assert "exponent 2.00: WORSE" in capsys.readouterr().out
    assert [axis.units(size) for size in axis.sizes] == [1, 10, 100]


def test_growth_measures_an_axis(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rounds", "1", "--duration", "0.2", "--warm", "0.1", "--limit", "1000"]
    assert growth.main(["--axis", "turns", "--sizes", "1,4", *flags]) == 0
    assert "turns of a conversation: us a turn" in capsys.readouterr().out


def test_soak_tells_a_leak_from_a_peak() -> None:
    def samples(sizes: list[float]) -> list[soak.Sample]:
        return [soak.Sample(at_s=5.0 * i, rss={1: size}, pss=size) for i, size in enumerate(sizes)]

    flat = [100.0] * 100
    flat[50] = 180.0
    assert soak.slope(samples(flat), 1) == 0
    assert soak.slope(samples([100 + i / 12 for i in range(100)]), 1) == pytest.approx(1.0)
    assert soak.report(samples(flat), {})
    assert not soak.report(samples([100 + i / 12 for i in range(100)]), {})


def test_soak_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--minutes", "0.02", "--clients", "8", "--every", "0.3"]) in (0, 1)  # so short that nothing has settled
    out = capsys.readouterr().out
    assert " 0 failed" in out
    assert out.count("process ") == 3


def test_scenarios_have_names() -> None:
    assert find("cs32").concurrency == 32
    assert find("cs32").mode == "shared"
    for name in ("a", "32", "x32", ""):
        with pytest.raises(ValueError, match="no scenario"):
            find(name)
    assert set(gateway.SCENARIOS.split(",")) >= {f"{kind}32" for kind in KINDS}


def test_model_makes_prompts_of_the_size_asked(model: BenchModel) -> None:
    for tokens in (100, 5000):
        assert len(model.tokenizer.encode(model.text(tokens)).ids) == pytest.approx(tokens, rel=0.1)


def test_processes_are_measured() -> None:
    with subprocess.Popen([sys.executable, "-c", "sum(range(10**6)); input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in tree(os.getpid())
        assert set(cpu_s(child.pid)) == {child.pid}
        assert rss_mb(child.pid)[child.pid] >= pss_mb(child.pid) > 0
        child.communicate(b"\n")
    assert cpu_s(child.pid) == {}


def peers(tmp_path: pathlib.Path, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    peer = tmp_path / "peer"
    peer.write_text(f"#!/bin/sh\n{script}\n")
    peer.chmod(0o755)
    environment = {**os.environ, "PEER": str(peer), "PYTHON": sys.executable}
    return subprocess.run([ROOT / "bench" / "peers.sh", *arguments], env=environment, capture_output=True, text=True, check=False)


def test_peers_says_that_there_is_none(tmp_path: pathlib.Path) -> None:
    done = peers(tmp_path, "exit 1")
    assert done.returncode == 3
    assert "does not run on this machine" in done.stderr
    assert "nothing to compare with" in done.stderr


def test_peers_compares(tmp_path: pathlib.Path) -> None:
    """The peer is this gateway, so that the test needs no other."""
    arguments = ("--pairs", "1", "--scenario", "s4", "--duration", "0.2", "--warm", "0.1", "--no-pin")
    done = peers(tmp_path, f'exec {sys.executable} -m smg "$@" --workers 1 --prometheus-port 0', *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("s4 "))
    assert float(line.split()[3]) > 0
    assert "not the same work: events" not in done.stdout  # prompts differ by more than one in a hundred where there are few
