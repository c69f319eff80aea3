"""A control group for each guest, below that of whoever runs the tests.

systemd-nspawn --keep-unit puts a guest's systemd into the groups `payload` and `supervisor` of the group that it was started in. Two guests
of one group share them, and every unit of the same name: a systemd that ends its smg.service then waits in stop-sigkill for as long as the
other guest's runs, since the group is never empty.
"""

import contextlib
import os
import pathlib
import time

__all__ = ["Groups"]

EMPTY_WITHIN_S = 10.0


def places() -> list[pathlib.Path]:
    """Gives this process's own folders in the hierarchies that systemd keeps processes in: of version 2, and the named one of version 1."""
    own = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        own[controllers if number != "0" else ""] = path.lstrip("/")
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind, _, options = fields[fields.index("-") + 1 :]
        names = options.split(",")
        if kind == "cgroup2" and "" in own:
            found.append(pathlib.Path(fields[4], own[""]))
        elif kind == "cgroup" and "name=systemd" in names and "name=systemd" in own:
            found.append(pathlib.Path(fields[4], own["name=systemd"]))
    return found


class Groups:
    """The groups of one guest, made at once; OSError where none can be. `close` ends what is still in them, and removes them."""

    def __init__(self) -> None:
        name = f"smg-vm-{os.getpid()}-{time.monotonic_ns()}"  # one for all, since systemd-nspawn makes its groups in each by the same path
        self._folders = [place / name for place in places()]
        for folder in self._folders:
            folder.mkdir()

    def join(self) -> None:
        """Puts the calling process into them: between fork and exec."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text("0")

    def close(self) -> None:
        """Removes them from the inside out. What cannot be removed stays, and troubles nobody."""
        end = time.monotonic() + EMPTY_WITHIN_S
        for folder in self._folders:
            for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                _remove(inner, end=end)
            _remove(folder, end=end)


def _remove(folder: pathlib.Path, *, end: float) -> None:
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > end:
                return
        else:
            return
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1")  # version 2 alone has it
        time.sleep(0.05)
