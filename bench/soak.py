"""The soak: minutes of mixed load at 256 clients, and the memory of each process of the gateway over time. `python -m bench.soak --help`.

The mix: streams and whole answers, short prompts that are all different, long ones with a common beginning, and clients that leave. A line
every 5 s; at the end the slope of each process over the last four fifths, and whether it is flat. Exit status 1 if not, or if a request
failed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.rig.measure import cpu_s, machine, pss_mb, rss_mb
from bench.rig.model import BenchModel
from bench.rig.processes import Load, LoadFailed, our_command, read_load, start_load
from bench.rig.programs import BuildFailed
from bench.rig.run import Rig, rig
from smg.sim.processes import ChildFailed

FLAT_MB_A_MINUTE = 0.5
SETTLING = 0.2  # of the time, in which caches and pools fill
EVERY_S = 5.0


class Part(Struct, frozen=True, kw_only=True):
    """One kind of client in the mix; `share` of all clients. `leave`: each so-manieth request is left after its first token."""

    name: str
    share: float
    prompt_tokens: int
    out_tokens: int
    mode: str = "unique"
    stream: bool = True
    leave: int = 0


MIX = (
    Part(name="short", share=0.375, prompt_tokens=60, out_tokens=128),
    Part(name="whole", share=0.25, prompt_tokens=200, out_tokens=64, stream=False),
    Part(name="shared", share=0.125, prompt_tokens=2000, out_tokens=32, mode="shared"),
    Part(name="long", share=0.125, prompt_tokens=4000, out_tokens=16),
    Part(name="leaving", share=0.125, prompt_tokens=100, out_tokens=128, leave=3),
)


class Sample(Struct, frozen=True, kw_only=True):
    """Memory at one time, by process; in MB."""

    at_s: float
    rss: dict[int, float]
    pss: float


def slope(samples: Sequence[Sample], pid: int) -> float:
    """Gives MB a minute: the median of the slopes between all pairs of samples, so that single peaks do not count (Theil-Sen)."""
    points = [(sample.at_s, sample.rss[pid]) for sample in samples if pid in sample.rss]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) * 60 for i, a in enumerate(points) for b in points[i + 1 :] if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


def start_mix(started: Rig, model: BenchModel, options: argparse.Namespace) -> dict[str, "subprocess.Popen[str]"]:
    """Starts a load generator for each part."""
    return {
        part.name: start_load(
            started.gateway.port,
            words_file=model.words_file(),
            words=model.words_for(part.prompt_tokens),
            out_tokens=part.out_tokens,
            concurrency=max(1, round(options.clients * part.share)),
            duration_s=options.minutes * 60,
            mode=part.mode,
            stream=part.stream,
            leave=part.leave,
            seed=number + 1,
            timeout_s=120,
            on=started.load_cpus,
        )
        for number, part in enumerate(MIX)
    }


def follow(started: Rig, loads: "dict[str, subprocess.Popen[str]]", *, every_s: float) -> list[Sample]:
    """Samples until the first load generator has ended; the processes' own order is that of their start."""
    root, began = started.gateway.process.pid, time.monotonic()
    samples = []
    while all(load.poll() is None for load in loads.values()):
        sample = Sample(at_s=time.monotonic() - began, rss=rss_mb(root), pss=pss_mb(root))
        samples.append(sample)
        sizes = " ".join(f"{size:7.1f}" for size in sample.rss.values())
        print(f"{sample.at_s:7.0f} s  RSS MB {sizes}   PSS {sample.pss:7.1f}   running {started.engine.control().running}", flush=True)
        time.sleep(every_s)
    return samples


def report(samples: Sequence[Sample], loads: dict[str, Load]) -> bool:
    """Prints what came out; true when memory is flat and nothing failed."""
    for name, load in loads.items():
        print(f"{name:8} {load.ok} answered, {load.left} left, {load.failed} failed {load.error}")
    end_s = samples[-1].at_s
    settled = [sample for sample in samples if sample.at_s >= SETTLING * end_s]
    flat = True
    for pid in samples[0].rss:
        rise = slope(settled, pid)
        good = rise <= FLAT_MB_A_MINUTE
        flat &= good
        sizes = [sample.rss[pid] for sample in settled if pid in sample.rss]
        print(f"process {pid}: {sizes[0]:.1f} to {sizes[-1]:.1f} MB, {rise:+.2f} MB a minute: {'flat' if good else 'NOT FLAT'}")
    return flat and not any(load.failed for load in loads.values())


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--every", type=float, default=EVERY_S, help="seconds between samples (default: %(default)s)")
    parser.add_argument("--step-us", type=int, default=2000, help="the engine's step; 0 is as fast as it can (default: %(default)s)")
    parser.add_argument("--model-path", help="folder with tokenizer and template (default: the embedded model)")
    parser.add_argument("--protocol", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--parsers", action="store_true", help="leave the model's reasoning and tool parsers on")
    parser.add_argument("--flags", default="", help="more flags for the gateway")
    parser.add_argument("--out", type=Path, help="file for all samples, as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mix; gives the exit status."""
    options = parse_arguments(arguments)

    def command(port: int, engines: Sequence[str]) -> list[str]:
        return our_command(port, engines=engines, model=model, parsers=options.parsers, flags=options.flags.split())

    try:
        model = BenchModel(options.model_path)
        with rig("gateway", model=model, command=command, protocol=options.protocol) as started:
            started.engine.control(step_us=options.step_us)
            processes = start_mix(started, model, options)
            try:
                samples = follow(started, processes, every_s=options.every)
                loads = {name: read_load(process) for name, process in processes.items()}
            finally:
                for process in processes.values():
                    process.kill()
            used = sum(cpu_s(started.gateway.process.pid).values())
            good = report(samples, loads)
    except (ChildFailed, BuildFailed, LoadFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    place = machine()
    print(f"{place['date']}, {place['cpu']}, load average {place['load_average']}; the gateway used {used:.0f} s of processor time")
    if options.out:
        options.out.write_bytes(msgspec.json.encode({"machine": place, "samples": samples, "loads": loads}))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
