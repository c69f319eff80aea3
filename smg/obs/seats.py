"""Who may run and who waits, over all processes. Gives `Seats`: the native class of `smg_ext.seats` or, with SMG_NO_EXT, its twin.

Made by `smg.middleware` in each data worker, by the supervisor, which clears what dead processes left, and by the control process, which
tells how many there are.
"""

from array import array
from typing import TYPE_CHECKING

from smg._ext import NO_EXT, NativeSeats
from smg.obs.shm import RANKS, SEATS_HEADER_WORDS, PlainShm

__all__ = ["PlainSeats", "Seats"]

ROOM_OF_SEATS, ROOM_OF_WAITERS, TICKETS, SEATS_USED, WAITERS_USED = range(5)
RULES = 1 + RANKS
ROW, RANK_AT, ASKED, SAFE, BY_AT, SEAT_TICKET_AT = 0xFFFF, 16, 1 << 18, 1 << 19, 20, 22
TICKET_AT, ORDER_AT = 16, 59
SILENT_MS = 5000


class Survey:
    """What a look at all words shows. `best`: by order, the first waiter's word and number."""

    def __init__(self) -> None:
        self.used = [0] * RANKS
        self.waiting = [0] * RANKS
        self.asked = 0
        self.free = 0
        self.best: dict[int, tuple[int, int]] = {}

    def kept(self, rank: int, rules: "array[int]") -> int:
        """Gives the number of seats that are kept free for higher ranks."""
        return sum(max(rules[1 + higher] - self.used[higher], 0) for higher in range(rank))


def rank_of(word: int) -> int:
    """Gives the rank of a waiter."""
    order = word >> ORDER_AT
    return order - RANKS if order >= RANKS else RANKS - 1 - order


class PlainSeats:
    """The twin of `smg_ext.seats.Seats`; what each method means is said there. Not atomic: right for one process."""

    def __init__(self, shm: PlainShm) -> None:
        self._shm = shm
        self._words = shm.unsigned
        self._at = shm.seats_at
        self._seat_room, self._waiter_room = self._words[self._at + ROOM_OF_SEATS], self._words[self._at + ROOM_OF_WAITERS]
        self._seats_at = self._at + SEATS_HEADER_WORDS
        self._waiters_at = self._seats_at + -(-self._seat_room // 8) * 8

    def take(self, row: int, rank: int, rules: "array[int]", now_ms: int) -> int:
        self._check(row, rank, len(rules))
        survey = self._survey(rules[0], now_ms)
        if any(order in survey.best for order in range(RANKS + rank + 1)) or survey.free <= survey.kept(rank, rules):
            return -1
        return self._sit(row + 1, rank, rules[0])

    def enter(self, row: int, rank: int, room: int) -> int:
        self._check(row, rank, RULES)
        if self._survey(0, 0).waiting[rank] >= room:
            return -1
        word = (rank + RANKS) << ORDER_AT | self._ticket() << TICKET_AT | row + 1
        return self._place(self._waiters_at, self._waiter_room, word, WAITERS_USED)

    def next(self, rules: "array[int]", now_ms: int) -> int:
        self._check(0, 0, len(rules))
        survey = self._survey(rules[0], now_ms)
        for order, (word, waiter) in sorted(survey.best.items()):
            if survey.free > (0 if order < RANKS else survey.kept(order - RANKS, rules)):
                return waiter << 16 | (word & ROW) - 1
        return -1

    def claim(self, waiter: int, rules: "array[int]") -> int:
        at = self._waiter(waiter)
        word = self._words[at]
        self._check(0, 0, len(rules))
        seat = self._sit(word & ROW, rank_of(word), rules[0]) if word else -1
        if seat >= 0:
            self._words[at] = 0
        return seat

    def leave(self, waiter: int) -> None:
        self._words[self._waiter(waiter)] = 0

    def starve(self, waiter: int) -> bool:
        at = self._waiter(waiter)
        word = self._words[at]
        if not word or word >> ORDER_AT < RANKS:
            return False
        self._words[at] = (RANKS - 1 - rank_of(word)) << ORDER_AT | word & (1 << ORDER_AT) - 1
        return True

    def give(self, seat: int) -> None:
        self._words[self._seat(seat)] = 0

    def ask(self, rank: int, preemptors: int, rules: "array[int]", now_ms: int) -> int:
        self._check(0, rank, len(rules))
        survey = self._survey(rules[0], now_ms)
        wanting = sum(survey.waiting[other] for other in range(RANKS) if preemptors >> other & 1)
        kept = survey.kept(rank, rules)
        if survey.asked >= wanting or survey.free > kept or survey.free + survey.asked + 1 <= kept:
            return -1
        victims = []
        for at in range(self._seats_at, self._seats_at + self._used(SEATS_USED, self._seat_room)):
            word = self._words[at]
            if word and not word & (ASKED | SAFE) and word >> RANK_AT & 3 > rank:
                victims.append((word >> RANK_AT & 3, word, at))
        if not victims:
            return -1
        _, word, at = max(victims)
        self._words[at] = word | ASKED | rank << BY_AT
        return (word & ROW) - 1

    def asked(self, seat: int) -> int:
        word = self._words[self._seat(seat)]
        return word >> BY_AT & 3 if word & ASKED else -1

    def protect(self, seat: int) -> bool:
        at = self._seat(seat)
        word = self._words[at]
        if not word or word & SAFE:
            return False
        self._words[at] = word & ~ASKED | SAFE
        return True

    def counts(self, out: "array[int]") -> None:
        if len(out) < 2 * RANKS:
            raise ValueError("out has no room for eight numbers")
        survey = self._survey(0, 0)
        out[: 2 * RANKS] = array("q", (*survey.used, *survey.waiting))

    def clear(self, row: int) -> None:
        self._check(row, 0, RULES)
        for first, room in ((self._seats_at, self._seat_room), (self._waiters_at, self._waiter_room)):
            for at in range(first, first + room):
                if self._words[at] & ROW == row + 1:
                    self._words[at] = 0

    def _survey(self, limit: int, now_ms: int) -> Survey:
        survey = Survey()
        for at in range(self._seats_at, self._seats_at + self._used(SEATS_USED, self._seat_room)):
            if word := self._words[at]:
                survey.used[word >> RANK_AT & 3] += 1
                survey.asked += bool(word & ASKED)
        survey.free = limit - sum(survey.used)
        for waiter in range(self._used(WAITERS_USED, self._waiter_room)):
            if word := self._words[self._waiters_at + waiter]:
                survey.waiting[rank_of(word)] += 1
                best = survey.best.get(word >> ORDER_AT)
                if (best is None or word < best[0]) and not self._silent(word, now_ms):
                    survey.best[word >> ORDER_AT] = (word, waiter)
        return survey

    def _used(self, which: int, room: int) -> int:
        return min(self._words[self._at + which], room)

    def _silent(self, word: int, now_ms: int) -> bool:
        row = (word & ROW) - 1
        if row >= self._shm.rows:
            return True
        beat = self._shm.row(row)[2]
        return beat != 0 and now_ms - beat > SILENT_MS

    def _ticket(self) -> int:
        self._words[self._at + TICKETS] += 1
        return self._words[self._at + TICKETS]

    def _sit(self, owner: int, rank: int, limit: int) -> int:
        word = self._ticket() << SEAT_TICKET_AT | rank << RANK_AT | owner
        return self._place(self._seats_at, min(limit, self._seat_room), word, SEATS_USED)

    def _place(self, first: int, room: int, word: int, used: int) -> int:
        for number in range(room):
            if not self._words[first + number]:
                self._words[self._at + used] = max(self._words[self._at + used], number + 1)
                self._words[first + number] = word
                return number
        return -1

    def _seat(self, seat: int) -> int:
        if not 0 <= seat < self._seat_room:
            raise IndexError(f"no seat {seat}")
        return self._seats_at + seat

    def _waiter(self, waiter: int) -> int:
        if not 0 <= waiter < self._waiter_room:
            raise IndexError(f"no waiter {waiter}")
        return self._waiters_at + waiter

    def _check(self, row: int, rank: int, rules: int) -> None:
        if not 0 <= row < self._shm.rows:
            raise IndexError(f"no process row {row}")
        if not 0 <= rank < RANKS:
            raise IndexError(f"no rank {rank}")
        if rules != RULES:
            raise ValueError(f"rules are {RULES} numbers")


if TYPE_CHECKING:
    Seats = NativeSeats
else:
    Seats = PlainSeats if NO_EXT else NativeSeats
