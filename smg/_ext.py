"""The only importer of `smg_ext`. `SMG_NO_EXT=1` asks for the plain-Python twins where a native function has one."""

import os

__all__ = ["NO_EXT", "NativeShm"]

NO_EXT = os.environ.get("SMG_NO_EXT", "") not in ("", "0")

from smg_ext.shm import Shm as NativeShm  # noqa: E402  a re-export
