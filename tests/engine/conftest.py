"""Every test that asks for `runtime` runs once for each registered driver."""

import pytest

from smg.engine import ENGINES


@pytest.fixture(params=ENGINES.names())
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)
