# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Shared memory of the processes: engine slots, in-flight counts, heartbeats and metric cells, on C11 atomics without a lock.

In: an open memory file whose header `smg.obs.shm.make_block` wrote. Out: counters that every process of the gateway reads and writes.
The block is an array of 64-bit words; the header says where each table begins. `smg.obs.shm.PlainShm` is the twin and the specification.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy, memset

__all__ = ["Shm"]

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <stdint.h>
    typedef _Atomic int64_t smg_word;
    static inline int64_t smg_load(int64_t *at) { return atomic_load_explicit((smg_word *)at, memory_order_acquire); }
    static inline void smg_store(int64_t *at, int64_t to) { atomic_store_explicit((smg_word *)at, to, memory_order_release); }
    static inline int64_t smg_add(int64_t *at, int64_t by) { return atomic_fetch_add_explicit((smg_word *)at, by, memory_order_acq_rel); }
    static inline int64_t smg_swap(int64_t *at, int64_t to) { return atomic_exchange_explicit((smg_word *)at, to, memory_order_acq_rel); }
    static inline int smg_claim(int64_t *at, int64_t from, int64_t to) {
        return atomic_compare_exchange_strong((smg_word *)at, &from, to);
    }
    """
    int64_t smg_load(int64_t *at) nogil
    void smg_store(int64_t *at, int64_t value) nogil
    int64_t smg_add(int64_t *at, int64_t value) nogil
    int64_t smg_swap(int64_t *at, int64_t value) nogil
    int smg_claim(int64_t *at, int64_t expected, int64_t value) nogil

cdef enum:
    MAGIC = 0x534D4702
    # words of the header
    H_MAGIC = 0
    H_ROWS = 1
    H_ENGINES = 2
    H_SERIES = 3
    H_CELLS = 4
    H_ENGINES_AT = 5
    H_ROWS_AT = 6
    H_INFLIGHT_AT = 7
    H_SERIES_AT = 8
    H_CELLS_AT = 9
    H_SIZE = 10
    H_GENERATION = 11
    H_CELLS_USED = 12
    H_DROPPED = 13
    H_RETRIES = 16
    H_COUNTS_AT = 19
    H_CHANGES = 20
    HEADER_WORDS = 32
    # words of an engine's counts
    N_WORDS = 8
    COUNT_FIELDS = 6
    N_TURN = 6
    # words of a process row: pid, phase, last heartbeat, connections
    R_WORDS = 8
    R_PID = 0
    R_PHASE = 1
    R_BEAT = 2
    R_CONNECTIONS = 3
    # words of an in-flight cell: epoch of the slot it counts for, requests, tokens
    I_WORDS = 4
    # words of a series: state, first cell, cells, length of the key, key
    S_WORDS = 64
    S_STATE = 0
    S_FIRST = 1
    S_COUNT = 2
    S_LENGTH = 3
    S_KEY = 4
    KEY_BYTES = 480
    SPINS = 100000


cdef void sum_slot(ShmC *shm, int64_t slot, int64_t *requests, int64_t *tokens) noexcept nogil:
    """Requests and tokens in flight at a slot in its present epoch, over all rows."""
    cdef int64_t _row
    cdef int64_t epoch = smg_load(shm.engines + slot * E_WORDS + E_EPOCH)
    cdef int64_t *cell = shm.inflight + slot * I_WORDS
    requests[0] = 0
    tokens[0] = 0
    for _row in range(shm.row_count):
        if smg_load(cell) == epoch:
            requests[0] += smg_load(cell + 1)
            tokens[0] += smg_load(cell + 2)
        cell += shm.engine_count * I_WORDS


cdef void _clear(ShmC *shm, int64_t row) noexcept nogil:
    cdef int64_t i, moved
    cdef int64_t *cell
    cdef int64_t *base = shm.cells
    for i in range(shm.engine_count):
        cell = shm.inflight + (row * shm.engine_count + i) * I_WORDS
        smg_store(cell + 1, 0)
        smg_store(cell + 2, 0)
        smg_store(cell, 0)
    if row:
        for i in range(smg_load(shm.words + H_CELLS_USED)):
            moved = smg_swap(shm.cells + row * shm.cell_count + i, 0)
            if moved:
                smg_add(base + i, moved)
    cell = shm.rows + row * R_WORDS
    smg_store(cell + R_CONNECTIONS, 0)
    smg_store(cell + R_PHASE, 0)
    smg_store(cell + R_BEAT, 0)
    smg_store(cell + R_PID, 0)
    smg_add(shm.words + H_CHANGES, 1)      # it may have died between a change and its count


cdef int64_t _series(ShmC *shm, const unsigned char *key, int64_t length, int64_t start, int64_t count) noexcept nogil:
    """First cell of the series with that key, made when absent; -1 when there is no room."""
    cdef int64_t step, spins, first
    cdef int64_t *entry
    for step in range(shm.series_count):
        entry = shm.series + ((start + step) % shm.series_count) * S_WORDS
        if smg_claim(entry + S_STATE, 0, 1):
            first = smg_add(shm.words + H_CELLS_USED, count)
            if first + count > shm.cell_count:
                smg_add(shm.words + H_CELLS_USED, -count)
                smg_store(entry + S_STATE, 0)
                return -1
            memcpy(entry + S_KEY, key, <size_t>length)
            smg_store(entry + S_LENGTH, length)
            smg_store(entry + S_COUNT, count)
            smg_store(entry + S_FIRST, first)
            smg_store(entry + S_STATE, 2)
            return first
        spins = 0
        while smg_load(entry + S_STATE) == 1 and spins < SPINS:     # its writer is a few stores away, or dead: then it is passed over
            spins += 1
        if smg_load(entry + S_STATE) == 2 and entry[S_LENGTH] == length and memcmp(entry + S_KEY, key, <size_t>length) == 0:
            return entry[S_FIRST]
    return -1


cdef class Shm:
    """One process's view of the block. Rows are processes, slots engines; every index is checked, IndexError when it is out of range."""

    def __cinit__(self, block):
        self.mapped = False
        PyObject_GetBuffer(block, &self.buffer, PyBUF_WRITABLE)
        self.mapped = True
        memset(&self.c, 0, sizeof(ShmC))
        cdef int64_t *words = <int64_t *>self.buffer.buf
        if self.buffer.len < HEADER_WORDS * 8 or words[H_MAGIC] != MAGIC or words[H_SIZE] != self.buffer.len:
            raise ValueError("not a block of this version")
        self.c.words = words
        self.c.row_count = words[H_ROWS]
        self.c.engine_count = words[H_ENGINES]
        self.c.series_count = words[H_SERIES]
        self.c.cell_count = words[H_CELLS]
        self.c.engines = words + words[H_ENGINES_AT]
        self.c.rows = words + words[H_ROWS_AT]
        self.c.inflight = words + words[H_INFLIGHT_AT]
        self.c.series = words + words[H_SERIES_AT]
        self.c.cells = words + words[H_CELLS_AT]
        self.c.counts = words + words[H_COUNTS_AT]

    def __dealloc__(self):
        if self.mapped:
            PyBuffer_Release(&self.buffer)

    @property
    def rows(self):
        return self.c.row_count

    @property
    def engines(self):
        return self.c.engine_count

    cdef int64_t *_engine(self, int64_t slot) except NULL:
        if not 0 <= slot < self.c.engine_count:
            raise IndexError(f"no engine slot {slot}")
        return self.c.engines + slot * E_WORDS

    cdef int64_t *_row(self, int64_t row) except NULL:
        if not 0 <= row < self.c.row_count:
            raise IndexError(f"no process row {row}")
        return self.c.rows + row * R_WORDS

    cdef int64_t *_inflight(self, int64_t row, int64_t slot) except NULL:
        self._row(row)
        self._engine(slot)
        return self.c.inflight + (row * self.c.engine_count + slot) * I_WORDS

    cdef int64_t *_cell(self, int64_t row, int64_t cell) except NULL:
        self._row(row)
        if not 0 <= cell < self.c.cell_count:
            raise IndexError(f"no metric cell {cell}")
        return self.c.cells + row * self.c.cell_count + cell

    def generation(self):
        """Gives the registry's generation."""
        return smg_load(self.c.words + H_GENERATION)

    def bump(self):
        """Raises the generation by one and gives the new one."""
        return smg_add(self.c.words + H_GENERATION, 1) + 1

    def open_engine(self, int64_t slot, int64_t state):
        """Begins a new life of a slot: loads 0, what was counted under earlier epochs is void. Gives its epoch, never 0."""
        cdef int64_t *at = self._engine(slot)
        cdef int64_t epoch
        cdef int i
        for i in range(LOAD_FIELDS):
            smg_store(at + E_LOAD + i, 0)
        for i in range(COUNT_FIELDS):
            smg_store(self.c.counts + slot * N_WORDS + i, 0)
        smg_store(at + E_SUSPECT, 0)
        smg_store(at + E_STATE, state)
        epoch = smg_add(at + E_EPOCH, 1) + 1
        smg_store(at + E_BREAKER, (epoch & BREAKER_EPOCHS) << BREAKER_EPOCH_SHIFT)
        smg_add(self.c.words + H_CHANGES, 1)
        return epoch

    def engine_state(self, int64_t slot):
        """Gives the state of a slot."""
        return smg_load(self._engine(slot) + E_STATE)

    def set_engine_state(self, int64_t slot, int64_t state):
        """Sets the state of a slot."""
        if smg_swap(self._engine(slot) + E_STATE, state) != state:
            smg_add(self.c.words + H_CHANGES, 1)

    def changes(self):
        """Gives how often an engine's epoch, state or breaker's state has changed: what may have requests is what it was then."""
        return smg_load(self.c.words + H_CHANGES)

    def engine_epoch(self, int64_t slot):
        """Gives the epoch of a slot, 0 when it never was used."""
        return smg_load(self._engine(slot) + E_EPOCH)

    def suspect(self, int64_t slot):
        """Marks an engine as suspected; True when it was not marked yet."""
        return smg_swap(self._engine(slot) + E_SUSPECT, 1) == 0

    def take_suspect(self, int64_t slot):
        """Takes the mark away; True when there was one."""
        return smg_swap(self._engine(slot) + E_SUSPECT, 0) == 1

    def set_load(self, int64_t slot, const int64_t[::1] fields):
        """Stores what an engine says of its load: 9 numbers, in the order of `smg.obs.shm.LOAD_FIELDS`."""
        cdef int64_t *at = self._engine(slot)
        if fields.shape[0] != LOAD_FIELDS:
            raise ValueError(f"a load has {LOAD_FIELDS} fields")
        cdef int i
        for i in range(LOAD_FIELDS):
            smg_store(at + E_LOAD + i, fields[i])

    def load(self, int64_t slot, int64_t[::1] fields):
        """Fills `fields` with what `set_load` stored."""
        cdef int64_t *at = self._engine(slot)
        if fields.shape[0] != LOAD_FIELDS:
            raise ValueError(f"a load has {LOAD_FIELDS} fields")
        cdef int i
        for i in range(LOAD_FIELDS):
            fields[i] = smg_load(at + E_LOAD + i)

    def count(self, int64_t slot, int64_t epoch, int64_t field):
        """Adds one to a count of a slot's epoch, by its place in `smg.obs.shm.COUNT_FIELDS`; does nothing once another epoch has begun."""
        cdef int64_t *at = self._engine(slot)
        if not 0 <= field < COUNT_FIELDS:
            raise IndexError(f"no count {field}")
        if smg_load(at + E_EPOCH) == epoch:
            smg_add(self.c.counts + slot * N_WORDS + field, 1)

    def counts(self, int64_t slot):
        """Gives what `count` has counted in the slot's epoch."""
        self._engine(slot)
        return tuple([smg_load(self.c.counts + slot * N_WORDS + i) for i in range(COUNT_FIELDS)])

    def turn(self, int64_t slot):
        """Gives how often it was called for a slot before, by whatever process: 0, 1, 2, …"""
        self._engine(slot)
        return smg_add(self.c.counts + slot * N_WORDS + N_TURN, 1)

    def acquire(self, int64_t row, int64_t slot, int64_t epoch, int64_t tokens):
        """Counts a request of `tokens` at a slot's epoch. Only the row's own process calls it, from one thread."""
        cdef int64_t *cell = self._inflight(row, slot)
        if smg_load(cell) != epoch:
            smg_store(cell, 0)
            smg_store(cell + 1, 0)
            smg_store(cell + 2, 0)
            smg_store(cell, epoch)
        smg_add(cell + 1, 1)
        smg_add(cell + 2, tokens)

    def release(self, int64_t row, int64_t slot, int64_t epoch, int64_t tokens):
        """Takes back what `acquire` counted; does nothing when the slot has begun another epoch since."""
        cdef int64_t *cell = self._inflight(row, slot)
        if smg_load(cell) == epoch:
            smg_add(cell + 1, -1)
            smg_add(cell + 2, -tokens)

    def held(self, int64_t row, int64_t slot, int64_t epoch):
        """Gives the requests that one row has under way at a slot's epoch."""
        cdef int64_t *cell = self._inflight(row, slot)
        return smg_load(cell + 1) if smg_load(cell) == epoch else 0

    def sums(self, const int64_t[::1] slots, int64_t[::1] out):
        """Fills `out` with requests and tokens in flight, over all rows, for each of `slots` in turn: out[2i], out[2i + 1]."""
        cdef Py_ssize_t i
        if out.shape[0] < 2 * slots.shape[0]:
            raise ValueError("out has no room for two numbers a slot")
        for i in range(slots.shape[0]):
            self._engine(slots[i])
        with nogil:
            for i in range(slots.shape[0]):
                sum_slot(&self.c, slots[i], &out[2 * i], &out[2 * i + 1])

    def breaker(self, int64_t slot):
        """Gives the word of a slot's circuit breaker; `smg.worker.breaker` says what is in it."""
        return smg_load(self._engine(slot) + E_BREAKER)

    def swap_breaker(self, int64_t slot, int64_t expected, int64_t word):
        """Replaces that word if it still is `expected`; False when it was not."""
        if not smg_claim(self._engine(slot) + E_BREAKER, expected, word):
            return False
        if (expected ^ word) & BREAKER_STATE:
            smg_add(self.c.words + H_CHANGES, 1)
        return True

    def earn_retry(self, int64_t amount, int64_t most):
        """Adds to what retries may spend, while there is less than `most`."""
        if smg_load(self.c.words + H_RETRIES) < most:
            smg_add(self.c.words + H_RETRIES, amount)

    def spend_retry(self, int64_t amount):
        """Takes the price of a retry; False when there is not enough left."""
        if smg_add(self.c.words + H_RETRIES, -amount) >= amount:
            return True
        smg_add(self.c.words + H_RETRIES, amount)
        return False

    def set_row(self, int64_t row, int64_t pid, int64_t phase, int64_t now_ms):
        """Says which process has a row and how far it is; counts as a heartbeat."""
        cdef int64_t *at = self._row(row)
        smg_store(at + R_BEAT, now_ms)
        smg_store(at + R_PHASE, phase)
        smg_store(at + R_PID, pid)

    def row(self, int64_t row):
        """Gives (pid, phase, time of the last heartbeat in ms); pid 0 = free."""
        cdef int64_t *at = self._row(row)
        return smg_load(at + R_PID), smg_load(at + R_PHASE), smg_load(at + R_BEAT)

    def beat(self, int64_t row, int64_t now_ms):
        """Records a heartbeat."""
        smg_store(self._row(row) + R_BEAT, now_ms)

    def set_connections(self, int64_t row, int64_t count):
        """Says how many clients are connected to a row's process."""
        smg_store(self._row(row) + R_CONNECTIONS, count)

    def connections(self, int64_t row):
        """Gives what `set_connections` said."""
        return smg_load(self._row(row) + R_CONNECTIONS)

    def clear_row(self, int64_t row):
        """Frees the row of a process that has ended: its requests are gone, its metrics go to row 0. Called by the supervisor alone."""
        self._row(row)
        with nogil:
            _clear(&self.c, row)

    def series(self, const unsigned char[::1] key, int64_t start, int64_t cells):
        """Gives the first of a series' cells, made when new; -1, counted, when there is no room. `start`: a hash of the key."""
        cdef int64_t length = key.shape[0]
        cdef int64_t first = -1
        if start < 0 or cells < 1:
            raise ValueError("start and cells must not be negative")
        if 0 < length <= KEY_BYTES:
            with nogil:
                first = _series(&self.c, &key[0], length, start, cells)
        if first < 0:
            smg_add(self.c.words + H_DROPPED, 1)
        return first

    def add(self, int64_t row, int64_t cell, int64_t amount):
        """Adds to one metric cell of a row."""
        smg_add(self._cell(row, cell), amount)

    def totals(self):
        """Gives every series as (key, values): the values summed over all rows."""
        cdef int64_t i, j, row, total
        cdef int64_t *entry
        found = []
        for i in range(self.c.series_count):
            entry = self.c.series + i * S_WORDS
            if smg_load(entry + S_STATE) != 2:
                continue
            values = []
            for j in range(entry[S_COUNT]):
                total = 0
                for row in range(self.c.row_count):
                    total += smg_load(self.c.cells + row * self.c.cell_count + entry[S_FIRST] + j)
                values.append(total)
            found.append((<bytes>(<char *>(entry + S_KEY))[:entry[S_LENGTH]], values))
        return found

    def dropped(self):
        """Gives how often a series found no room."""
        return smg_load(self.c.words + H_DROPPED)
