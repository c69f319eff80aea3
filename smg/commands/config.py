"""`smg config`: prints the configuration in effect as TOML, or the reference of every key."""

import sys

from smg.config.load import load
from smg.config.reference import render_markdown, render_toml

__all__ = ["run"]

USAGE = """usage: smg config [--reference | --markdown] [FLAG ...]

Prints the configuration in effect as TOML, each value that is no default with where it came from. Secrets are hidden.
  --reference   a file with every key, its meaning and its default, each commented out; a start for smg.toml
  --markdown    the same as tables
`smg launch --help` lists the flags.
"""


def run(arguments: list[str]) -> int:
    """Gives 0. Raises ConfigError when a value is wrong by itself; `smg check` looks at the whole."""
    if "--reference" in arguments or "--markdown" in arguments:
        sys.stdout.write(render_toml(comment_out=True) if "--reference" in arguments else render_markdown())
        return 0
    loaded = load(arguments, check=False)
    sys.stdout.write(USAGE if loaded.help else render_toml(loaded.config, origins=loaded.origins))
    return 0
