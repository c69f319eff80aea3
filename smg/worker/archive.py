"""A tokenizer archive as an engine sends it, unpacked once into a folder named by its sha256. Nothing in it is trusted but its sum."""

import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from smg.errors import EngineProtocol

__all__ = ["unpack"]

MOST_FILES = 1000
MOST_BYTES = 1 << 30
CHUNK = 1 << 20
# What zipfile raises for data that is wrong, and what the file system says to entries that are in each other's way.
BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError)
CROSSED = (FileExistsError, NotADirectoryError, IsADirectoryError)


def unpack(data: bytes, *, folder: Path, most_bytes: int = MOST_BYTES) -> Path:
    """Gives the folder with the files; slow, use a thread. Raises EngineProtocol for what is no zip, leads outside or is too large."""
    target = folder / hashlib.sha256(data).hexdigest()
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        try:
            _extract(data, draft, most_bytes)
            _keep(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return _root(target)


def _keep(draft: Path, target: Path) -> None:
    draft.chmod(0o750)
    try:
        os.rename(draft, target)
    except OSError:
        if not target.is_dir():  # else another process was first, with the same files
            raise


def _extract(data: bytes, folder: Path, most_bytes: int) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _extract_all(archive, folder, most_bytes)
    except (*BROKEN, *CROSSED) as error:
        raise EngineProtocol("the engine's tokenizer archive cannot be read", detail=str(error)) from error


def _extract_all(archive: zipfile.ZipFile, folder: Path, most_bytes: int) -> None:
    entries = archive.infolist()
    if len(entries) > MOST_FILES:
        raise EngineProtocol("the engine's tokenizer archive has too many files")
    left = most_bytes
    for entry in entries:
        path = folder / _safe_name(entry)
        if entry.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, path.open("xb") as target:
            while chunk := source.read(CHUNK):
                left -= len(chunk)  # what is really there: sizes in the headers may lie
                if left < 0:
                    raise EngineProtocol("the engine's tokenizer archive is too large")
                target.write(chunk)


def _safe_name(entry: zipfile.ZipInfo) -> PurePosixPath:
    name = PurePosixPath(entry.filename)
    mode = entry.external_attr >> 16
    plain = not stat.S_IFMT(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    if name.is_absolute() or ".." in name.parts or "\\" in entry.filename or not plain:
        raise EngineProtocol("the engine's tokenizer archive holds a name that leads outside it")
    return name


def _root(folder: Path) -> Path:
    """Some engines pack the folder instead of its files."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder
