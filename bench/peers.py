"""This gateway and the Rust original in turn, on the same engine and the same load: processor time a request, ours over theirs.

Started by `bench/peers.sh`, which installs the original. One pair is each gateway once, in an order that changes from pair to pair, so that
what drifts on the machine cancels out. A ratio is that of the medians; its range is that of the pairs. Scenarios with long prompts that
repeat give theirs its tokenizer caches, which are off by default. Without --model-path both have the embedded model and one plain template.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.rig.measure import machine
from bench.rig.model import BenchModel
from bench.rig.processes import LoadFailed, our_command
from bench.rig.programs import SOURCES, BuildFailed
from bench.rig.run import Measurement, rig
from bench.rig.scenarios import KINDS, Scenario, find
from smg.sim.processes import ChildFailed, free_port

SCENARIOS = "p32,p256,a32,a256,s32,b32,c32,cs32,dl32"
CACHES = ("--tokenizer-cache-enable-l0", "--tokenizer-cache-enable-l1")
TOLERATED = {"prompt_tokens": 0.01, "events": 0.05}
TEMPLATE = SOURCES / "chatml.jinja"  # theirs takes the embedded model's own for one that wants content in parts, and then cannot render it
Command = Callable[[int, Sequence[str]], Sequence[str]]


class Pair(Struct, frozen=True, kw_only=True):
    """One scenario on both, at about the same time."""

    ours: Measurement
    theirs: Measurement

    @property
    def ratio(self) -> float:
        """Gives the ratio of processor time."""
        return self.ours.cpu_us / self.theirs.cpu_us


def peer_command(peer: str, model: BenchModel, *, caches: bool, flags: Sequence[str]) -> Command:
    """Gives the original's command."""

    def command(port: int, engines: Sequence[str]) -> list[str]:
        place = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        how = ["--policy", "round_robin", "--log-level", "warn", *(CACHES if caches else ()), *flags]
        return [peer, "launch", *place, "--worker-urls", *engines, "--model-path", str(model.folder), *how]

    return command


def run_pair(options: argparse.Namespace, scenarios: Sequence[Scenario], model: BenchModel, number: int) -> dict[str, Pair]:
    """Measures each scenario on both; the one that begins changes with `number`."""
    caches = scenarios[0].caches

    shared = () if options.model_path else ("--chat-template", str(TEMPLATE))

    def our(port: int, engines: Sequence[str]) -> list[str]:
        return our_command(port, engines=engines, model=model, flags=(*shared, *options.flags.split()))

    theirs = peer_command(options.peer, model, caches=caches, flags=(*shared, *options.peer_flags.split()))
    sides: list[tuple[str, Command]] = [("ours", our), ("theirs", theirs)]
    results: dict[str, dict[str, Measurement]] = {}
    for side, command in sides[:: -1 if number % 2 else 1]:
        with rig(side, model=model, command=command, protocol=options.protocol, pin=not options.no_pin) as started:
            print(f"pair {number + 1}, {side}: answers after {started.gateway.started_s:.1f} s", flush=True)
            for scenario in scenarios:
                result = started.measure(scenario, duration_s=options.duration, warm_s=options.warm, seed=number + 1)
                results.setdefault(scenario.name, {})[side] = result
                print(f"  {scenario.name:6}{result.cpu_us:9.0f} us {result.rps:8.0f} req/s  {result.failed or ''}", flush=True)
    return {name: Pair(**sides) for name, sides in results.items()}


def table(pairs: dict[str, list[Pair]]) -> Iterator[str]:
    """Gives the lines of the table, then warnings where the two did not do the same work."""
    titles = f"{'TTFT p99 ms':>18}{'RSS MB':>14}{'PSS MB':>14}{'other':>7}"
    yield f"{'':6}{'ours us':>9}{'theirs us':>11}{'ratio':>7}{'min':>7}{'max':>7}{'pairs':>7}{titles}"
    for name, row in pairs.items():

        def mid(side: str, field: str, row: Sequence[Pair] = row) -> float:
            return statistics.median(getattr(getattr(pair, side), field) for pair in row)

        ratios = [pair.ratio for pair in row]
        cost = mid("ours", "cpu_us"), mid("theirs", "cpu_us")
        yield (
            f"{name:6}{cost[0]:9.0f}{cost[1]:11.0f}{cost[0] / cost[1]:7.2f}{min(ratios):7.2f}{max(ratios):7.2f}{len(row):7}"
            f"{mid('ours', 'ttft_ms_p99'):9.1f} /{mid('theirs', 'ttft_ms_p99'):7.1f}"
            f"{mid('ours', 'peak_rss_mb'):8.0f} /{mid('theirs', 'peak_rss_mb'):4.0f}"
            f"{mid('ours', 'pss_mb'):8.0f} /{mid('theirs', 'pss_mb'):4.0f}{mid('ours', 'other_cores'):7.2f}"
        )
        for field, share in TOLERATED.items():
            values = mid("ours", field), mid("theirs", field)
            if max(values) > min(values) * (1 + share):
                yield f"  not the same work: {field} ours {values[0]:.1f}, theirs {values[1]:.1f}"
        failed = [sum(getattr(pair, side).failed for pair in row) for side in ("ours", "theirs")]
        if any(failed):
            yield f"  failed requests: ours {failed[0]}, theirs {failed[1]}"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    kinds = "\n".join(f"  {name:3} {kind.about}" for name, kind in KINDS.items() if not kind.parsers)
    parser = argparse.ArgumentParser(
        prog="bench/peers.sh", description=__doc__, epilog=kinds, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--scenario", default=SCENARIOS, help="comma list (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=6, help="an even number balances the order (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=4, help="seconds of a measurement (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=1)
    parser.add_argument("--model-path", help="folder with tokenizer and template (default: the embedded model)")
    parser.add_argument("--protocol", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--flags", default="", help="more flags for ours")
    parser.add_argument("--peer-flags", default="", help="more flags for theirs")
    parser.add_argument("--no-pin", action="store_true", help="let the kernel place the processes")
    parser.add_argument("--out", type=Path, help="file for all measurements, as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the pairs and prints the table; gives the exit status, 1 when requests failed."""
    options = parse_arguments(arguments)
    pairs: dict[str, list[Pair]] = {}
    try:
        scenarios = [find(name) for name in options.scenario.split(",")]
        model = BenchModel(options.model_path)
        for number in range(options.pairs):
            for _, group in groupby(sorted(scenarios, key=lambda scenario: scenario.caches), key=lambda scenario: scenario.caches):
                for name, pair in run_pair(options, list(group), model, number).items():
                    pairs.setdefault(name, []).append(pair)
    except (ChildFailed, BuildFailed, LoadFailed, ValueError) as error:
        print(f"bench/peers.sh: {error}", file=sys.stderr)
        return 2
    place = machine()
    print(f"\n{place['date']}, {place['cpu']}, load average {place['load_average']}", *table(pairs), sep="\n")
    if options.out:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": place, "pairs": pairs}), indent=1))
    return 1 if any(pair.ours.failed or pair.theirs.failed for row in pairs.values() for pair in row) else 0


if __name__ == "__main__":
    raise SystemExit(main())
