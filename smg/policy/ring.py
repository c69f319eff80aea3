"""A ring of hashes (Karger et al. 1997): keys come in, one of the candidates goes out, the same one while it is there.

The places follow from the URLs alone, so every process and every node with the same engines gives a key to the same engine. An engine that
is away for a while keeps its places: its keys go to the next on the ring and come back.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from hashlib import blake2b
from struct import unpack

from smg.types.candidate import OVERLOADED, Candidates

__all__ = ["Ring", "hash_key", "works_to_share"]

DIGESTS = 19  # of 8 places each: the original has 150 an engine
SPARE = 16


def hash_key(data: bytes) -> int:
    """Gives a key's place on the ring."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def works_to_share(works: Sequence[int]) -> Sequence[int]:
    """Gives the works of which an engine's share is reckoned: those of the engines that are not overloaded, all when every one is."""
    if sum(works) < OVERLOADED:  # nearly always
        return works
    return [work for work in works if work < OVERLOADED] or works


class Ring:
    """Knows the engines that it was asked with, and forgets those that are gone once they are as many as the others.

    One that comes is merged in, since building all of a ring of 256 engines takes tens of milliseconds.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._places: list[int] = []
        self._owners: dict[int, str] = {}
        self._seen: Candidates | None = None

    def find(self, key: int, candidates: Candidates, free: Callable[[int], bool] = lambda index: True) -> int:
        """Gives the index of the candidate that comes first at or after the key's place, of those that are `free`; one must be."""
        index_of = candidates.index_of_url
        if candidates is not self._seen:
            if not self._known.issuperset(index_of):
                self._take(index_of.keys())
            self._seen = candidates
        places, start = self._places, bisect_left(self._places, key)
        for step in range(len(places)):
            index = index_of.get(self._owners[places[(start + step) % len(places)]])
            if index is not None and free(index):
                return index
        raise AssertionError("a candidate that is not on the ring")

    def _take(self, urls: Set[str]) -> None:
        if len(self._known) > len(urls) + SPARE:
            self._known, self._places, self._owners = set(), [], {}
        for url in urls - self._known:
            owned = places_of(url)
            self._owners.update(dict.fromkeys(owned, url))
            self._places += owned
        self._places.sort()  # in little time: most of them are in order
        self._known |= urls


def places_of(url: str) -> list[int]:
    """Gives an engine's places."""
    return [place for digest in range(DIGESTS) for place in unpack("<8Q", blake2b(f"{url}#{digest}".encode()).digest())]
