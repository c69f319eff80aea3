"""The unit files: systemd takes them, they expose little, and they agree with the program."""

import configparser
import pathlib
import re
import shutil
import subprocess

import pytest

from smg.config.credentials import CREDENTIALS
from smg.config.tree import Config

ROOT = pathlib.Path(__file__).parents[2]
UNITS = sorted((ROOT / "systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is missing: apt-get install systemd")


def settings(unit: pathlib.Path) -> dict[str, list[str]]:
    """Every setting of a unit with its values, whatever its section."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line and line[0] not in "#;[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_it(unit: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The program need not be installed here: /bin/true stands for it."""
    for each in UNITS:
        text = each.read_text().replace("/usr/bin/smg ", "/bin/true ")
        (tmp_path / each.name.replace("@.", "@x.")).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name.replace("@.", "@x."))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line or unit.name in line]
    assert done.returncode == 0, done.stderr
    assert not told, done.stderr


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_exposes_little(unit: pathlib.Path) -> None:
    command = ["systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=15", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_stop_takes_longer_than_the_grace_period() -> None:
    for unit in (ROOT / "systemd" / "smg.service", ROOT / "systemd" / "smg@.service"):
        [seconds] = settings(unit)["TimeoutStopSec"]
        assert int(seconds) > Config().server.shutdown_grace_period_s + 10


def test_socket_is_at_the_default_port() -> None:
    [place] = settings(ROOT / "systemd" / "smg.socket")["ListenStream"]
    assert place == f"{Config().server.host}:{Config().server.port}"
    assert settings(ROOT / "systemd" / "smg.socket")["FileDescriptorName"] == ["http"]


def test_instances_differ_in_their_places_only() -> None:
    alone, template = settings(ROOT / "systemd" / "smg.service"), settings(ROOT / "systemd" / "smg@.service")
    places = {"Description", "ExecStart", "ExecReload", "StateDirectory", "RuntimeDirectory", "LogsDirectory"}
    assert {name for name in alone | template if alone.get(name) != template.get(name)} == places


def test_every_credential_is_explained() -> None:
    comment = (ROOT / "systemd" / "smg.service").read_text()
    assert [name for name in CREDENTIALS if name not in comment] == []


def test_units_are_well_formed() -> None:
    for unit in UNITS:
        parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=False)
        parser.read_string(unit.read_text())
        assert {"Unit", "Install"} < set(parser.sections()), unit.name
        assert not re.search(r"[ \t]$", unit.read_text(), re.MULTILINE), unit.name
