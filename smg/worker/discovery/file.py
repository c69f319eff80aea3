"""A file of engines, read again whenever it changes. Specs go out to `found`; a file that is wrong changes nothing and is told of.

    [[workers]]
    url = "grpc://10.0.0.1:50051"       # the fields are those of POST /workers

Looked at once a second, by its times and size, which works on every file system; inotify sees nothing on network mounts, and Kubernetes'
ConfigMaps change by a link. It is read when two looks have found the same, so not in the middle of being written.
"""

import asyncio
import logging
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from smg.errors import InvalidValue
from smg.types.workers import WorkerBody
from smg.worker.record import EngineSpec
from smg.worker.said import spec_said

__all__ = ["WorkersFile", "read_workers"]

log = logging.getLogger(__name__)

LOOK_S = 1.0
MOST_BYTES = 4 << 20
Stamp = tuple[int, int, int]


class Listed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    workers: tuple[dict[str, object], ...] = ()


class WorkersFile:
    """Watches one file until cancelled."""

    def __init__(self, path: str, *, found: Callable[[list[EngineSpec]], None], failed: Callable[[], None]) -> None:
        self._path = Path(path)
        self._found = found
        self._failed = failed
        self._read: Stamp | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Looks, reads, waits."""
        before: Stamp | None = None
        first = True
        while True:
            stamp = await asyncio.to_thread(self._stamp)
            if stamp is None:
                self._tell(f"{self._path} cannot be found")
            elif stamp != self._read and (stamp == before or first):
                await self._take(stamp)
            before, first = stamp, False
            await asyncio.sleep(LOOK_S)

    def _stamp(self) -> Stamp | None:
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return seen.st_mtime_ns, seen.st_size, seen.st_ino

    async def _take(self, stamp: Stamp) -> None:
        self._read = stamp
        try:
            specs = await asyncio.to_thread(read_workers, self._path)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError):  # its rights or its disk may be mended, which changes no stamp
                self._read = None
            self._failed()
            self._tell(str(error))
            return
        self._trouble = ""
        log.info("engines read", extra={"file": str(self._path), "engines": len(specs)})
        self._found(specs)

    def _tell(self, trouble: str) -> None:
        """Once for each trouble."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.error("the file of engines is not taken, what it said before stays: %s", trouble, extra={"file": str(self._path)})


def read_workers(path: Path) -> list[EngineSpec]:
    """Gives the engines of a file. Raises OSError, and ValueError with what is wrong and where."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        fields = tomllib.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    listed = msgspec.convert(fields, Listed)
    specs: dict[str, EngineSpec] = {}
    for number, fields in enumerate(listed.workers, start=1):
        spec = _spec(fields, number)
        if spec.url in specs:
            raise ValueError(f"worker {number}: {spec.url!r} is there twice")
        specs[spec.url] = spec
    return list(specs.values())


def _spec(fields: dict[str, object], number: int) -> EngineSpec:
    unknown = fields.keys() - {field.encode_name for field in msgspec.structs.fields(WorkerBody)}
    if unknown:
        raise ValueError(f"worker {number}: unknown key {min(unknown)!r}")
    try:
        return spec_said(msgspec.convert(fields, WorkerBody), source="file")
    except InvalidValue as error:
        raise ValueError(f"worker {number}: {error.message}") from error
    except msgspec.ValidationError as error:
        raise ValueError(f"worker {number}: {error}") from error
