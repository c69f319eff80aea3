"""The guest's root folder: a minimal Debian, made once by debootstrap and kept in ~/.cache/smg-vm; copied for each run."""

import hashlib
import os
import pathlib
import shutil
import subprocess

from guest import Unbootable

__all__ = ["CACHE", "base_image", "copy_image"]

CACHE = pathlib.Path(os.environ.get("SMG_VM_CACHE") or pathlib.Path.home() / ".cache" / "smg-vm")
# No Python among them, so that the program is seen to need none. libfaketime lets the clock jump for one service.
PACKAGES = ("systemd-sysv", "dbus", "iproute2", "curl", "procps", "init-system-helpers", "libfaketime")
# What the container does not need to boot, and what would wait for a network.
MASKED = ("console-getty.service", "getty@.service", "systemd-networkd-wait-online.service", "apt-daily.timer", "apt-daily-upgrade.timer")


def mirror() -> str:
    """Gives where this machine's own apt gets Debian from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if not found:
        raise Unbootable("apt knows no Debian mirror: apt-get update")
    return found[0]


def base_image(suite: str) -> pathlib.Path:
    """Gives the folder of a suite's base image, made when it is missing, in a minute and 270 MB. Unbootable when it cannot be."""
    key = hashlib.sha256(repr((suite, PACKAGES, MASKED)).encode()).hexdigest()[:12]
    image = CACHE / f"{suite}-{key}"
    if image.is_dir():
        return image
    CACHE.mkdir(parents=True, exist_ok=True)
    draft = CACHE / f".new-{suite}-{os.getpid()}"
    print(f"test-vm: making the base image of {suite}", flush=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(draft), mirror()]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Unbootable(f"debootstrap failed:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")
        units = draft / "etc" / "systemd" / "system"
        for unit in MASKED:
            (units / unit).symlink_to("/dev/null")
        for leftover in (draft / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            leftover.unlink()
        if not image.is_dir():  # else another run was first
            draft.rename(image)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return image


def copy_image(image: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a base image. Never leaves its file system: a mounted /proc inside would fill the disk."""
    subprocess.run(["cp", "-a", "-x", "--reflink=auto", str(image), str(target)], check=True)
