"""The registry on its way from the control process to the data workers: a file, replaced as a whole, then a number in shared memory."""

import os
from pathlib import Path

import msgspec

from smg.obs.shm import Shm
from smg.worker.record import Snapshot

__all__ = ["FILE_NAME", "publish", "read_snapshot"]

FILE_NAME = "engines.json"
DECODER = msgspec.json.Decoder(Snapshot)


def publish(snapshot: Snapshot, *, folder: Path, shm: Shm) -> int:
    """Writes the snapshot, then tells by the generation that it is there; gives the generation. Only the control process calls it."""
    path = folder / FILE_NAME
    draft = path.with_suffix(".new")
    data = msgspec.json.encode(msgspec.structs.replace(snapshot, generation=shm.generation() + 1))
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:  # it holds engines' keys
        file.write(data)
    os.replace(draft, path)
    return shm.bump()


def read_snapshot(folder: Path) -> Snapshot:
    """Gives the last published snapshot, an empty one before the first. A file that is none raises msgspec.DecodeError."""
    try:
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return Snapshot()
    return DECODER.decode(data)
