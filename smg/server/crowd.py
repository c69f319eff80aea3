"""How full a data worker is beside the others: its connections go into shared memory, and whether it should leave some to others comes out.

Used by the native front. Without it, on a busy machine, the worker that happens to run takes each connection of a slow burst.
"""

from smg.obs.shm import FIRST_WORKER_ROW, Shm
from smg.server.boot import Phase

__all__ = ["Crowd"]

# Connections that a worker may have more than another one, and beyond them an eighth of its own.
SLACK = 4


class Crowd:
    """One worker's view, in its own `row`."""

    def __init__(self, shm: Shm, *, row: int) -> None:
        self._shm = shm
        self._row = row

    def count(self, connections: int) -> None:
        """Takes the number of this worker's connections."""
        self._shm.set_connections(self._row, connections)

    def is_fuller(self) -> bool:
        """True when another worker that serves has far fewer connections."""
        shm = self._shm
        own = shm.connections(self._row)
        limit = own - own // 8 - SLACK
        rows = range(FIRST_WORKER_ROW, shm.rows) if limit > 0 else ()
        return any(row != self._row and shm.row(row)[1] == Phase.READY and shm.connections(row) < limit for row in rows)
