"""The prefix index under many writers. `python -m bench.prefix --stress 60` does the same for longer."""

import pytest

from bench.writers import check_epochs, check_writers


@pytest.mark.parametrize("full", [False, True])
def test_four_processes_write_at_once(full: bool) -> None:
    """What each wrote is there at the end, no more and, unless entries had to give way, no less."""
    assert check_writers(2.0, full=full) == 0


def test_a_slots_new_engine_inherits_nothing() -> None:
    """Known bug B116: entries of removed engines, when writers are in the midst of making them."""
    assert check_epochs(1.5) == 0
