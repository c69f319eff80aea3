"""The folders of a running gateway: one for what outlives it, one for what does not. Opened by the supervisor."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from smg.config.tree import State
from smg.errors import ConfigError

__all__ = ["CONTROL_SOCKET", "Folders"]

CONTROL_SOCKET = "control.sock"


class Folders:
    """`state` outlives a restart, `runtime` holds sockets and the registry's snapshot. Raises ConfigError when one cannot be used."""

    def __init__(self, config: State, *, environment: Mapping[str, str]) -> None:
        self._temporary = False
        self._lock = -1
        self.state = _made(config.state_dir or _given(environment, "STATE_DIRECTORY") or _home(environment), "state.state_dir")
        runtime = config.runtime_dir or _given(environment, "RUNTIME_DIRECTORY")
        if runtime:
            self.runtime = _made(runtime, "state.runtime_dir")
            self._take()
        else:
            self.runtime = Path(tempfile.mkdtemp(prefix="smg-"))
            self._temporary = True

    def _take(self) -> None:
        self._lock = os.open(self.runtime / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError([f"state.runtime_dir: {self.runtime} is in use by another gateway"]) from error
        for stale in self.runtime.glob("engines.*"):
            stale.unlink()

    def close(self) -> None:
        """Removes what need not stay."""
        if self._temporary:
            shutil.rmtree(self.runtime, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)


def _given(environment: Mapping[str, str], name: str) -> str:
    """systemd gives several folders with colons; the first is ours."""
    return environment.get(name, "").split(":")[0]


def _home(environment: Mapping[str, str]) -> str:
    base = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "smg")


def _made(path: str, setting: str) -> Path:
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    except OSError as error:
        raise ConfigError([f"{setting}: {folder} cannot be made: {error.strerror or error}"]) from error
    return folder
