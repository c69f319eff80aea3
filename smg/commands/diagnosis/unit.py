"""The unit of systemd that runs the gateway with these settings: whether it gives streams the time to end that the settings give them."""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from smg.commands.diagnosis.finding import Finding, good, warning
from smg.config import Config
from smg.config.files import DEFAULT_FILE

__all__ = ["look_at_unit", "unit_of"]

ANSWER_S = 5.0
# After the grace period streams are cut, and the processes end one after the other.
AFTERWARDS_S = 10
INSTANCES = "instances"
# What PyInstaller's launcher sets, and where it keeps what was set before it.
LIBRARIES, LIBRARIES_BEFORE = "LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG"
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0, "y": 31557600.0}


def look_at_unit(config: Config, *, files: Sequence[Path]) -> Iterator[Finding]:
    """`files`: what the settings were read from. Nothing where systemd is not, or runs no gateway with these files."""
    unit = unit_of(files)
    if unit is None or not shutil.which("systemctl"):
        return
    shown = _shown(unit)
    if shown.get("LoadState") != "loaded":
        return
    grace = config.server.shutdown_grace_period_s
    stop = _seconds(shown.get("TimeoutStopUSec", ""))
    if stop < grace + AFTERWARDS_S:
        line = f"TimeoutStopSec={math.ceil(grace + AFTERWARDS_S)}"
        advice = f"systemctl edit {unit}, and there {line} under [Service]; or lower server.shutdown_grace_period_s"
        yield warning("unit", f"streams get {grace:g} s to end, and systemd kills {unit} {stop:g} s after it was told to stop", advice)
    else:
        yield good("unit", f"streams get {grace:g} s to end, and {unit} {'any time' if stop == float('inf') else f'{stop:g} s'}")
    if shown.get("NeedDaemonReload") == "yes":
        yield warning("unit", f"the files of {unit} have changed since systemd read them", "systemctl daemon-reload")


def unit_of(files: Sequence[Path]) -> str | None:
    """Gives the unit that reads these files, None for files of no unit: see ExecStart= in smg.service and smg@.service."""
    if not files:
        return None
    first = files[0]
    if first == DEFAULT_FILE:
        return "smg.service"
    if first.name == DEFAULT_FILE.name and first.parent.parent == DEFAULT_FILE.parent / INSTANCES:
        return f"smg@{first.parent.name}.service"
    return None


def _shown(unit: str) -> dict[str, str]:
    """Gives some properties of the unit; none when systemd does not run here or does not answer."""
    command = ["systemctl", "show", "--property=LoadState,TimeoutStopUSec,NeedDaemonReload", "--", unit]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, env=_environment(), check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def _environment() -> dict[str, str]:
    """The frozen program has its own libraries looked for first, and those of this machine's programs may be newer: theirs again."""
    kept = {name: value for name, value in os.environ.items() if name not in (LIBRARIES, LIBRARIES_BEFORE)}
    before = os.environ.get(LIBRARIES_BEFORE)
    return kept if before is None else {**kept, LIBRARIES: before}


def _seconds(span: str) -> float:
    """Reads a time span as systemd writes it, see systemd.time(7): `3min 20s`, `infinity`. Gives infinity for what cannot be read."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([a-z]+)", span)
    if not parts or any(unit not in SECONDS for _, unit in parts):
        return float("inf")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)
