"""What the tests of the command line share."""

import os
from pathlib import Path

import pytest

from smg.config.environment import OTHER_VARIABLES


@pytest.fixture(autouse=True)
def _own_settings_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The settings of the machine that the tests run on must not reach them."""
    for name in [name for name in os.environ if name.startswith("SMG_") and name not in OTHER_VARIABLES]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("smg.config.files.DEFAULT_FILE", tmp_path / "none" / "smg.toml")
