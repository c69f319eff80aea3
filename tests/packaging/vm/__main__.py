"""`make test-vm`: boots Debian in a container, installs the package, tries it, prints a table. Exit code 0 = all good, 1 = not, 0 with a
loud line where no container can be booted (1 with --must-run).

In: dist/smg_VERSION_amd64.deb. Plain Python, as root; needs systemd-container and debootstrap. The guests get a network of their own.
"""

import argparse
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from asking import Packages
from checks import BRIEF, CHECKS, Check
from guest import Guest, Unbootable, why_not
from image import base_image, copy_image

TOP = pathlib.Path(__file__).parents[3]
# What all others stand on.
NEEDED = ("install", "engines not up yet")


def say(words: str) -> None:
    """Prints a line at once."""
    print(words, flush=True)


def newest_package() -> pathlib.Path:
    """Gives the package of the checkout's own version."""
    found = sorted((TOP / "dist").glob("smg_*_amd64.deb"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit("test-vm: no dist/smg_VERSION_amd64.deb: make deb")
    return found[-1]


def variant(package: pathlib.Path, target: pathlib.Path, *, suffix: str, conffile: str = "") -> None:
    """Makes another version of a package, with another conffile if wished; packed quickly."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        subprocess.run(["dpkg-deb", "-R", str(package), folder], check=True)
        control = pathlib.Path(folder, "DEBIAN", "control")
        lines = control.read_text().splitlines()
        control.write_text("".join(f"{line}{suffix if line.startswith('Version:') else ''}\n" for line in lines))
        if conffile:
            settings = pathlib.Path(folder, "etc", "smg", "smg.toml")
            settings.write_text(conffile + settings.read_text())
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", folder, str(target)], check=True, stdout=subprocess.DEVNULL)


def prepare(root: pathlib.Path, package: pathlib.Path) -> None:
    """Puts into the guest what the checks need."""
    place = root / "opt"
    shutil.copy(package, root / Packages.now.lstrip("/"))
    variant(package, root / Packages.earlier.lstrip("/"), suffix="~earlier", conffile="# of an earlier version\n")
    variant(package, root / Packages.later.lstrip("/"), suffix="+later")
    (place / "tls").mkdir()
    names = "subjectAltName=IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gateway", "-addext", names]
    command += ["-keyout", str(place / "tls" / "server.key"), "-out", str(place / "tls" / "server.crt")]
    subprocess.run(command, check=True, capture_output=True)


def attempt(name: str, check: Check, guest: Guest) -> tuple[str, str, float, str]:
    """Runs one check; gives a row of the table."""
    began = time.monotonic()
    guest.run("systemctl reset-failed")  # the checks start the service more often than anybody else does
    try:
        seen, state = check(guest), "passed"
    except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
        seen, state = " ".join(str(error).split()), "FAILED"
    row = (name, state, time.monotonic() - began, seen)
    say(f"test-vm: {state} {name} ({row[2]:.1f} s): {seen[:3000]}")
    return row


def failure(guest: Guest) -> str:
    """Gives what the guest's systemd says of the service."""
    return guest.run(
        "journalctl -u smg -u 'smg@*' -u 'smg-sim@*' -n 40 --no-pager -o short-precise; systemctl status --no-pager smg | head -n 12",
        check=False,
    )


def try_suite(suite: str, package: pathlib.Path, folder: pathlib.Path, *, only: Collection[str]) -> list[tuple[str, str, float, str]]:
    """Runs every check on one suite of Debian."""
    root = folder / suite
    copy_image(base_image(suite), root)
    prepare(root, package)
    rows = []
    for boot, checks in CHECKS.items():
        log = folder / f"{suite}-{boot.replace(' ', '-')}.log"
        began = time.monotonic()
        with Guest(root, log=log) as guest:
            rows.append((boot, "passed", time.monotonic() - began, f"{guest.run('systemctl --version').splitlines()[0]} is up"))
            for name, check in checks:
                if not only or name in (*only, *NEEDED):
                    rows.append(attempt(name, check, guest))
                    if rows[-1][1] == "FAILED":
                        say(failure(guest))
    return [(f"{suite}: {row[0]}", *row[1:]) for row in rows]


def report(rows: list[tuple[str, str, float, str]], *, seconds: float) -> int:
    """Prints the table; gives the exit code."""
    width = max(len(row[0]) for row in rows)
    say("\n" + "\n".join(f"{name:{width}}  {state:6}  {seconds:5.1f} s  {seen[:170]}" for name, state, seconds, seen in rows))
    failed = sum(row[1] == "FAILED" for row in rows)
    say(f"\ntest-vm: {len(rows) - failed} passed, {failed} failed in {seconds:.0f} s")
    return 1 if failed else 0


def options_of() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="test-vm")
    parser.add_argument("--suite", action="append", help="of Debian; repeatable (bookworm)")
    parser.add_argument("--only", action="append", default=[], help="name of a check; repeatable")
    parser.add_argument("--brief", action="store_true", help="only the checks of what differs between releases of Debian")
    parser.add_argument("--prepare", action="store_true", help="make the base images and end")
    parser.add_argument("--must-run", action="store_true", help="fail where no container can be booted")
    return parser.parse_args()


def main() -> int:
    """Gives the exit code."""
    options = options_of()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the guest is ended too
    began = time.monotonic()
    rows: list[tuple[str, str, float, str]] = []
    only = (*options.only, *(BRIEF if options.brief else ()))
    try:
        if reason := why_not():
            raise Unbootable(reason)
        for suite in options.suite or ["bookworm"]:
            if options.prepare:
                base_image(suite)
                continue
            with tempfile.TemporaryDirectory(prefix="smg-vm-") as folder:
                rows += try_suite(suite, newest_package(), pathlib.Path(folder), only=only)
    except Unbootable as error:
        say(f"test-vm: NOT RUN, NOTHING WAS PROVEN: this machine boots no container: {error}")
        return 1 if options.must_run or rows else 0
    return report(rows, seconds=time.monotonic() - began) if rows else 0


if __name__ == "__main__":
    sys.exit(main())
