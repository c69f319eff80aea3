"""Modules that the supervisor imports before it forks, so that its children need not: they start sooner and share the memory.

Only what starts no thread and keeps no descriptor may stand here; never grpc or numpy, nor what imports them.
"""

import gc
import importlib

__all__ = ["MODULES", "preload"]

MODULES = (
    "asyncio",
    "uvloop",
    "google.protobuf.message_factory",
    "jinja2",
    "smg.middleware",
    "smg.obs.metrics",
    "smg.parser",
    "smg.policy",
    "smg.template",
    "smg.tokenizer",
    "smg.types.openai.chat",
    "smg.types.openai.completions",
)


GRANIAN = ("granian._granian", "granian._futures", "granian.http")


def preload(*, granian: bool = False) -> None:
    """Imports them, and keeps the garbage collector of the children away from what they share. `granian`: it is the front."""
    for name in (*MODULES, *(GRANIAN if granian else ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
