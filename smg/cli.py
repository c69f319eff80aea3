"""The command line: finds the subcommand, runs it, turns expected errors into one message and an exit code. Nothing heavy is imported here.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted. Called by the `smg` script and `python -m smg`.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from smg import __version__
from smg.errors import ConfigError, SmgError

__all__ = ["COMMANDS", "main"]

# name -> module, function in it taking the arguments and giving the exit code, and what it does.
COMMANDS = {
    "launch": ("smg.commands.launch", "run", "start the gateway (also: smg FLAGS, smg start FLAGS)"),
    "check": ("smg.commands.check", "run", "say every mistake in the configuration; takes the flags of launch"),
    "config": ("smg.commands.config", "run", "print the configuration in effect, or a file with every key (--reference)"),
    "doctor": ("smg.commands.doctor", "run", "look at everything that a gateway needs, and say what to do"),
    "sim": ("smg.commands.sim", "run", "start a simulated engine"),
    "demo": ("smg.sim.demo", "main", "start two simulated engines and a gateway, and chat"),
    "tokenize": ("smg.commands.tokenize", "run", "print the token ids of a text"),
    "render": ("smg.commands.render", "run", "print the prompt that a chat template makes of messages"),
    "parse": ("smg.commands.parse", "run", "print what the parsers make of a model's output"),
    "version": ("smg.commands.version", "run", "print the version (also: --version, -V)"),
}
ALIASES = {"start": "launch"}
# The command with which each part of the overview begins.
PARTS = {
    "launch": "The gateway:",
    "sim": "Without a GPU:",
    "tokenize": "What becomes of prompts and answers:",
    "version": "Else:",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's) and gives the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # grpcio's own lines are no JSON, and tell of each engine that leaves
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except ConfigError as error:
        return _tell_mistakes(error.mistakes)
    except SmgError as error:
        return _tell(error.message, code=1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _tell(str(error), code=1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as leaving:  # argparse, after --help or a mistake
        return leaving.code if isinstance(leaving.code, int) else 0
    return code


def _dispatch(words: list[str]) -> int:
    if not words:
        sys.stderr.write(overview())
        return 2
    if words[0] in ("-h", "--help", "help") and len(words) == 1:
        sys.stdout.write(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"smg {__version__}")
        return 0
    if words[0] == "--version-verbose":
        words = ["version", "--verbose"]
    if words[0].startswith("-"):
        words = ["launch", *words]
    name = ALIASES.get(words[0], words[0])
    if name not in COMMANDS:
        return _unknown(name)
    module, function, _ = COMMANDS[name]
    return int(getattr(importlib.import_module(module), function)(words[1:]))


def overview() -> str:
    """Gives the list of subcommands, in parts."""
    lines = [f"{_part(name)}  {name:<10} {what}\n" for name, (_, _, what) in COMMANDS.items()]
    return "usage: smg COMMAND [ARGUMENT ...]\n" + "".join(lines) + "\n`smg COMMAND --help` says more.\n"


def _part(name: str) -> str:
    return f"\n{PARTS[name]}\n" if name in PARTS else ""


def _unknown(name: str) -> int:
    from smg.registry import nearest

    return _tell(f"unknown command {name!r}{nearest(name, [*COMMANDS, *ALIASES])}; smg --help lists them", code=2)


def _tell(message: str, *, code: int) -> int:
    sys.stderr.write(f"smg: {message}\n")
    return code


def _tell_mistakes(mistakes: list[str]) -> int:
    lines = mistakes if len(mistakes) == 1 else [f"{len(mistakes)} mistakes", *mistakes]
    return _tell("\n  ".join(lines), code=2)
