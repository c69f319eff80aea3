"""Builds the C programs of `bench/src` into `bench/build` when a source is newer; gives their paths. Used by all that starts them."""

import os
import pathlib
import shutil
import subprocess

__all__ = ["BUILD", "ROOT", "SOURCES", "BuildFailed", "program"]

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = ROOT / "bench" / "src"
BUILD = ROOT / "bench" / "build"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Wno-sign-compare", "-Werror")
PARTS = {"engine": ("engine", "grpc", "protocol", "common"), "loadgen": ("loadgen", "response", "common")}
LIBRARIES = {"engine": ("-lnghttp2",), "loadgen": ()}


class BuildFailed(Exception):
    """There is no compiler, or it found a fault; the message says which."""


def program(name: str) -> pathlib.Path:
    """Gives the path of `engine` or `loadgen`, built if need be. Raises BuildFailed."""
    target = BUILD / name
    newest = max(path.stat().st_mtime for path in SOURCES.glob("*.[ch]"))
    if target.exists() and target.stat().st_mtime >= newest:
        return target
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildFailed("bench needs a C compiler and libnghttp2-dev, as building smg_ext does")
    BUILD.mkdir(exist_ok=True)
    fresh = target.with_name(f"{name}.{os.getpid()}")  # moved when whole, since several may build at once
    parts = [str(SOURCES / f"{part}.c") for part in PARTS[name]]
    done = subprocess.run([compiler, *FLAGS, *parts, "-o", str(fresh), *LIBRARIES[name]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{name} does not build:\n{done.stderr[-4000:]}")
    fresh.replace(target)
    return target
