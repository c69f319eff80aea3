"""The names a setting may have where a registry gives them. Asked at call time: plug-ins are imported only when a name is checked."""

import importlib

from smg.registry import Registry

__all__ = ["BACKENDS", "choices_of"]

# Not asked from the registry of engines: the supervisor forks and must not import grpc, which every driver does. A test compares the two.
BACKENDS = ("vllm", "sglang", "trtllm", "mlx", "tokenspeed")

# kind -> package, registry in it, and names that mean something besides the registered ones.
REGISTRIES = {
    "policy": ("smg.policy", "POLICIES", ()),
    "reasoning_parser": ("smg.parser", "REASONING", ("none", "passthrough")),
    "tool_parser": ("smg.parser", "TOOLS", ("none", "passthrough")),
}


def choices_of(kind: str) -> list[str]:
    """Gives the allowed names of a kind; empty when its registry has none."""
    if kind == "engine":
        return ["auto", *BACKENDS]
    package, name, more = REGISTRIES[kind]
    registry = getattr(importlib.import_module(package), name, None)
    if not isinstance(registry, Registry) or not registry.names():
        return []
    return [*registry.names(aliases=True), *more]
