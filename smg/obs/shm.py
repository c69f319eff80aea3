"""The block of memory that all processes share: made by the supervisor before it forks, reached by the others through its descriptor.

Gives `Shm`, the native class of `smg_ext.shm` or, with SMG_NO_EXT, its twin `PlainShm`; both work on the same words. Layout: a header of
32 words (64 bit), then the tables that it points to. Row 0 holds the metrics of processes that are gone, row 1 is the control process,
the others are data workers. Of the last tables, the prefix index and the sticky keys are those of `smg.kvindex`, seats and buckets those of
`smg.obs.seats` and `smg.obs.buckets`.
"""

import mmap
import os
import secrets
import time
from array import array
from typing import TYPE_CHECKING

from msgspec import Struct

from smg._ext import NO_EXT, NativeShm

__all__ = [
    "BUCKETS_HEADER_WORDS",
    "BUCKET_WAYS",
    "CONTROL_ROW",
    "COUNT_FIELDS",
    "FIRST_WORKER_ROW",
    "KEY_BYTES",
    "LOAD_FIELDS",
    "PREFIX_HEADER_WORDS",
    "PREFIX_SLOT_WORDS",
    "RANKS",
    "SEATS_HEADER_WORDS",
    "STICKY_HEADER_WORDS",
    "Block",
    "PlainShm",
    "Shm",
    "attach_block",
    "make_block",
    "now_ms",
]

CONTROL_ROW = 1
FIRST_WORKER_ROW = 2
# The last two: what this gateway itself had at the engine when it was asked.
LOAD_FIELDS = (
    *("running", "waiting", "used_tokens", "max_tokens", "waiting_uncached_tokens", "generated_milli_per_s", "polled_ms"),
    *("counted_requests", "counted_tokens"),
)
# What is counted of an engine's life: requests that its breaker has judged, and the changes of its breaker.
COUNT_FIELDS = ("success", "failure", "closed_open", "open_half_open", "half_open_closed", "half_open_open")

MAGIC = 0x534D4702
HEADER_WORDS = 32
(
    ROWS,
    ENGINES,
    SERIES,
    CELLS,
    ENGINES_AT,
    ROWS_AT,
    INFLIGHT_AT,
    SERIES_AT,
    CELLS_AT,
    SIZE,
    GENERATION,
    CELLS_USED,
    DROPPED,
    PREFIX_AT,
    STICKY_AT,
    RETRIES,
    SEATS_AT,
    BUCKETS_AT,
    COUNTS_AT,
    CHANGES,
) = range(1, 21)
ENGINE_WORDS, ROW_WORDS, INFLIGHT_WORDS, SERIES_WORDS, COUNT_WORDS = 16, 8, 4, 64, 8
STATE, EPOCH, SUSPECT, LOAD = range(4)
BREAKER = LOAD + len(LOAD_FIELDS)
TURN = len(COUNT_FIELDS)  # of an engine's counts: no count, but whose turn it is among the engines of which it is the first
BREAKER_EPOCH_SHIFT, BREAKER_EPOCHS, BREAKER_STATE = 18, 63, 3
PID, PHASE, BEAT, CONNECTIONS = range(4)
SERIES_STATE, SERIES_FIRST, SERIES_COUNT, SERIES_LENGTH, SERIES_KEY = range(5)
KEY_BYTES = (SERIES_WORDS - SERIES_KEY) * 8
LINE_WORDS = 8
PREFIX_HEADER_WORDS, PREFIX_SLOT_WORDS, STICKY_HEADER_WORDS = 16, 8, 8
SEATS_HEADER_WORDS, BUCKETS_HEADER_WORDS = 8, 8
# Priority classes that requests are seated by, and neighbouring places in which a bucket may be.
RANKS, BUCKET_WAYS = 4, 8


class Block(Struct, frozen=True):
    """A mapped block and the descriptor by which another process can map it too."""

    fd: int
    memory: mmap.mmap


def now_ms() -> int:
    """Gives the clock of heartbeats: monotonic, the same in every process of the machine."""
    return time.monotonic_ns() // 1_000_000


def make_block(
    *,
    rows: int,
    engines: int = 1024,
    series: int = 2048,
    cells: int = 16384,
    prefix_blocks: int = 65536,
    prefix_block_size: int = 0,
    sticky_keys: int = 4096,
    retries: int = 500,
    seats: int = 65535,
    waiters: int = 65535,
    buckets: int = 16384,
    secret: bytes = b"",
) -> Block:
    """Makes a block. Its size never changes; memory is taken by the kernel only as it is touched.

    `retries`: what they may spend from the start, see `earn_retry`. `secret`: 16 bytes that key every hash of what clients send, so that
    they cannot build collisions; random when empty.
    """
    prefix_lines, sticky_lines = -(-prefix_blocks // (LINE_WORDS - 1)) or 1, -(-sticky_keys // LINE_WORDS) or 1
    tables = (
        *(ENGINE_WORDS * engines, ROW_WORDS * rows, INFLIGHT_WORDS * rows * engines, SERIES_WORDS * series, rows * cells),
        PREFIX_HEADER_WORDS + PREFIX_SLOT_WORDS * engines + LINE_WORDS * (prefix_lines + 1),
        STICKY_HEADER_WORDS + engines + LINE_WORDS * (sticky_lines + 1),
        SEATS_HEADER_WORDS + -(-seats // LINE_WORDS) * LINE_WORDS + waiters,
        BUCKETS_HEADER_WORDS + 2 * (buckets + BUCKET_WAYS),
        COUNT_WORDS * engines,
    )
    places = [HEADER_WORDS]
    for length in tables:
        places.append(places[-1] + -(-length // LINE_WORDS) * LINE_WORDS)
    size = places[-1] * 8
    fd = os.memfd_create("smg-shm", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    keys = memoryview(secret or secrets.token_bytes(16)).cast("q")
    with memoryview(memory) as view, view.cast("q") as words:
        for index, value in enumerate((MAGIC, rows, engines, series, cells, *places[:5], size)):
            words[index] = value
        words[PREFIX_AT], words[STICKY_AT], words[SEATS_AT], words[BUCKETS_AT], words[COUNTS_AT] = places[5:10]
        words[RETRIES] = retries
        words[places[5] : places[5] + 6] = array("q", (prefix_lines, *keys, 0, 0, prefix_block_size))
        words[places[6] : places[6] + 3] = array("q", (sticky_lines, *keys))
        words[places[7]], words[places[7] + 1], words[places[8]] = seats, waiters, buckets
    return Block(fd, memory)


def attach_block(fd: int) -> Block:
    """Maps a block that another process made."""
    return Block(fd, mmap.mmap(fd, os.fstat(fd).st_size))


class PlainShm:
    """The twin of `smg_ext.shm.Shm`; what each method means is said there. Not atomic: right for one process, or one writer a word."""

    def __init__(self, block: "mmap.mmap | bytearray") -> None:
        view = memoryview(block)
        if view.nbytes < HEADER_WORDS * 8:
            raise ValueError("not a block of this version")
        self._words = view.cast("q")
        self._bytes = view
        self.unsigned = view.cast("Q")
        self.prefix_at, self.sticky_at = self._words[PREFIX_AT], self._words[STICKY_AT]
        self.seats_at, self.buckets_at = self._words[SEATS_AT], self._words[BUCKETS_AT]
        self._counts_at = self._words[COUNTS_AT]
        if self._words[0] != MAGIC or self._words[SIZE] != view.nbytes:
            raise ValueError("not a block of this version")
        self._engines_at, self._rows_at, self._inflight_at, self._series_at, self._cells_at = self._words[ENGINES_AT : CELLS_AT + 1]

    @property
    def rows(self) -> int:
        return self._words[ROWS]

    @property
    def engines(self) -> int:
        return self._words[ENGINES]

    def _engine(self, slot: int) -> int:
        if not 0 <= slot < self._words[ENGINES]:
            raise IndexError(f"no engine slot {slot}")
        return self._engines_at + slot * ENGINE_WORDS

    def engine(self, slot: int) -> tuple[int, int, int, list[int]]:
        """Gives a slot's state, its epoch, the state of its breaker, and what it reports. For the twins of other tables."""
        at = self._engine(slot)
        load = self._words[at + LOAD : at + LOAD + len(LOAD_FIELDS)].tolist()
        return self._words[at + STATE], self._words[at + EPOCH], self._words[at + BREAKER] & BREAKER_STATE, load

    def _row(self, row: int) -> int:
        if not 0 <= row < self._words[ROWS]:
            raise IndexError(f"no process row {row}")
        return self._rows_at + row * ROW_WORDS

    def _inflight(self, row: int, slot: int) -> int:
        self._row(row)
        self._engine(slot)
        return self._inflight_at + (row * self._words[ENGINES] + slot) * INFLIGHT_WORDS

    def _swap(self, at: int, value: int) -> int:
        before, self._words[at] = self._words[at], value
        return before

    def generation(self) -> int:
        return self._words[GENERATION]

    def bump(self) -> int:
        self._words[GENERATION] += 1
        return self._words[GENERATION]

    def open_engine(self, slot: int, state: int) -> int:
        at = self._engine(slot)
        for index in range(len(LOAD_FIELDS)):
            self._words[at + LOAD + index] = 0
        for index in range(len(COUNT_FIELDS)):
            self._words[self._counts_at + slot * COUNT_WORDS + index] = 0
        self._words[at + SUSPECT] = 0
        self._words[at + STATE] = state
        self._words[at + EPOCH] += 1
        epoch = self._words[at + EPOCH]
        self._words[at + BREAKER] = (epoch & BREAKER_EPOCHS) << BREAKER_EPOCH_SHIFT
        self._words[CHANGES] += 1
        return epoch

    def engine_state(self, slot: int) -> int:
        return self._words[self._engine(slot) + STATE]

    def set_engine_state(self, slot: int, state: int) -> None:
        if self._swap(self._engine(slot) + STATE, state) != state:
            self._words[CHANGES] += 1

    def changes(self) -> int:
        return self._words[CHANGES]

    def engine_epoch(self, slot: int) -> int:
        return self._words[self._engine(slot) + EPOCH]

    def suspect(self, slot: int) -> bool:
        return self._swap(self._engine(slot) + SUSPECT, 1) == 0

    def take_suspect(self, slot: int) -> bool:
        return self._swap(self._engine(slot) + SUSPECT, 0) == 1

    def set_load(self, slot: int, fields: "array[int]") -> None:
        at = self._engine(slot)
        if len(fields) != len(LOAD_FIELDS):
            raise ValueError(f"a load has {len(LOAD_FIELDS)} fields")
        for index, value in enumerate(fields):
            self._words[at + LOAD + index] = value

    def load(self, slot: int, fields: "array[int]") -> None:
        at = self._engine(slot)
        if len(fields) != len(LOAD_FIELDS):
            raise ValueError(f"a load has {len(LOAD_FIELDS)} fields")
        for index in range(len(LOAD_FIELDS)):
            fields[index] = self._words[at + LOAD + index]

    def count(self, slot: int, epoch: int, field: int) -> None:
        at = self._engine(slot)
        if not 0 <= field < len(COUNT_FIELDS):
            raise IndexError(f"no count {field}")
        if self._words[at + EPOCH] == epoch:
            self._words[self._counts_at + slot * COUNT_WORDS + field] += 1

    def counts(self, slot: int) -> tuple[int, ...]:
        self._engine(slot)
        at = self._counts_at + slot * COUNT_WORDS
        return tuple(self._words[at : at + len(COUNT_FIELDS)])

    def turn(self, slot: int) -> int:
        self._engine(slot)
        at = self._counts_at + slot * COUNT_WORDS + TURN
        self._words[at] += 1
        return self._words[at] - 1

    def acquire(self, row: int, slot: int, epoch: int, tokens: int) -> None:
        at = self._inflight(row, slot)
        if self._words[at] != epoch:
            self._words[at], self._words[at + 1], self._words[at + 2] = epoch, 0, 0
        self._words[at + 1] += 1
        self._words[at + 2] += tokens

    def release(self, row: int, slot: int, epoch: int, tokens: int) -> None:
        at = self._inflight(row, slot)
        if self._words[at] == epoch:
            self._words[at + 1] -= 1
            self._words[at + 2] -= tokens

    def held(self, row: int, slot: int, epoch: int) -> int:
        at = self._inflight(row, slot)
        return self._words[at + 1] if self._words[at] == epoch else 0

    def sums(self, slots: "array[int]", out: "array[int]") -> None:
        if len(out) < 2 * len(slots):
            raise ValueError("out has no room for two numbers a slot")
        for index, slot in enumerate(slots):
            epoch = self.engine_epoch(slot)
            cells = [self._inflight(row, slot) for row in range(self.rows)]
            counted = [at for at in cells if self._words[at] == epoch]
            out[2 * index] = sum(self._words[at + 1] for at in counted)
            out[2 * index + 1] = sum(self._words[at + 2] for at in counted)

    def breaker(self, slot: int) -> int:
        return self._words[self._engine(slot) + BREAKER]

    def swap_breaker(self, slot: int, expected: int, word: int) -> bool:
        at = self._engine(slot) + BREAKER
        if self._words[at] != expected:
            return False
        self._words[at] = word
        self._words[CHANGES] += bool((expected ^ word) & BREAKER_STATE)
        return True

    def earn_retry(self, amount: int, most: int) -> None:
        if self._words[RETRIES] < most:
            self._words[RETRIES] += amount

    def spend_retry(self, amount: int) -> bool:
        if self._words[RETRIES] < amount:
            return False
        self._words[RETRIES] -= amount
        return True

    def set_row(self, row: int, pid: int, phase: int, now_ms: int) -> None:
        at = self._row(row)
        self._words[at + PID], self._words[at + PHASE], self._words[at + BEAT] = pid, phase, now_ms

    def row(self, row: int) -> tuple[int, int, int]:
        at = self._row(row)
        return self._words[at + PID], self._words[at + PHASE], self._words[at + BEAT]

    def beat(self, row: int, now_ms: int) -> None:
        self._words[self._row(row) + BEAT] = now_ms

    def set_connections(self, row: int, count: int) -> None:
        self._words[self._row(row) + CONNECTIONS] = count

    def connections(self, row: int) -> int:
        return self._words[self._row(row) + CONNECTIONS]

    def clear_row(self, row: int) -> None:
        at = self._row(row)
        for slot in range(self.engines):
            cell = self._inflight(row, slot)
            self._words[cell], self._words[cell + 1], self._words[cell + 2] = 0, 0, 0
        for cell in range(self._words[CELLS_USED] if row else 0):
            self._words[self._cells_at + cell] += self._swap(self._cells_at + row * self._words[CELLS] + cell, 0)
        self._words[at + PID], self._words[at + PHASE], self._words[at + BEAT], self._words[at + CONNECTIONS] = 0, 0, 0, 0
        self._words[CHANGES] += 1

    def series(self, key: bytes, start: int, cells: int) -> int:
        if start < 0 or cells < 1:
            raise ValueError("start and cells must not be negative")
        first = self._find_series(key, start, cells) if 0 < len(key) <= KEY_BYTES else -1
        if first < 0:
            self._words[DROPPED] += 1
        return first

    def _find_series(self, key: bytes, start: int, cells: int) -> int:
        count = self._words[SERIES]
        for step in range(count):
            at = self._series_at + ((start + step) % count) * SERIES_WORDS
            text = (at + SERIES_KEY) * 8
            if self._words[at + SERIES_STATE] == 0:
                first = self._words[CELLS_USED]
                if first + cells > self._words[CELLS]:
                    return -1
                self._words[CELLS_USED] = first + cells
                self._bytes[text : text + len(key)] = key
                self._words[at + SERIES_LENGTH], self._words[at + SERIES_COUNT], self._words[at + SERIES_FIRST] = len(key), cells, first
                self._words[at + SERIES_STATE] = 2
                return first
            if self._words[at + SERIES_STATE] == 2 and self._bytes[text : text + self._words[at + SERIES_LENGTH]] == key:
                return self._words[at + SERIES_FIRST]
        return -1

    def add(self, row: int, cell: int, amount: int) -> None:
        self._row(row)
        if not 0 <= cell < self._words[CELLS]:
            raise IndexError(f"no metric cell {cell}")
        self._words[self._cells_at + row * self._words[CELLS] + cell] += amount

    def totals(self) -> list[tuple[bytes, list[int]]]:
        found = []
        for index in range(self._words[SERIES]):
            at = self._series_at + index * SERIES_WORDS
            if self._words[at + SERIES_STATE] != 2:
                continue
            text, first = (at + SERIES_KEY) * 8, self._words[at + SERIES_FIRST]
            rows = [self._cells_at + row * self._words[CELLS] + first for row in range(self.rows)]
            values = [sum(self._words[start + cell] for start in rows) for cell in range(self._words[at + SERIES_COUNT])]
            found.append((bytes(self._bytes[text : text + self._words[at + SERIES_LENGTH]]), values))
        return found

    def dropped(self) -> int:
        return self._words[DROPPED]


if TYPE_CHECKING:
    Shm = NativeShm
else:
    Shm = PlainShm if NO_EXT else NativeShm
