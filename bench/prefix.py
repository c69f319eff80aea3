"""`python -m bench.prefix [--quick] [--stress SECONDS]`: what the prefix index costs; or four processes that write at once.

Times are processor time of a call, the best of several rounds on one core. The claims are those that the original's makers publish.
"""

import argparse
import multiprocessing
import os
import pathlib
import random
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TypeVar

from smg.kvindex import PrefixIndex
from smg.obs.shm import Shm, attach_block, make_block

TOKENS = 1000
PROMPTS = 10_000
BEGINNINGS = 64
WRITERS = 4

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


def report_times() -> None:
    lists = prompts(2000)
    arrays = [array("I", ids) for ids in lists]
    index = new_index(1 << 20)
    for name, items in (("list", lists), ("array of 32-bit integers", arrays)):
        insert = best_us(lambda ids: index.insert(index.prompt(ids), 3), items)
        one, many = match_us(index, items[:1] * 500, engines=8), match_us(index, items, engines=8)
        print(f"insert a prompt of {TOKENS} tokens, {name}: {insert:.2f} us, {1e6 / insert:,.0f} a second (claim: 216,000)")
        print(f"look it up for 8 engines, {name}: {one:.2f} us, {many:.2f} us for 2000 in turn (aim: 5)")
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
        print(f"{PROMPTS:,} prompts of {TOKENS} tokens in {megabytes} MB: {whole / PROMPTS:.2%} known to the end (claim: 14 MB)")


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


def scripted(worker: int, seed: int) -> tuple[list[int], int, bool]:
    """One action of a writer: blocks of a beginning that all writers use, one of the writer's own four slots, insert or remove."""
    rng = random.Random(worker << 40 | seed)
    source = random.Random(rng.randrange(BEGINNINGS)).choices(range(150_000), k=16 * rng.randrange(1, 12))
    return source, worker * 4 + rng.randrange(4), rng.random() < 0.7


def write(fd: int, worker: int, seconds: float, done: "multiprocessing.Queue[tuple[int, int]]") -> None:
    index = PrefixIndex(Shm(attach_block(fd).memory))
    number, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        source, slot, insert = scripted(worker, number)
        if insert:
            index.insert(index.prompt(source), slot)
        else:
            index.remove(array("Q", [index.advance(0, source)]), slot)
        number += 1
    done.put((worker, number))


def stress(seconds: float) -> None:
    """Four processes write entries that share places; what each wrote is then compared with a plain model, beginning by beginning."""
    block = make_block(rows=3, prefix_blocks=16384)
    done: multiprocessing.Queue[tuple[int, int]] = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=write, args=(block.fd, worker, seconds, done)) for worker in range(WRITERS)]
    for process in processes:
        process.start()
    counts = dict(done.get(timeout=seconds + 60) for _ in processes)
    for process in processes:
        process.join()
    index, wrong, checked = PrefixIndex(Shm(block.memory)), 0, 0
    for worker, count in counts.items():
        state: dict[int, set[tuple[int, ...]]] = {worker * 4 + i: set() for i in range(4)}
        for number in range(count):
            source, slot, insert = scripted(worker, number)
            if insert:
                state[slot].update(tuple(source[: 16 * (n + 1)]) for n in range(len(source) // 16))
            else:
                state[slot].discard(tuple(source))
        out = array("q", [0])
        for slot, names in state.items():
            for beginning in range(BEGINNINGS):
                ids = random.Random(beginning).choices(range(150_000), k=16 * 11)
                depth = next((n for n in range(12) if tuple(ids[: 16 * (n + 1)]) not in names), 11)
                index.match(index.prompt(ids), array("q", [slot]), out)
                wrong += out[0] != 16 * depth
                checked += 1
    print(f"{WRITERS} processes, {seconds:.0f} s, {sum(counts.values()):,} actions: {wrong} of {checked} answers are not the model's")
    raise SystemExit(wrong > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200,000 different prompts in place of 5 million")
    parser.add_argument("--stress", type=float, default=0, metavar="SECONDS")
    options = parser.parse_args()
    if options.stress:
        stress(options.stress)
    report_times()
    report_memory()
    report_growth(200_000 if options.quick else 5_000_000)


if __name__ == "__main__":
    main()
