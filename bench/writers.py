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
BEGINNINGS = 64
BLOCKS = 12
GRACE_S = 120.0
LIFE_S = 0.0002
LOOKED_AT = 1000


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
    block = make_block(rows=3, prefix_blocks=500 if full else 16384)
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
    return wrong + (not known) + (bool(evicted) != full)


def settle(fd: int, worker: int, seconds: float, done: "Queue[tuple[int, int, int]]") -> None:
    """Writes prompts that tell for which life of which slot they were written.

    One whose engine changed meanwhile is taken back: the call may have seen the new engine only, and then was right to write it.
    """
    shm = Shm(attach_block(fd).memory)
    index, number, until = PrefixIndex(shm), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        slot = number % 4
        epoch = shm.engine_epoch(slot)
        index.insert(index.prompt(life(worker, slot=slot, epoch=epoch)), slot)
        if shm.engine_epoch(slot) != epoch:
            index.remove(index.names(0, life(worker, slot=slot, epoch=epoch), 16), slot)
        number += 1
    done.put((worker, number, 0))


def life(worker: int, *, slot: int, epoch: int) -> list[int]:
    """The prompt of one life of a slot."""
    return [worker, slot, epoch, *range(16 * BLOCKS - 3)]


def rule(fd: int, seconds: float) -> None:
    """Gives slots to new engines all the time, as the control process does."""
    shm = Shm(attach_block(fd).memory)
    index, lives, until = PrefixIndex(shm), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        shm.open_engine(lives % 4, 1)
        index.open(lives % 4)
        lives += 1
        time.sleep(LIFE_S)


def check_epochs(seconds: float) -> int:
    """A slot's new engine must not have what was written for the one before, by writers that were in the midst of it."""
    block = make_block(rows=3, prefix_blocks=16384)
    shm = Shm(block.memory)
    for slot in range(4):
        shm.open_engine(slot, 1)
    context = multiprocessing.get_context("fork")
    ruler = context.Process(target=rule, args=(block.fd, seconds))
    ruler.start()
    counts, _ = run(seconds, block.fd, settle)
    ruler.join()
    index, left, lives, out = PrefixIndex(shm), 0, 0, array("q", [0])
    for slot in range(4):
        lives += shm.engine_epoch(slot) - 1
        for worker in range(WRITERS):
            for epoch in range(max(1, shm.engine_epoch(slot) - LOOKED_AT), shm.engine_epoch(slot)):
                index.match(index.prompt(life(worker, slot=slot, epoch=epoch)), array("q", [slot]), out)
                left += out[0] > 0
    os.close(block.fd)
    print(
        f"{WRITERS} processes, {seconds:.0f} s, {sum(counts.values()):,} prompts for {lives:,} engines: {left} of them are with a later one"
    )
    return left + (not lives)
