"""Some rows of the fault table, shorter; `make test-faults` is the whole. Others have tests of their own in this folder."""

import pytest

from tests.e2e.faults import play, survived


@pytest.mark.parametrize("fault", ["engine accepts and never answers", "streams reset in the middle"])
def test_only_streams_that_had_begun_fail(fault: str) -> None:
    row = play(fault, clients=16, seconds=1.0)
    assert survived(row), row
    assert row.answered > 32
    assert bool(row.failed) == (fault == "streams reset in the middle")
