"""`smg check`: reads the configuration as `launch` would, and says what is wrong with it, all at once."""

import sys

from smg.config.load import load

__all__ = ["run"]

USAGE = """usage: smg check [FLAG ...]

Reads files, variables and flags as `smg launch` does and says every mistake, each with its path. Exit code 0: none; 2: some.
Starts nothing and opens no connection. `smg launch --help` lists the flags.
"""


def run(arguments: list[str]) -> int:
    """Gives 0 when all is well. Raises ConfigError with every mistake."""
    loaded = load(arguments)
    if loaded.help:
        sys.stdout.write(USAGE)
        return 0
    for warning in loaded.warnings:
        sys.stderr.write(f"smg: warning: {warning}\n")
    print(f"configuration is right ({loaded.summary})")
    return 0
