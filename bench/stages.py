"""Micro-benchmarks: what each stage of a request costs by itself, in one process. `python -m bench.stages --help`.

The first figure is the least processor time of many repeats; the second that of a call which finds the caches cold. In a worker, with other
work in between, a stage costs something between the two. The request is a chat of 50 tokens with 16 in answer, if not said otherwise.
Stages overlap: those called `together` hold most of the others. A stage whose seam has changed is named, and the exit status is 1.
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.rig.measure import machine
from bench.rig.model import BenchModel
from bench.rig.processes import BenchEngine
from bench.rig.programs import BuildFailed
from bench.rig.seams import Seams
from bench.rig.timing import cold_us, least_async_us, least_us
from smg.sim.processes import ChildFailed

LONG = 7000  # tokens; about 30 kB of text
MARK = "<|im_start|>"  # a control token's name in the client's words

# Name, method of Seams, its arguments; in the order of a request.
STAGES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("read: JSON, checks, Job", "read", {}),
    ("read: parameters never seen before", "read", {"fresh": True}),
    ("read: a body of 30 kB", "read", {"tokens": LONG}),
    ("template", "render", {}),
    ("template: 8 turns", "render", {"turns": 8}),
    ("template: a mark in the client's words", "render", {"mark": MARK}),
    ("template: 8 turns with marks", "render", {"turns": 8, "mark": MARK}),
    ("template: 64 turns with marks", "render", {"turns": 64, "mark": MARK}),
    ("tokenize: a new text", "encode", {}),
    ("tokenize: a text seen before (L1)", "encode", {"text": "seen"}),
    ("tokenize: 30 kB", "encode", {"tokens": LONG}),
    ("tokenize: 30 kB seen before (L1)", "encode", {"tokens": LONG, "text": "seen"}),
    ("tokenize: 30 kB of words never seen before", "encode", {"tokens": LONG, "text": "novel"}),
    ("prompt: template and tokens, new", "prompt", {"fresh": True}),
    ("prompt: seen before (L0)", "prompt", {}),
    ("plan", "plan", {}),
    *(
        (f"route: {policy}, {engines} engine{'s' if engines > 1 else ''}", "route", {"policy": policy, "engines": engines})
        for policy in ("round_robin", "power_of_two", "least_load", "consistent_hashing", "cache_aware")
        for engines in (1, 8, 256)
    ),
    ("engine request: sglang", "write", {"protocol": "sglang"}),
    ("engine request: vllm", "write", {"protocol": "vllm"}),
    ("engine request: trtllm", "write", {"protocol": "trtllm"}),
    ("engine request: mlx", "write", {"protocol": "mlx"}),
    ("engine request: tokenspeed", "write", {"protocol": "tokenspeed"}),
    ("engine request: sglang, 7k tokens", "write", {"protocol": "sglang", "tokens": LONG}),
    ("sink: made and ended", "sink", {"together": 0}),
    ("sink: a token, one a wake-up", "sink", {"together": 1}),
    ("sink: a token, eight a wake-up", "sink", {"together": 8}),
    ("whole answer: events to body", "whole", {}),
    ("together: exchange of GET /health", "exchange", {"clients": 32}),
    ("together: front and kernel, a trivial POST", "front", {"clients": 32}),
    ("together: all but the front, streamed", "chat", {"clients": 32, "stream": True}),
    ("together: all but the front, whole", "chat", {"clients": 32, "stream": False}),
)


async def measure(seams: Seams, method: str, arguments: dict[str, object], *, seconds: float) -> tuple[float, float | None]:
    """Gives microseconds of one stage, hot and cold; None for those that cannot be cold, because they do many things at once."""
    timed = getattr(seams, method)(**arguments)
    if inspect.isawaitable(timed):
        timed = await timed
    if timed.asynchronous:
        return await least_async_us(timed.call, seconds=seconds, units=timed.units, prepare=timed.prepare), None
    cold = cold_us(timed.call, seconds=seconds) if timed.units == 1 else None
    return least_us(timed.call, seconds=seconds) / timed.units, cold


async def run(options: argparse.Namespace) -> tuple[dict[str, tuple[float, float | None]], list[str]]:
    """Measures and prints all stages; gives the figures, and the names of those that could not be measured."""
    model = BenchModel(options.model_path)
    figures: dict[str, tuple[float, float | None]] = {}
    faults = []
    with BenchEngine(model) as engine:
        async with Seams.opened(model, engine) as seams:
            for name, method, arguments in STAGES:
                if options.stage not in name:
                    continue
                try:
                    hot, cold = figures[name] = await measure(seams, method, arguments, seconds=options.seconds)
                    print(f"{name:50}{hot:10.2f} us" + (f"{cold:10.1f} us cold" if cold else ""), flush=True)
                except (ImportError, AttributeError, TypeError, AssertionError) as error:
                    faults.append(name)
                    print(f"{name:50}not measured: {type(error).__name__}: {error}", flush=True)
    return figures, faults


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="bench.stages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="", help="only stages with this in their name")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each stage, hot and cold (default: %(default)s)")
    parser.add_argument("--model-path", help="folder with tokenizer and template (default: the embedded model)")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the stages; gives the exit status."""
    options = parse_arguments(arguments)
    try:
        figures, faults = uvloop.run(run(options))
    except (ChildFailed, BuildFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    place = machine()
    print(f"{place['date']}, {place['cpu']}, load average {place['load_average']}")
    if options.out:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": place, "us": figures}), indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
