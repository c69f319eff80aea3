"""The C programs of bench/src, built once; without a compiler these tests skip."""

import shutil

import pytest

from bench.rig.model import BenchModel
from bench.rig.programs import program


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    if not any(map(shutil.which, ("cc", "gcc"))):
        pytest.skip("bench needs a C compiler, and there is none")
    for name in ("engine", "loadgen"):
        assert program(name).exists()


@pytest.fixture(scope="session")
def model() -> BenchModel:
    return BenchModel()
