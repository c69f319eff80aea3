"""`python -m bench.prefix [--quick] [--stress SECONDS]`: what the prefix index costs; or processes that write at once (`bench.writers`).

Times are processor time of a call, the best of several rounds on one core. Beside some stand figures that the original's makers publish.
"""

import argparse
import os
import pathlib
import random
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from bench.writers import check_epochs, check_writers
from smg.kvindex import PrefixIndex
from smg.obs.shm import Shm, make_block

TOKENS = 1000
PROMPTS = 10_000
FRESH = 250
ROUNDS = 12
CLAIM = "the original's makers say:"

T = TypeVar("T")


def prompts(count: int) -> list[list[int]]:
    """Different prompts. Their integers are shared, as those of a tokenizer are not: lists are read somewhat faster here than in life."""
    rng = random.Random(1)
    base = rng.choices(range(150_000), k=TOKENS)
    return [[number, *base[1:]] for number in range(count)]


def best_us(call: Callable[[T], object], items: Sequence[T], *, rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        for item in items:
            call(item)
        times.append((time.process_time() - begun) / len(items))
    return min(times) * 1e6


def resident_mb() -> float:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def new_index(blocks: int) -> PrefixIndex:
    return PrefixIndex(Shm(make_block(rows=3, prefix_blocks=blocks).memory))


def match_us(index: PrefixIndex, items: Sequence[Sequence[int]], *, engines: int) -> float:
    slots, out = array("q", range(engines)), array("q", [0] * engines)
    return best_us(lambda ids: index.match(index.prompt(ids), slots, out), items)


def fresh_us(index: PrefixIndex) -> float:
    """What it takes to insert prompts that were never seen, bytes, in the best of several rounds."""
    ids, times = array("I", prompts(1)[0]), []
    for number in range(ROUNDS):
        items = []
        for ids[0] in range(number * FRESH, (number + 1) * FRESH):
            items.append(ids.tobytes())
        times.append(best_us(lambda item: index.insert(index.prompt(item), 3), items, rounds=1))
    return min(times)


def report_inserts() -> None:
    for name, blocks, full in (
        ("half full", 1 << 20, False),
        ("of 32 MB, nearly empty", 1 << 22, False),
        ("full: each evicts", 1 << 16, True),
    ):
        index = new_index(blocks)
        if full:
            for ids in prompts(5000):
                index.insert(index.prompt([*ids[::-1]]), 3)
        cost = fresh_us(index)
        print(f"insert a new prompt of {TOKENS} tokens into a table {name}: {cost:.2f} us, {1e6 / cost:,.0f} a second ({CLAIM} 216,000)")


def report_times() -> None:
    lists = prompts(2000)
    arrays = [array("I", ids) for ids in lists]
    index = new_index(1 << 20)
    for name, items in (("list", lists), ("array of 32-bit integers", arrays)):
        insert = best_us(lambda ids: index.insert(index.prompt(ids), 3), items)
        one, many = match_us(index, items[:1] * 500, engines=8), match_us(index, items, engines=8)
        print(f"insert a prompt of {TOKENS} tokens, {name}: {insert:.2f} us, {1e6 / insert:,.0f} a second ({CLAIM} 216,000)")
        print(f"look it up for 8 engines, {name}: {one:.2f} us, {many:.2f} us for 2000 in turn (our aim: 5)")
    for slot in range(0, 256, 16):
        index.insert(index.prompt(arrays[0]), slot)
    print(f"look it up for 256 engines of which 16 hold it: {match_us(index, arrays[:1] * 50, engines=256):.1f} us")
    begun = time.process_time()
    index.forget(3)
    print(f"forget an engine, in a table of {index.counts()[0]:,} entries: {(time.process_time() - begun) * 1e3:.1f} ms")


def report_memory() -> None:
    arrays = [array("I", ids) for ids in prompts(PROMPTS)]
    for megabytes in (14, 7, 6, 5):
        index = new_index(megabytes * 1_000_000 // 8)
        for ids in arrays:
            index.insert(index.prompt(ids), 3)
        slots, out, whole = array("q", [3]), array("q", [0]), 0
        for ids in arrays:
            index.match(index.prompt(ids), slots, out)
            whole += out[0] == TOKENS // 16 * 16
        print(f"{PROMPTS:,} prompts of {TOKENS} tokens in {megabytes} MB: {whole / PROMPTS:.2%} known to the end ({CLAIM} 14 MB)")


def report_growth(count: int) -> None:
    index, ids, shared = new_index(1 << 22), array("I", prompts(1)[0]), array("I", range(TOKENS))
    slots, out = array("q", [7]), array("q", [0])
    marks = []
    for number in range(count):
        ids[0], ids[1] = number & 0xFFFF, number >> 16
        index.insert(index.prompt(ids), number & 15)
        if number % 64 == 0:
            index.insert(index.prompt(shared), 7)
        if number % (count // 5) == 0:
            marks.append(resident_mb())
    index.match(index.prompt(shared), slots, out)
    marks.append(resident_mb())
    shown = " ".join(f"{mark:.0f}" for mark in marks)
    print(f"{count:,} different prompts: resident MB after each fifth: {shown}; one that comes again and again: {out[0]} tokens known")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200,000 different prompts in place of 5 million")
    parser.add_argument("--stress", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    if options.stress:
        raise SystemExit(sum(check(options.stress / 3) for check in (check_writers, partial(check_writers, full=True), check_epochs)) > 0)
    report_times()
    report_inserts()
    report_memory()
    report_growth(200_000 if options.quick else 5_000_000)


if __name__ == "__main__":
    main()
