"""Credentials of systemd as the lowest layer of the configuration."""

import pathlib

import pytest

from smg.config.credentials import CREDENTIALS
from smg.config.fields import fields
from smg.config.load import load


@pytest.mark.parametrize("prefix", ["", "smg_"])
def test_credentials_become_settings(tmp_path: pathlib.Path, prefix: str) -> None:
    for name in CREDENTIALS:
        (tmp_path / (prefix + name)).write_text("x")
    loaded = load([], environment={"CREDENTIALS_DIRECTORY": str(tmp_path)}, default_file=tmp_path / "none")
    for name, setting in CREDENTIALS.items():
        section, _, key = setting.partition(".")
        assert getattr(getattr(loaded.config, section), key) == str(tmp_path / (prefix + name))
        assert loaded.origins[setting] == f"credential {prefix}{name}"


def test_what_is_said_elsewhere_wins(tmp_path: pathlib.Path) -> None:
    (tmp_path / "api-keys").write_text("from systemd")
    own = tmp_path / "own"
    own.write_text("mine")
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path), "SMG_SERVER_API_KEY_FILE": str(own)}
    assert load([], environment=environment, default_file=tmp_path / "none").config.server.api_key_file == str(own)


def test_a_credential_that_is_no_use_is_a_mistake_as_ever(tmp_path: pathlib.Path) -> None:
    (tmp_path / "api-keys").write_text("\n")
    with pytest.raises(Exception, match=r"api_key_file \(credential api-keys\): .* has no key in it"):
        load([], environment={"CREDENTIALS_DIRECTORY": str(tmp_path)}, default_file=tmp_path / "none")


def test_each_names_a_setting() -> None:
    assert set(CREDENTIALS.values()) <= {field.path for field in fields()}
