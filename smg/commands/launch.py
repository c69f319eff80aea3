"""`smg launch`: reads the configuration and hands it to the supervisor, which runs until it is told to stop."""

import sys

from smg.config.help import render_help
from smg.config.load import load

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """Gives the supervisor's exit code. Raises ConfigError with every mistake."""
    loaded = load(arguments)
    if loaded.help:
        sys.stdout.write(render_help())
        return 0
    for warning in loaded.warnings:
        sys.stderr.write(f"smg: warning: {warning}\n")
    from smg.server import supervisor

    return supervisor.run(loaded.config, reload=lambda: load(arguments).config)
