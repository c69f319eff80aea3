"""The growth check: processor time a unit of work against prompt length, answer length, streams at once and engines. `--help` for flags.

Work must cost the same a unit however much of it there is. For each axis the least of some rounds is printed with its ratio to the smallest
size, and the exponent from the middle size to the largest (1 = linear). Exit status 1: a unit at the largest costs more than --limit times
what it does in the middle. Processor time of the gateway is what counts, not the clock on the wall.
"""

import argparse
import math
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from bench.rig.measure import machine
from bench.rig.model import BenchModel
from bench.rig.processes import LoadFailed, our_command
from bench.rig.programs import BuildFailed
from bench.rig.run import Rig, rig
from bench.rig.scenarios import Scenario
from smg.sim.processes import ChildFailed

LIMIT = 1.6
BASE = Scenario(about="", prompt_tokens=50, out_tokens=16, concurrency=8)


class Axis(Struct, frozen=True, kw_only=True):
    """`field` of `base` takes each of `sizes`; the cost is a request's, divided by `unit_field` of the scenario where there is one.

    `engines`: the sizes are numbers of engines, each with a gateway of its own. `turn_tokens`: tokens that each turn adds to the prompt.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    base: Scenario = BASE
    field: str = ""
    unit_field: str = ""
    engines: bool = False
    turn_tokens: int = 0

    def scenario(self, size: int) -> Scenario:
        """Gives the load of one size."""
        changed = {self.field: size} if self.field else {}
        if self.turn_tokens:
            changed["prompt_tokens"] = self.turn_tokens * size
        return msgspec.structs.replace(self.base, **changed)

    def units(self, size: int) -> int:
        """Gives how many units of work a request of this size is."""
        return int(getattr(self.scenario(size), self.unit_field)) if self.unit_field else 1


TURNS = (1, 8, 64, 256, 1000)
PROMPTS = (1000, 4000, 16_000, 64_000, 128_000)
ANSWERS = (16, 64, 256, 1024, 4096)
AXES = (
    Axis(name="prompt, tokens", unit="prompt token", sizes=PROMPTS, field="prompt_tokens", unit_field="prompt_tokens"),
    Axis(name="streamed answer, tokens", unit="token", sizes=ANSWERS, field="out_tokens", unit_field="out_tokens"),
    Axis(
        name="streamed answer with parsers, tokens",
        unit="token",
        sizes=ANSWERS,
        base=msgspec.structs.replace(BASE, parsers=True),
        field="out_tokens",
        unit_field="out_tokens",
    ),
    Axis(
        name="whole answer, tokens",
        unit="token",
        sizes=ANSWERS,
        base=msgspec.structs.replace(BASE, stream=False),
        field="out_tokens",
        unit_field="out_tokens",
    ),
    Axis(name="turns of a conversation", unit="turn", sizes=TURNS, field="turns", unit_field="turns", turn_tokens=60),
    Axis(name="clients at once", unit="request", sizes=(1, 10, 100, 300, 1000), field="concurrency"),
    Axis(
        name="streams at once, a token every 50 ms",
        unit="request of 32 tokens",
        sizes=(1, 10, 100, 300, 1000),
        base=msgspec.structs.replace(BASE, out_tokens=32, step_us=50_000),
        field="concurrency",
    ),
    # One client, so that fewer answers a wake-up, which is what more engines bring, is not what is seen.
    Axis(
        name="engines (least_load)",
        unit="request",
        sizes=(1, 4, 16, 64),
        base=msgspec.structs.replace(BASE, stream=False, concurrency=1),
        engines=True,
    ),
)


class Verdict(Struct, frozen=True, kw_only=True):
    """`ratio` of the largest size to the middle one; `exponent` of the growth between them."""

    ratio: float
    exponent: float


def judge(sizes: Sequence[int], costs: Sequence[float], *, total: bool) -> Verdict:
    """Compares a unit's cost at the largest size with that in the middle. `total`: a request's cost should not depend on the size."""
    middle = (len(sizes) - 1) // 2
    ratio = costs[-1] / costs[middle]
    exponent = math.log(ratio) / math.log(sizes[-1] / sizes[middle])
    return Verdict(ratio=ratio, exponent=exponent if total else 1 + exponent)


def measure(started: Rig, axis: Axis, sizes: Sequence[int], options: argparse.Namespace) -> dict[int, float]:
    """Gives microseconds a unit for each size: the least of the rounds, since noise can only add."""
    least: dict[int, float] = {}
    for number in range(options.rounds):
        for size in sizes:
            result = started.measure(axis.scenario(size), duration_s=options.duration, warm_s=options.warm, seed=number + 1)
            if result.failed or not result.ok:
                raise LoadFailed(f"{axis.name} {size}: {result.failed} requests failed: {result.errors}")
            least[size] = min(least.get(size, math.inf), result.worker_us / axis.units(size))
    return least


def run_axis(axis: Axis, model: BenchModel, options: argparse.Namespace) -> dict[int, float]:
    """Measures an axis on a gateway of its own, or one for each number of engines."""
    flags = ["--policy", "least_load", *options.flags.split()]

    def command(port: int, engines: Sequence[str]) -> list[str]:
        return our_command(port, engines=engines, model=model, parsers=axis.base.parsers, flags=flags)

    costs: dict[int, float] = {}
    groups = [(size, (size,)) for size in axis.sizes] if axis.engines else [(1, axis.sizes)]
    for engines, sizes in groups:
        with rig("gateway", model=model, command=command, engines=engines, protocol=options.protocol) as started:
            started.wait_engines(engines)
            costs |= measure(started, axis, sizes, options)
    return costs


def report(axis: Axis, costs: dict[int, float], *, limit: float) -> bool:
    """Prints an axis; true when it is linear."""
    sizes, values = list(costs), list(costs.values())
    verdict = judge(sizes, values, total=not axis.unit_field)
    good = verdict.ratio <= limit
    print(f"\n{axis.name}: us a {axis.unit}")
    for size, cost in costs.items():
        print(f"  {size:8}{cost:12.2f}   x {cost / values[0]:.2f}")
    print(
        f"  largest / middle {verdict.ratio:.2f}, exponent {verdict.exponent:.2f}: {'linear' if good else 'WORSE THAN LINEAR'}", flush=True
    )
    return good


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    names = "; ".join(axis.name for axis in AXES)
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", default="", help=f"only axes with this in their name; there are: {names}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=1.0, help="seconds of a measurement (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=0.3)
    parser.add_argument("--limit", type=float, default=LIMIT, help="largest / middle that is still linear (default: %(default)s)")
    parser.add_argument("--sizes", help="comma list, in place of an axis's own")
    parser.add_argument("--model-path", help="folder with tokenizer and template (default: the embedded model)")
    parser.add_argument("--protocol", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--flags", default="", help="more flags for the gateway")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the axes; gives the exit status."""
    options = parse_arguments(arguments)
    good = True
    try:
        model = BenchModel(options.model_path)
        for axis in [axis for axis in AXES if options.axis in axis.name]:
            if options.sizes:
                axis = msgspec.structs.replace(axis, sizes=tuple(map(int, options.sizes.split(","))))
            good &= report(axis, run_axis(axis, model, options), limit=options.limit)
    except (ChildFailed, BuildFailed, LoadFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    place = machine()
    print(f"\n{place['date']}, {place['cpu']}, load average {place['load_average']}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
