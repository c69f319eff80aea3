"""`python -m bench.policies`: flags come in; a table on standard output and a picture in a file go out. Exit status 1 with `--check`.

Several runs go on at once, each on a clock of its own that jumps; with `--real` (`real`) it is one after the other, on the machine's clock.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import msgspec

from bench.policies.figures import BASE, Figures, combine, table, within
from bench.policies.gateways import OURS, THEIRS, find_peer
from bench.policies.picture import draw
from bench.policies.real import SPEED, measure_real
from bench.policies.replay import EVENTS, Run, measure
from bench.policies.traces import TRACES
from bench.rig.measure import machine
from bench.rig.programs import BUILD
from smg.config.tree import Routing
from smg.policy import POLICIES
from smg.sim.options import SimOptions
from smg.sim.processes import ChildFailed

__all__ = ["main"]

SIMULATED = f"{BASE},least_load,cache_aware{EVENTS}"
REAL = f"{OURS} {BASE},{THEIRS} {BASE},{THEIRS} cache_aware,{OURS} cache_aware"
USUAL = "shared,chats,mixed,bursts"
Rows = list[tuple[str, str, Figures]]


def numbers(text: str) -> list[float]:
    """Reads a comma list."""
    return [float(part) for part in text.split(",")]


def setting(text: str) -> tuple[str, float]:
    """Reads NAME=NUMBER."""
    name, _, value = text.partition("=")
    return name, int(value) if value.isdigit() else float(value)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    about = "\n".join(f"  {name:8} {trace.__doc__}" for name, trace in TRACES.items())
    parser = argparse.ArgumentParser(
        prog="bench.policies", description=__doc__, epilog=f"traces:\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=numbers, help="comma list (default: 4,8,16 at the first load, 8 at the others; --real: 8)")
    parser.add_argument(
        "--load", type=numbers, help="part of what they could do if nothing were cached (default: 0.8,0.5,0.95; --real: 0.8)"
    )
    parser.add_argument("--traces", default=USUAL, help="comma list (default: %(default)s)")
    parser.add_argument("--policies", help=f"comma list (default: {SIMULATED}; --real: {REAL}); {EVENTS}: with the engines' KV events")
    parser.add_argument("--real", action="store_true", help=f"real processes on a real clock, engines at {SPEED:g} of their speed")
    parser.add_argument("--peer", default=find_peer(), help="program of the Rust original (default: where bench/peers.sh installs it)")
    parser.add_argument("--seconds", type=float, help="how long a trace is, its first two fifths are not counted (default: 20; --real: 40)")
    parser.add_argument("--seeds", type=int, default=1, help="traces of each kind, whose mean is shown (default: %(default)s)")
    parser.add_argument("--apart", type=numbers, default=[0], metavar="N", help="engines that compute prompts only (default: 0)")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=NUMBER", help="a routing setting")
    parser.add_argument("--engine", type=setting, action="append", default=[], metavar="NAME=NUMBER", help="an option of `smg sim`")
    parser.add_argument(
        "--engine-apart", type=setting, action="append", default=[], metavar="NAME=NUMBER", help="the same, of the engines of --apart alone"
    )
    parser.add_argument("--jobs", type=int, help="runs at once; 1: in this process (default: one a processor)")
    parser.add_argument("--picture", type=Path, default=BUILD / "policies.svg", help="file (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit status 1 when figures are not as wanted")
    return parser.parse_args(arguments)


def mistake_in(options: argparse.Namespace) -> str:
    """Says what is wrong with the command line, empty when nothing is."""
    apart = options.engine + options.engine_apart
    for kind, named, there in (
        ("trace", options.traces.split(","), list(TRACES)),
        ("routing setting", [name for name, _ in options.set], list(Routing.__struct_fields__)),
        ("option of an engine", [name for name, _ in apart], list(SimOptions.__struct_fields__)),
        ("policy", [] if options.real else [run.policy.removesuffix(EVENTS) for run in runs(options)], list(POLICIES.names())),
    ):
        if unknown := sorted(set(named) - set(there)):
            return f"no {kind} {', '.join(unknown)}; there are {', '.join(there)}"
    if options.real and (any(options.apart) or options.engine_apart):
        return "--apart and --engine-apart are not with --real"
    if any(not 0 <= run.apart < run.engines for run in runs(options)):
        return "--apart leaves no engine for the answers"
    return ""


def runs(options: argparse.Namespace) -> Iterator[Run]:
    """Gives what is to be run, the seeds of one place and policy after each other."""
    usual = ([8], [0.8]) if options.real else ([4, 8, 16], [0.8, 0.5, 0.95])
    fleets, loads = options.engines or usual[0], options.load or usual[1]
    places = list(product(fleets, loads))
    if not options.engines and not options.load:
        places = [(count, loads[0]) for count in fleets] + [(8, load) for load in loads[1:]]
    names = (options.policies or (REAL if options.real else SIMULATED)).split(",")
    names = [name for name in names if options.peer or not name.startswith(THEIRS)]
    seconds = options.seconds or (40 if options.real else 20)
    for (count, load), trace, apart, policy in product(places, options.traces.split(","), options.apart, names):
        for seed in range(1, options.seeds + 1):
            yield Run(
                trace=trace, policy=policy, engines=int(count), load=load, seconds=seconds, seed=seed, apart=int(apart),
                settings=dict(options.set), engine=dict(options.engine), engine_apart=dict(options.engine_apart),
            )  # fmt: skip


def place_of(run: Run) -> str:
    """Gives the words for a run's trace, fleet and load."""
    return f"{run.trace} {run.engines} {run.load:.0%}"


def name_of(run: Run) -> str:
    """Gives the words for a run's policy."""
    return f"{run.apart}+{run.engines - run.apart} {run.policy}" if run.apart else run.policy


def measure_all(options: argparse.Namespace) -> Rows:
    """Measures all: several at once on clocks that jump, or one after the other on the machine's."""
    wanted, step = list(runs(options)), options.seeds
    if options.real:
        measured = []
        for run in wanted:
            measured.append(measure_real(run, peer=options.peer))
            print(
                f"{place_of(run)} {name_of(run)}: {measured[-1].requests:.0f} requests, load average {os.getloadavg()[0]:.1f}", flush=True
            )
    elif options.jobs == 1:
        measured = list(map(measure, wanted))
    else:
        with get_context("forkserver").Pool(options.jobs) as pool:
            measured = pool.map(measure, wanted, chunksize=1)
    groups = [(wanted[at], measured[at : at + step]) for at in range(0, len(wanted), step)]
    return [(place_of(run), name_of(run), combine(group)) for run, group in groups]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, draws; gives the exit status."""
    options = parse_arguments(arguments)
    if mistake := mistake_in(options):
        print(f"bench.policies: {mistake}", file=sys.stderr)
        return 2
    if options.real and not options.peer:
        print("bench.policies: the Rust original is not there (bench/peers.sh installs it); ours alone", file=sys.stderr)
    try:
        rows = measure_all(options)
    except ChildFailed as error:
        print(f"bench.policies: {error}", file=sys.stderr)
        return 2
    print(*table(rows), sep="\n")
    place = machine()
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(draw(rows, title=f"Routing policies, {place['date']}"))
    options.picture.with_suffix(".json").write_bytes(msgspec.json.encode({"machine": place, "rows": rows}))
    print(f"picture: {options.picture}")
    missed = list(within(rows, claimed="shared 8 80%", unshared="mixed 8 80%"))
    print(*missed, sep="\n", end="\n" if missed else "")
    return 1 if missed and options.check else 0
