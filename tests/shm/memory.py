"""The shared block for tests that need its memory only: nobody else maps it, so its descriptor is closed at once."""

import mmap
import os
from typing import Any

from smg.obs.shm import make_block

__all__ = ["shared_memory"]


def shared_memory(**sizes: Any) -> mmap.mmap:
    """Memory as `make_block` makes it; it is the kernel's again when the last who works on it is collected."""
    block = make_block(**sizes)
    os.close(block.fd)
    return block.memory
