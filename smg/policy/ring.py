"""A ring of hashes (Karger et al. 1997): keys come in, one of the candidates goes out, the same one while it is there.

The places follow from the URLs alone, so every process and every node with the same engines gives a key to the same engine. An engine that
is away for a while keeps its places: its keys go to the next on the ring and come back.
"""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from struct import unpack

from smg.policy.base import Candidate

__all__ = ["Ring", "hash_key"]

DIGESTS = 19  # of 8 places each: the original has 150 an engine
SPARE = 16


def hash_key(data: bytes) -> int:
    """Gives a key's place on the ring."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


class Ring:
    """Knows the engines that it was asked with, and forgets those that are gone once they are as many as the others."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._places: list[int] = []
        self._owners: list[str] = []

    def find(self, key: int, candidates: Sequence[Candidate]) -> int:
        """Gives the index of the candidate that comes first at or after the key's place."""
        index_of = {candidate.url: index for index, candidate in enumerate(candidates)}
        if not self._known.issuperset(index_of):
            self._build(index_of.keys() | (self._known if len(self._known) <= len(index_of) + SPARE else ()))
        start = bisect_left(self._places, key)
        for step in range(len(self._owners)):
            index = index_of.get(self._owners[(start + step) % len(self._owners)])
            if index is not None:
                return index
        raise AssertionError("a candidate that is not on the ring")

    def _build(self, urls: set[str]) -> None:
        places = [
            (place, url)
            for url in urls
            for digest in range(DIGESTS)
            for place in unpack("<8Q", blake2b(f"{url}#{digest}".encode()).digest())
        ]
        places.sort()
        self._known = frozenset(urls)
        self._places = [place for place, _ in places]
        self._owners = [url for _, url in places]
