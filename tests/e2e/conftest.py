"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.e2e.fleet import Fleet, fleet


@pytest.fixture(scope="module")
def module_fleet() -> Iterator[Fleet]:
    """A fleet that the tests of a file share."""
    with fleet() as made:
        yield made


@pytest.fixture
def own_fleet() -> Iterator[Fleet]:
    """A fleet for one test, which may break it."""
    with fleet() as made:
        yield made
