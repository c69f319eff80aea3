"""`make bench`: what the gateway costs, with our own engine behind it and our own load in front. `python -m bench.gateway --help`.

Prints a table: processor time of the gateway a request and a streamed token, requests a second, time to the first token, peak memory.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.rig.measure import machine
from bench.rig.model import BenchModel
from bench.rig.processes import LoadFailed, our_command
from bench.rig.programs import BuildFailed
from bench.rig.run import Measurement, rig
from bench.rig.scenarios import KINDS, Scenario, find
from smg.sim.processes import ChildFailed

LAST_WORDS = 1500
SCENARIOS = "a32,s32,b32,p32,c32,cs32,d32,dl32,a256,p256,b256,t32"


def run(options: argparse.Namespace, scenarios: Sequence[Scenario], model: BenchModel, *, parsers: bool) -> list[Measurement]:
    """Runs scenarios on one gateway, all of them once a round, so that what drifts on the machine touches all alike."""

    def command(port: int, engines: Sequence[str]) -> list[str]:
        return our_command(port, engines=engines, model=model, parsers=parsers, flags=options.flags.split())

    results = []
    with rig("gateway", model=model, command=command, protocol=options.protocol, pin=not options.no_pin) as started:
        print(f"answers after {started.gateway.started_s:.1f} s{', with parsers' if parsers else ''}", flush=True)
        for number in range(options.rounds):
            for scenario in scenarios:
                result = started.measure(scenario, duration_s=options.duration, warm_s=options.warm, seed=number + 1)
                results.append(result)
                if result.failed:
                    print(f"{scenario.name}: {result.failed} requests failed: {result.errors}; the gateway's last words:", flush=True)
                    print(started.gateway.output()[-LAST_WORDS:], flush=True)
    return results


def table(results: Sequence[Measurement]) -> list[str]:
    """Gives the lines of the table: medians over the rounds, and the least processor time, which noise can only add to."""
    lines = [
        f"{'':6}{'CPU us/request':>16}{'least':>7}{'worker':>8}{'req/s':>8}{'TTFT p50/p99 ms':>18}{'ITL ms':>8}{'events':>8}{'prompt':>8}"
        f"{'RSS MB':>8}{'PSS MB':>8}{'other':>7}"
    ]
    for name in dict.fromkeys(result.scenario for result in results):
        mine = [result for result in results if result.scenario == name]

        def mid(field: str, mine: Sequence[Measurement] = mine) -> float:
            return statistics.median(getattr(result, field) for result in mine)

        lines.append(
            f"{name:6}{mid('cpu_us'):16.0f}{min(result.cpu_us for result in mine):7.0f}{mid('worker_us'):8.0f}{mid('rps'):8.0f}"
            f"{mid('ttft_ms_p50'):10.1f} /{mid('ttft_ms_p99'):6.1f}{mid('itl_ms_p50'):8.2f}{mid('events'):8.1f}{mid('prompt_tokens'):8.0f}"
            f"{max(result.peak_rss_mb for result in mine):8.0f}{max(result.pss_mb for result in mine):8.0f}{mid('other_cores'):7.2f}"
        )
    return lines


def token_cost(results: Sequence[Measurement]) -> list[str]:
    """Gives what a streamed token and a request cost, from answers of two lengths: the least of each, over all rounds."""
    least: dict[str, float] = {}
    for result in results:
        least[result.scenario] = min(least.get(result.scenario, result.cpu_us), result.cpu_us)
    lines = []
    for name in least:
        short = name.replace("a", "s", 1)
        if not name.startswith("a") or short not in least:
            continue
        long_tokens, short_tokens = KINDS["a"].out_tokens, KINDS["s"].out_tokens
        token = (least[name] - least[short]) / (long_tokens - short_tokens)
        lines.append(f"{name[1:]} clients: {token:.2f} us a streamed token + {least[short] - short_tokens * token:.0f} us a request")
    return lines


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    kinds = "\n".join(f"  {name:3} {kind.about}" for name, kind in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="bench.gateway",
        description=__doc__,
        epilog=f"scenarios, with a number of clients behind:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", default=SCENARIOS, help="comma list (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=2.5, help="seconds of a measurement (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=0.7, help="seconds of load before it (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works, no figures")
    parser.add_argument("--model-path", help="folder with tokenizer and template (default: the embedded model)")
    parser.add_argument("--protocol", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--flags", default="", help="more flags for the gateway, as in '--data-plane aio'")
    parser.add_argument("--no-pin", action="store_true", help="let the kernel place the processes")
    parser.add_argument("--out", type=Path, help="file for all measurements, as JSON")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.duration, options.warm = 1, 0.7, 0.3
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the scenarios and prints the table; gives the exit status, 1 when a request failed."""
    options = parse_arguments(arguments)
    try:
        scenarios = [find(name) for name in options.scenario.split(",")]
        model = BenchModel(options.model_path)
        results = []
        for parsers in (False, True):
            chosen = [scenario for scenario in scenarios if scenario.parsers is parsers]
            results += run(options, chosen, model, parsers=parsers) if chosen else []
    except (ChildFailed, BuildFailed, LoadFailed, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    place = machine()
    print(f"{place['date']}, {place['cpu']}, load average {place['load_average']}", *table(results), *token_cost(results), sep="\n")
    if options.out:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": place, "measurements": results}), indent=1))
    return 1 if any(result.failed or not result.ok for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
