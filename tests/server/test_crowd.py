"""Which of several data workers is fuller than the others."""

from smg.obs.shm import FIRST_WORKER_ROW, Shm
from smg.server.boot import Phase
from smg.server.crowd import Crowd
from tests.shm.memory import shared_memory


def test_who_has_far_more_than_another_one_that_serves_is_fuller() -> None:
    shm = Shm(shared_memory(rows=FIRST_WORKER_ROW + 3))
    one, other, starting = (Crowd(shm, row=FIRST_WORKER_ROW + number) for number in range(3))
    shm.set_row(FIRST_WORKER_ROW, 1, Phase.READY, 0)
    one.count(100)
    assert not one.is_fuller(), "nobody else serves"
    shm.set_row(FIRST_WORKER_ROW + 1, 2, Phase.READY, 0)
    assert one.is_fuller()
    assert not other.is_fuller()
    other.count(90)
    starting.count(0)
    assert not one.is_fuller()
    assert not other.is_fuller()
    shm.clear_row(FIRST_WORKER_ROW + 1)
    assert shm.connections(FIRST_WORKER_ROW + 1) == 0
    one.count(3)
    shm.set_row(FIRST_WORKER_ROW + 1, 2, Phase.READY, 0)
    assert not one.is_fuller(), "a few more are no matter"
