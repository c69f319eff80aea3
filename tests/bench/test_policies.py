"""The comparison of policies: its parts, one short run on the clock that jumps, and one with real processes. No figure is judged here."""

import asyncio
import pathlib
import random
import time
import xml.etree.ElementTree as ET

import msgspec
import pytest

from bench.policies import run
from bench.policies.clock import JumpingLoop
from bench.policies.figures import Figures, Sample, combine, table, within
from bench.policies.gateways import THEIRS
from bench.policies.picture import draw
from bench.policies.real import Spelling, measure_real
from bench.policies.replay import Run, measure
from bench.policies.traces import TRACES, WARM, WORDS
from smg.sim.model import load_model

SHORT = {"engines": 2, "load": 0.5, "seconds": 1.5}


def figures(mean_ms: float, p99_ms: float) -> Figures:
    times = {"mean_ms": mean_ms, "p50_ms": mean_ms, "p99_ms": p99_ms, "itl_ms": 8, "gap_p99_ms": 9, "longest_ms": 10}
    return Figures(requests=9, failed=0, **times, cached=0.5, imbalance=1.1)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_the_same_each_time_and_in_order(name: str) -> None:
    make = TRACES[name]
    trace = make(random.Random(3), engines=2, load=0.8, seconds=8)
    assert trace == make(random.Random(3), engines=2, load=0.8, seconds=8)
    assert trace != make(random.Random(4), engines=2, load=0.8, seconds=8)
    times = [request.at_s for request in trace]
    assert times == sorted(times)
    assert all(number in WORDS for number in trace[0].ids)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_the_load_that_was_asked_for(name: str) -> None:
    """The busy time that the engines' costs make of it, nothing being cached, is `load` of the time that there is."""
    engines, load, seconds = 8, 0.8, 10
    trace = TRACES[name](random.Random(5), engines=engines, load=load, seconds=seconds)
    counted = [request for request in trace if request.at_s > WARM * seconds]
    turns = [turn for request in counted for turn in (request, *request.then)]
    busy_s = sum(0.004 + 33e-6 * len(turn.ids) + 77e-6 * turn.output for turn in turns)
    assert 0.65 * load < busy_s / engines / (1 - WARM) / seconds < 1.35 * load


def test_the_clock_jumps() -> None:
    async def sleep() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(3000))
        return loop.time() - begun

    begun = time.monotonic()
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert runner.run(sleep()) == pytest.approx(3000)
    assert time.monotonic() - begun < 1000


@pytest.mark.parametrize("apart", [0, 1])
def test_a_run_gives_the_same_figures_each_time(apart: int) -> None:
    wanted = Run(trace="chats", policy="cache_aware+events", apart=apart, **SHORT)
    first = measure(wanted)
    assert first == measure(wanted)
    assert first.requests > 0
    assert 0 < first.mean_ms <= first.p99_ms
    assert 0 < first.cached < 1


def test_engines_apart_may_have_settings_of_their_own() -> None:
    """Engines that compute prompts take long for one, those that answer take long for a token."""
    wanted = Run(trace="answers", policy="cache_aware", apart=1, engine={"step_base_ms": 30.0}, **SHORT)
    slow = msgspec.structs.replace(wanted, engine_apart={"prefill_token_us": 500.0, "step_base_ms": 0.0})
    plain, changed = measure(wanted), measure(slow)
    assert changed.mean_ms > plain.mean_ms + 400
    assert changed.itl_ms > 30
    assert changed.gap_p99_ms > 30


def test_it_prints_a_table_and_draws_it(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "x" / "picture.svg"
    flags = ["--engines", "2", "--load", "0.5", "--seconds", "2", "--jobs", "1", "--traces", "shared,mixed", "--picture", str(picture)]
    assert run.main([*flags, "--policies", "round_robin,cache_aware"]) == 0
    out = capsys.readouterr().out
    for start in ("shared 2 50%       round_robin", "shared 2 50%       cache_aware", "mixed 2 50%        round_robin"):
        assert f"\n{start} " in out
    assert len(ET.parse(picture).getroot()) > 4 * 5
    assert len(msgspec.json.decode(picture.with_suffix(".json").read_bytes())["rows"]) == 4


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--traces", "shared,nothing"), "no trace nothing; there are"),
        (("--policies", "round_robin,nothing+events"), "no policy nothing; there are"),
        (("--set", "nothing=1"), "no routing setting nothing; there are"),
        (("--engine", "nothing=1"), "no option of an engine nothing; there are"),
        (("--engine-apart", "nothing=1"), "no option of an engine nothing; there are"),
        (("--engines", "4", "--apart", "2,4"), "--apart leaves no engine"),
        (("--engines", "4", "--apart", "-1"), "--apart leaves no engine"),
        (("--real", "--apart", "1"), "are not with --real"),
        (("--real", "--engine-apart", "itl_ms=1"), "are not with --real"),
    ],
)
def test_what_cannot_be_run_is_refused(flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(flags) == 2
    assert told in capsys.readouterr().err


def test_bounds_that_are_not_kept_are_said() -> None:
    def missed(name: str, mean_ms: float, p99_ms: float, place: str = "shared") -> list[str]:
        rows = [(place, "round_robin", figures(100, 1000)), (place, name, figures(mean_ms, p99_ms))]
        return list(within(rows, claimed="shared", unshared="mixed"))

    assert not missed("cache_aware+events", 70, 700)
    assert missed("cache_aware+events", 80, 700)
    assert missed("cache_aware+events", 70, 740)
    assert not missed("least_load", 99, 999)
    assert not missed("least_load", 104, 1000, "mixed")
    assert missed("least_load", 106, 1000, "mixed")
    assert missed("least_load", 100, 1060, "mixed")


def test_figures_of_several_runs_are_their_mean() -> None:
    both = combine([figures(100, 1000), figures(50, 500)])
    assert (both.mean_ms, both.p99_ms) == (75, 750)
    lines = list(table([("p", "ours round_robin", figures(100, 1000)), ("p", "ours cache_aware", figures(70, 500))]))
    assert "-30%   -50%" in lines[2]
    assert draw([("p <&", "a", figures(0.0, 1.0))], title="t").count("&lt;&amp;") == 1


def test_cached_and_imbalance_are_of_tokens() -> None:
    sample = Sample(prompt=400, cached=100, computed=[200, 100])
    sample.add(0.0, [0.1, 0.2], tokens=2)
    assert (sample.figures().cached, sample.figures().imbalance) == (0.25, pytest.approx(4 / 3))


def test_gaps_are_of_every_token() -> None:
    sample = Sample(computed=[1])
    sample.add(1.0, [1.1, 1.2, 1.5], tokens=3)
    sample.add(1.0, [2.0, 2.1, 2.2], tokens=11, scale=0.5)
    sample.add(1.0, [2.0], tokens=1)
    assert sample.ttft_s == pytest.approx([0.1, 0.5, 1.0])
    assert sample.itl_s == pytest.approx([0.2, 0.01, 0])
    assert sample.longest_s == pytest.approx([0.3, 0.05, 0])
    assert sample.gaps_s == pytest.approx([0.1, 0.3, 0.05, 0.05])
    figures = sample.figures()
    assert (figures.gap_p99_ms, figures.longest_ms) == (pytest.approx(300), pytest.approx(50))


def test_a_trace_can_be_written_as_text() -> None:
    model = load_model("")
    write = Spelling(model)
    ids = list(WORDS)
    said = model.encode(write(ids))
    assert [write.ids[number - WORDS.start] for number in ids] == said


def test_real_processes_give_figures() -> None:
    """Ours alone: the original need not be there. The engines are as slow as real ones."""
    wanted = Run(trace="shared", policy="ours cache_aware", engine={"speed": 1.0}, **SHORT)
    measured = measure_real(wanted, peer="")
    assert measured.failed == 0
    assert measured.requests > 0
    assert measured.itl_ms > 6
    assert measured.cached > 0


def test_without_the_original_ours_is_measured_alone() -> None:
    options = run.parse_arguments(["--real", "--peer", ""])
    assert not any(wanted.policy.startswith(THEIRS) for wanted in run.runs(options))
    assert {wanted.engines for wanted in run.runs(options)} == {8}
