"""Processes that write into the prefix index at once, and whether what it says then is what they said. For `bench.prefix` and the tests.

Each check runs for some seconds, prints what it found and gives the number of answers that are wrong.
"""

import multiprocessing
import os
import random
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.queues import Queue

from smg.kvindex import PrefixIndex
from smg.obs.shm import Shm, attach_block, make_block

__all__ = ["check_epochs", "check_writers"]

WRITERS = 4
BEGINNINGS = 4
BLOCKS = 12
GRACE_S = 120.0
LIFE_S = 0.0002
PATIENCE_S = 10.0
LIFE_BLOCKS = 64


def beginning(number: int) -> list[int]:
    """One of those that all writers use."""
    return random.Random(number).choices(range(150_000), k=16 * BLOCKS)


def script(worker: int) -> Iterator[tuple[int, int, int, bool]]:
    """What a writer does: with so many blocks of a beginning, for one of its own four slots, insert or else remove the last."""
    rng = random.Random(worker)
    while True:
        choice = rng.getrandbits(30)
        yield choice % BEGINNINGS, choice // BEGINNINGS % BLOCKS, worker * 4 + (choice >> 20) % 4, choice >> 22 & 255 < 180


def write(fd: int, worker: int, seconds: float, done: "Queue[tuple[int, int, int]]") -> None:
    """Acts as scripted, as fast as it goes, and looks each time: nobody else writes for its slots, though all write the same words."""
    index = PrefixIndex(Shm(attach_block(fd).memory))
    sources = [beginning(number) for number in range(BEGINNINGS)]
    prompts = [[index.prompt(source[: 16 * (depth + 1)]) for depth in range(BLOCKS)] for source in sources]
    names = [index.names(0, source, 16) for source in sources]
    count, wrong, until, out = 0, 0, time.monotonic() + seconds, array("q", [0])
    for number, last, slot, insert in script(worker):
        if insert:
            index.insert(prompts[number][last], slot)
        else:
            index.remove(names[number][last : last + 1], slot)
        index.match(prompts[number][last], array("q", [slot]), out)
        wrong += out[0] < 16 * (last + 1) and not index.counts()[2] if insert else out[0] > 16 * last
        count += 1
        if time.monotonic() >= until:
            break
    done.put((worker, count, wrong))


def modelled(worker: int, count: int) -> list[list[list[bool]]]:
    """Gives what a writer's slots hold after so many actions: by slot, beginning and block."""
    state = [[[False] * BLOCKS for _ in range(BEGINNINGS)] for _ in range(4)]
    for number, last, slot, insert in islice(script(worker), count):
        if insert:
            state[slot % 4][number][: last + 1] = [True] * (last + 1)
        else:
            state[slot % 4][number][last] = False
    return state


def run(seconds: float, fd: int, target: Callable[..., None]) -> tuple[dict[int, int], int]:
    """Runs the writers; gives the number of actions of each, and of answers that they found wrong."""
    context = multiprocessing.get_context("fork")
    done: Queue[tuple[int, int, int]] = context.Queue()
    processes = [context.Process(target=target, args=(fd, worker, seconds, done)) for worker in range(WRITERS)]
    for process in processes:
        process.start()
    reported = [done.get(timeout=seconds + GRACE_S) for _ in processes]
    for process in processes:
        process.join()
    return {worker: count for worker, count, _ in reported}, sum(wrong for _, _, wrong in reported)


def check_writers(seconds: float, *, full: bool = False) -> int:
    """Four processes write entries that share words; each answer must be the model's, or in a `full` table, which forgets, no more."""
    block = make_block(rows=3, prefix_blocks=14 if full else 16384)
    counts, wrong = run(seconds, block.fd, write)
    index, checked, known, out = PrefixIndex(Shm(block.memory)), sum(counts.values()), 0, array("q", [0])
    for worker, count in counts.items():
        for place, beginnings in enumerate(modelled(worker, count)):
            for number, blocks in enumerate(beginnings):
                depth = next((n for n, there in enumerate(blocks) if not there), BLOCKS)
                index.match(index.prompt(beginning(number)), array("q", [worker * 4 + place]), out)
                wrong += out[0] > 16 * depth if full else out[0] != 16 * depth
                known += out[0] > 0
                checked += 1
    evicted = index.counts()[2]
    os.close(block.fd)
    print(
        f"{WRITERS} processes, {seconds:.0f} s, {sum(counts.values()):,} actions, {evicted:,} entries given up: "
        f"{wrong} of {checked:,} answers are not the model's; at the end {known} are of known beginnings"
    )
    return wrong + (bool(evicted) != full) + (not known and not full)


def settle(fd: int, worker: int, seconds: float, done: "Queue[tuple[int, int, int]]") -> None:
    """Writes prompts that tell for which life of the slot they were written."""
    shm = Shm(attach_block(fd).memory)
    index, number, until = PrefixIndex(shm), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        epoch = shm.engine_epoch(0)
        prompt = index.prompt(life(worker, epoch=epoch))
        while shm.engine_epoch(0) == epoch and time.monotonic() < until:
            index.insert(prompt, 0, -1, epoch)
            number += 1
    done.put((worker, number, 0))


def life(worker: int, *, epoch: int) -> list[int]:
    """A writer's prompt for one life of the slot."""
    return [worker, epoch, *range(16 * LIFE_BLOCKS - 2)]


def rule(fd: int, seconds: float, found: "Queue[tuple[int, int]]") -> None:
    """Gives the slot to new engines all the time, as the control process does, and looks whether one has what was for the one before.

    A writer that was in the midst of it takes back what it wrote as soon as it goes on: what stays counts.
    """
    shm = Shm(attach_block(fd).memory)
    index, lives, left, out, until = PrefixIndex(shm), 0, 0, array("q", [0]), time.monotonic() + seconds
    while time.monotonic() < until:
        before = shm.engine_epoch(0)
        shm.open_engine(0, 1)
        index.open(0)
        lives += 1
        time.sleep(LIFE_S)
        for worker in range(WRITERS):
            prompt, patience = index.prompt(life(worker, epoch=before)), time.monotonic() + PATIENCE_S
            index.match(prompt, array("q", [0]), out)
            while out[0] and time.monotonic() < patience:
                time.sleep(LIFE_S)
                index.match(prompt, array("q", [0]), out)
            left += out[0] > 0
        if left:
            break
    found.put((lives, left))


def check_epochs(seconds: float) -> int:
    """A slot's new engine must not have what was written for the one before, by writers that were in the midst of it."""
    block = make_block(rows=3, prefix_blocks=1024)
    Shm(block.memory).open_engine(0, 1)
    context = multiprocessing.get_context("fork")
    found: Queue[tuple[int, int]] = context.Queue()
    ruler = context.Process(target=rule, args=(block.fd, seconds, found))
    ruler.start()
    counts, _ = run(seconds, block.fd, settle)
    lives, left = found.get(timeout=GRACE_S)
    ruler.join()
    os.close(block.fd)
    print(f"{WRITERS} processes, {seconds:.0f} s, {sum(counts.values()):,} prompts for {lives:,} engines: {left} are with a later one")
    return left + (not lives)
