"""argparse as our small subcommands want it: no abbreviations, one line to stderr, the nearest name for a flag that is unknown."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from smg.registry import nearest

__all__ = ["Arguments"]


class Arguments(argparse.ArgumentParser):
    """A parser that leaves with exit code 2 on a mistake (SystemExit)."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Gives the options; an unknown flag is a mistake, told with the one that was probably meant."""
        options, unknown = self.parse_known_args(arguments)
        flags = [flag for action in self._actions for flag in action.option_strings]
        if unknown:
            self.error("; ".join(f"{word}: unknown {'flag' if word[:1] == '-' else 'argument'}{nearest(word, flags)}" for word in unknown))
        return options

    def error(self, message: str) -> NoReturn:
        """Says the mistake and leaves."""
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(2)
