"""Every test that asks for `runtime` runs once for each registered driver."""

from pathlib import Path

import pytest

from smg.engine import ENGINES
from tests.engine import drive
from tests.engine.certificates import make_certificates


@pytest.fixture(params=ENGINES.names())
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["aio", "native"])
def data_plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes `drive.driver` use one data plane after the other, for the modules that use this fixture."""
    monkeypatch.setattr(drive, "DATA_PLANE", request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and certificates of a server and a client."""
    return make_certificates(tmp_path_factory.mktemp("tls"))
