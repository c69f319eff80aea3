"""The machine: open files, shared memory, clock. Asked of the kernel, for the process that asks."""

import ctypes
import datetime
import os
import resource
from collections.abc import Iterator

from smg.commands.diagnosis.finding import Finding, good, warning, wrong
from smg.config import Config
from smg.obs.shm import FIRST_WORKER_ROW, Shm, make_block

__all__ = ["look_at_clock", "look_at_limits", "look_at_memory"]

# A connection is a descriptor, and an engine's stream shares one.
FEW_FILES, ENOUGH_FILES = 1024, 16384
# The program is younger than this, so a clock that says otherwise is wrong.
NOT_BEFORE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TIME_ERROR = 5
TIMEX_BYTES = 512  # struct timex is 208 bytes on Linux; the kernel writes no more


def look_at_limits(config: Config) -> Iterator[Finding]:
    """How many files a process may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = "any number of files may be open" if hard == resource.RLIM_INFINITY else f"{hard} files may be open in a process"
    advice = (
        f"raise the hard limit of open files (nofile) to {ENOUGH_FILES} or more: LimitNOFILE= in the unit, or /etc/security/limits.conf"
    )
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_FILES:
        yield (wrong if hard <= FEW_FILES else warning)("open files", f"{seen}, and each connection is one", advice)
    else:
        yield good("open files", seen)


def look_at_memory(config: Config) -> Iterator[Finding]:
    """Whether the block that all processes share can be had."""
    workers = config.server.workers or len(os.sched_getaffinity(0))
    try:
        block = make_block(rows=FIRST_WORKER_ROW + workers)
    except (OSError, ValueError) as error:
        yield wrong("shared memory", f"it cannot be had: {error}", "give the service more memory (MemoryMax=), or allow memfd_create(2)")
        return
    size = os.fstat(block.fd).st_size
    Shm(block.memory)
    os.close(block.fd)
    yield good("shared memory", f"{size / (1 << 20):.1f} MiB can be had for {workers} workers")


def look_at_clock(config: Config) -> Iterator[Finding]:
    """Certificates, log lines and templates that tell the date all trust the clock."""
    now = datetime.datetime.now(tz=datetime.UTC)
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < NOT_BEFORE:
        yield wrong("clock", f"it says {shown}, which is long past", "set the clock: timedatectl set-ntp true")
    elif _unsynchronised():
        yield warning("clock", f"it says {shown}, and nothing keeps it right", "run a time service: timedatectl set-ntp true, or chrony")
    else:
        yield good("clock", shown)


def _unsynchronised() -> bool:
    """The kernel's own word, see adjtimex(2); False where it may not be asked."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)  # modes 0 = only read
    return int(ctypes.CDLL(None).adjtimex(buffer)) == TIME_ERROR
