"""What all tests share: the folder of shared fixtures, and tests against real engines only when asked for."""

import os
import pathlib

import hypothesis
import pytest

# A busy machine is slow, which is no fault of what is tested; and what CI finds must be found again by whoever looks for it.
hypothesis.settings.register_profile(
    "smg", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("smg")

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of shared fixtures and references: $SMG_SHARED, else `shared` beside the repository. Skips where there is none."""
    folder = pathlib.Path(os.environ.get("SMG_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no shared fixtures: {folder} is not there, and SMG_SHARED names no other folder")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests marked `engines` unless -m speaks of them: they need minutes of set-up."""
    if "engines" in config.getoption("markexpr"):
        return
    chosen = [item for item in items if not item.get_closest_marker("engines")]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("engines")])
    items[:] = chosen
