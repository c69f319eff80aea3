# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Who may run and who waits, over all processes: seats and waiters as words of shared memory, on C11 atomics without a lock.

In: rows of processes, ranks (0 = highest of four), rules. Out: numbers of seats and waiters. Nothing is counted beside the words: one store
takes or gives a seat together with the name of its owner, so that a process may die at any moment and its words tell all that was its own.
`smg.obs.seats` has the twin, which is the specification.

    seat    0 = free     | ticket 42 | by rank 2 | safe 1 | asked 1 | rank 2 | row + 1: 16
    waiter  0 = free     | order 3 | ticket 43 | row + 1: 16; the least goes first

`order`: 0 to 3 for those that starve, the lowest rank first, then 4 to 7 for the others, the highest rank first. `rules` are five numbers:
the seats there are, and how many of them are kept for each rank. Waiters of a process that has not given a sign of life are passed over.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from smg_ext.atomics cimport smg_count, smg_peek, smg_poke, smg_replace
from smg_ext.shm cimport Shm

__all__ = ["Seats"]

cdef enum:
    SEATS_AT = 17
    HEADER_WORDS = 8
    H_SEATS = 0
    H_WAITERS = 1
    H_TICKETS = 2
    H_SEATS_USED = 3
    H_WAITERS_USED = 4
    ROW_WORDS = 8
    R_BEAT = 2
    RULES = 5
    RANKS = 4
    ROW = 0xFFFF
    RANK_AT = 16
    ASKED = 1 << 18
    SAFE = 1 << 19
    BY_AT = 20
    SEAT_TICKET_AT = 22
    TICKET_AT = 16
    ORDER_AT = 59
    SILENT_MS = 5000


cdef inline uint64_t _ticket(SeatsC *t) noexcept nogil:
    """A number that grows; two who ask at the same moment may get the same, which does not matter."""
    smg_count(t.header + H_TICKETS, 1)
    return smg_peek(t.header + H_TICKETS)


cdef inline void _raise(uint64_t *at, uint64_t to) noexcept nogil:
    cdef uint64_t seen = smg_peek(at)
    while seen < to and not smg_replace(at, seen, to):
        seen = smg_peek(at)


cdef inline bint _silent(SeatsC *t, uint64_t word, int64_t now_ms) noexcept nogil:
    cdef int64_t row = <int64_t>(word & ROW) - 1
    cdef int64_t beat
    if row >= t.row_count:
        return True
    beat = <int64_t>smg_peek(<uint64_t *>(t.rows + row * ROW_WORDS + R_BEAT))
    return beat != 0 and now_ms - beat > SILENT_MS


cdef inline int _rank_of(uint64_t word) noexcept nogil:
    cdef int order = <int>(word >> ORDER_AT)
    return order - RANKS if order >= RANKS else RANKS - 1 - order


cdef void _survey(SeatsC *t, SurveyC *s, int64_t limit, int64_t now_ms) noexcept nogil:
    cdef int64_t i, total = 0
    cdef int64_t end = <int64_t>smg_peek(t.header + H_SEATS_USED)
    cdef int order
    cdef uint64_t word
    memset(s, 0, sizeof(SurveyC))
    for i in range(min(end, t.seat_room)):
        word = smg_peek(t.seats + i)
        if word:
            total += 1
            s.used[word >> RANK_AT & 3] += 1
            if word & ASKED:
                s.asked += 1
    s.free = limit - total
    end = <int64_t>smg_peek(t.header + H_WAITERS_USED)
    for i in range(min(end, t.waiter_room)):
        word = smg_peek(t.waiters + i)
        if word == 0:
            continue
        s.waiting[_rank_of(word)] += 1
        order = <int>(word >> ORDER_AT) & 7
        if (s.best[order] == 0 or word < s.best[order]) and not _silent(t, word, now_ms):
            s.best[order] = word
            s.best_at[order] = i


cdef inline int64_t _kept(SurveyC *s, int rank, const int64_t *rules) noexcept nogil:
    """Seats that are kept free for higher ranks."""
    cdef int higher
    cdef int64_t kept = 0
    for higher in range(rank):
        kept += max(rules[1 + higher] - s.used[higher], 0)
    return kept


cdef int64_t _sit(SeatsC *t, uint64_t row, uint64_t rank, int64_t limit) noexcept nogil:
    """Takes a free seat; -1 when there is none."""
    cdef int64_t i
    cdef uint64_t word = _ticket(t) << SEAT_TICKET_AT | rank << RANK_AT | row
    for i in range(min(limit, t.seat_room)):
        if smg_peek(t.seats + i) == 0:
            _raise(t.header + H_SEATS_USED, <uint64_t>(i + 1))  # before it is taken, or who looks might not see it
            if smg_replace(t.seats + i, 0, word):
                return i
    return -1


cdef int64_t _next(SeatsC *t, SurveyC *s, const int64_t *rules) noexcept nogil:
    cdef int order
    for order in range(2 * RANKS):
        if s.best[order] and s.free > (0 if order < RANKS else _kept(s, order - RANKS, rules)):
            return s.best_at[order]
    return -1


cdef int64_t _take(SeatsC *t, int64_t row, int rank, const int64_t *rules, int64_t now_ms) noexcept nogil:
    cdef SurveyC s
    cdef int order
    _survey(t, &s, rules[0], now_ms)
    for order in range(RANKS + rank + 1):
        if s.best[order]:
            return -1
    if s.free <= _kept(&s, rank, rules):
        return -1
    return _sit(t, <uint64_t>(row + 1), <uint64_t>rank, rules[0])


cdef int64_t _enter(SeatsC *t, int64_t row, int rank, int64_t room) noexcept nogil:
    cdef SurveyC s
    cdef int64_t i
    cdef uint64_t word
    _survey(t, &s, 0, 0)
    if s.waiting[rank] >= room:
        return -1
    word = <uint64_t>(rank + RANKS) << ORDER_AT | _ticket(t) << TICKET_AT | <uint64_t>(row + 1)
    for i in range(t.waiter_room):
        if smg_peek(t.waiters + i) == 0:
            _raise(t.header + H_WAITERS_USED, <uint64_t>(i + 1))
            if smg_replace(t.waiters + i, 0, word):
                return i
    return -1


cdef int64_t _ask(SeatsC *t, int rank, int preemptors, const int64_t *rules, int64_t now_ms) noexcept nogil:
    cdef SurveyC s
    cdef int64_t i, victim, _tries, wanting = 0
    cdef uint64_t word, seen
    _survey(t, &s, rules[0], now_ms)
    for i in range(RANKS):
        if preemptors >> i & 1:
            wanting += s.waiting[i]
    if s.asked >= wanting or s.free > _kept(&s, rank, rules) or s.free + s.asked + 1 <= _kept(&s, rank, rules):
        return -1
    for _tries in range(8):
        victim = -1
        seen = 0
        for i in range(min(<int64_t>smg_peek(t.header + H_SEATS_USED), t.seat_room)):
            word = smg_peek(t.seats + i)
            if word == 0 or word & (ASKED | SAFE) or <int>(word >> RANK_AT & 3) <= rank:
                continue
            if victim < 0 or word >> RANK_AT & 3 > seen >> RANK_AT & 3 or (word >> RANK_AT & 3 == seen >> RANK_AT & 3 and word > seen):
                victim = i
                seen = word
        if victim < 0:
            return -1
        if smg_replace(t.seats + victim, seen, seen | ASKED | <uint64_t>rank << BY_AT):
            return <int64_t>(seen & ROW) - 1
    return -1


cdef void _clear(SeatsC *t, uint64_t owner) noexcept nogil:
    cdef int64_t i
    cdef uint64_t word
    for i in range(t.seat_room):
        word = smg_peek(t.seats + i)
        while word and word & ROW == owner and not smg_replace(t.seats + i, word, 0):
            word = smg_peek(t.seats + i)
    for i in range(t.waiter_room):
        word = smg_peek(t.waiters + i)
        if word and word & ROW == owner:
            smg_replace(t.waiters + i, word, 0)


cdef class Seats:
    """One process's view of the table in the block of `shm`. IndexError for what is out of range, ValueError for rules that are none."""

    def __cinit__(self, Shm shm not None):
        cdef uint64_t *table = <uint64_t *>(shm.c.words + shm.c.words[SEATS_AT])
        self.shm = shm
        self.c.header = table
        self.c.seat_room = <int64_t>table[H_SEATS]
        self.c.waiter_room = <int64_t>table[H_WAITERS]
        self.c.seats = table + HEADER_WORDS
        self.c.waiters = self.c.seats + (self.c.seat_room + 7) // 8 * 8
        self.c.rows = shm.c.rows
        self.c.row_count = shm.c.row_count

    cdef uint64_t *_seat(self, int64_t seat) except NULL:
        if not 0 <= seat < self.c.seat_room:
            raise IndexError(f"no seat {seat}")
        return self.c.seats + seat

    cdef uint64_t *_waiter(self, int64_t waiter) except NULL:
        if not 0 <= waiter < self.c.waiter_room:
            raise IndexError(f"no waiter {waiter}")
        return self.c.waiters + waiter

    def take(self, int64_t row, int rank, const int64_t[::1] rules, int64_t now_ms):
        """Gives a seat to who has just come, -1 when there is none or somebody of the same or a higher rank waits."""
        cdef int64_t seat
        _check(self.c.row_count, row, rank, rules.shape[0])
        with nogil:
            seat = _take(&self.c, row, rank, &rules[0], now_ms)
        return seat

    def enter(self, int64_t row, int rank, int64_t room):
        """Makes a waiter behind all others of its rank and gives its number; -1 when `room` of them wait already."""
        cdef int64_t waiter
        _check(self.c.row_count, row, rank, RULES)
        with nogil:
            waiter = _enter(&self.c, row, rank, room)
        return waiter

    def next(self, const int64_t[::1] rules, int64_t now_ms):
        """Gives the waiter who may have a seat now, as number * 65536 + row; -1 when nobody waits or no seat is free for them."""
        cdef int64_t waiter
        cdef uint64_t word
        cdef SurveyC s
        _check(self.c.row_count, 0, 0, rules.shape[0])
        with nogil:
            _survey(&self.c, &s, rules[0], now_ms)
            waiter = _next(&self.c, &s, &rules[0])
        if waiter < 0:
            return -1
        word = smg_peek(self.c.waiters + waiter)
        return waiter << 16 | <int64_t>(word & ROW) - 1 if word else -1

    def claim(self, int64_t waiter, const int64_t[::1] rules):
        """Gives a seat to a waiter that `next` named, who waits no longer; -1 when somebody was quicker. Its own process calls it."""
        cdef uint64_t *at = self._waiter(waiter)
        cdef uint64_t word = smg_peek(at)
        cdef int64_t seat
        _check(self.c.row_count, 0, 0, rules.shape[0])
        if word == 0:
            return -1
        seat = _sit(&self.c, word & ROW, <uint64_t>_rank_of(word), rules[0])
        if seat >= 0:
            smg_poke(at, 0)
        return seat

    def leave(self, int64_t waiter):
        """Takes a waiter away. Its own process calls it."""
        smg_poke(self._waiter(waiter), 0)

    def starve(self, int64_t waiter):
        """Puts a waiter before all that do not starve, and lets it have a seat that is kept for others; False when it had that already."""
        cdef uint64_t *at = self._waiter(waiter)
        cdef uint64_t word = smg_peek(at)
        if word == 0 or word >> ORDER_AT < RANKS:
            return False
        smg_poke(at, <uint64_t>(RANKS - 1 - _rank_of(word)) << ORDER_AT | word & ((<uint64_t>1 << ORDER_AT) - 1))
        return True

    def give(self, int64_t seat):
        """Gives a seat back. Its owner calls it."""
        smg_poke(self._seat(seat), 0)

    def ask(self, int rank, int preemptors, const int64_t[::1] rules, int64_t now_ms):
        """Asks the owner of a seat to give it up for a waiter of `rank`; gives the owner's row, -1 when nobody is to be asked.

        Asked is the latest of the lowest rank below, unless it is safe. `preemptors`: bit r = rank r may ask; there are never more seats
        asked for than waiters of such ranks.
        """
        cdef int64_t row
        _check(self.c.row_count, 0, rank, rules.shape[0])
        with nogil:
            row = _ask(&self.c, rank, preemptors, &rules[0], now_ms)
        return row

    def asked(self, int64_t seat):
        """Gives the rank that a seat was asked for; -1 when it was not."""
        cdef uint64_t word = smg_peek(self._seat(seat))
        return <int64_t>(word >> BY_AT & 3) if word & ASKED else -1

    def protect(self, int64_t seat):
        """Makes a seat safe from being asked for, also when it was; False when it was safe before. Its owner calls it."""
        cdef uint64_t *at = self._seat(seat)
        cdef uint64_t word = smg_peek(at)
        while word and not word & SAFE:
            if smg_replace(at, word, word & ~<uint64_t>ASKED | SAFE):
                return True
            word = smg_peek(at)
        return False

    def counts(self, int64_t[::1] out):
        """Fills `out` with the seats in use and then the waiters, by rank: eight numbers."""
        cdef SurveyC s
        cdef int rank
        if out.shape[0] < 2 * RANKS:
            raise ValueError("out has no room for eight numbers")
        with nogil:
            _survey(&self.c, &s, 0, 0)
        for rank in range(RANKS):
            out[rank] = s.used[rank]
            out[RANKS + rank] = s.waiting[rank]

    def clear(self, int64_t row):
        """Takes away what a process that has ended left behind. Called by the supervisor alone."""
        _check(self.c.row_count, row, 0, RULES)
        with nogil:
            _clear(&self.c, <uint64_t>(row + 1))


cdef int _check(int64_t rows, int64_t row, int rank, Py_ssize_t rules) except -1:
    if not 0 <= row < rows:
        raise IndexError(f"no process row {row}")
    if not 0 <= rank < RANKS:
        raise IndexError(f"no rank {rank}")
    if rules != RULES:
        raise ValueError(f"rules are {RULES} numbers")
    return 0
