"""What reading a model's output costs: each tool family's parser, native and as specified in Python. `python -m bench.parsers --help`.

In: one answer of a family, some prose and two calls with arguments of every type, in deltas of so many characters. Out: millions of
characters a second, made and finished anew for each answer; best of some repeats.
"""

import argparse
import time
from collections.abc import Sequence

from bench.rig.measure import machine
from smg.parser import TOOLS, build
from tests.parser.oracle import tools_named
from tests.parser.writers import SCHEMA, TOOL_WRITERS

GIVEN = tools_named("get_weather", "f", **SCHEMA)
ARGUMENTS = {"s": 'text with "quotes" and\nlines ' * 8, "i": 7, "b": True, "o": {"k": [1, None, "x" * 40]}, "a": list(range(20))}
PROSE = "Let me look at this for a while, then call.\n" * 3


def output_of(family: str) -> str:
    """An answer as the family writes it."""
    text = TOOL_WRITERS[family].write([("get_weather", ARGUMENTS), ("f", ARGUMENTS)])
    return text if TOOLS.get(family).channels else PROSE + text


def rate(family: str, size: int, *, native: bool, seconds: float) -> float:
    """Gives characters a microsecond."""
    text = output_of(family)
    deltas = [text[at : at + size] for at in range(0, len(text), size)]
    best = float("inf")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.process_time_ns()
        parser = build(reasoning=None, tool=family, tools=GIVEN, native=native)
        assert parser is not None
        for delta in deltas:
            parser.feed(delta)
        parser.finish()
        best = min(best, (time.process_time_ns() - begin) / 1_000)
    return len(text) / best


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line a family."""
    parser = argparse.ArgumentParser(prog="bench.parsers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="only families with this in their name")
    parser.add_argument("--sizes", default="4,64", help="characters a delta (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each figure (default: %(default)s)")
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(",")]
    print(f"{'MB/s, native / Python':22}" + "".join(f"{f'{size} characters':>22}" for size in sizes))
    for family in TOOLS.names():
        if options.family not in family:
            continue
        rates = [[rate(family, size, native=native, seconds=options.seconds) for native in (True, False)] for size in sizes]
        print(f"{family:22}" + "".join(f"{fast:8.1f} / {slow:4.1f} ={fast / slow:4.0f}x" for fast, slow in rates), flush=True)
    place = machine()
    print(f"{place['date']}, {place['cpu']}, load average {place['load_average']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
