"""What the manual page and the completions are made of: the commands, and the flags of each with what may follow them.

Read from the program itself: the flags of `launch` from the configuration tree, those of other commands from their `--help`.
"""

import contextlib
import io
import re

from msgspec import Struct

from smg.cli import ALIASES, COMMANDS, main
from smg.config.fields import Field, fields

__all__ = ["Flag", "commands", "flags_of", "help_of"]

TREE = ("launch", "check", "config", "doctor")
OWN = {"config": ("--reference", "--markdown"), "doctor": ("--json",)}
FOLDERS = ("_dir", "model_path")
FILES = ("_path", "_file", "chat_template", "_paths")


class Flag(Struct, frozen=True, kw_only=True):
    """One flag. `values`: the words that may follow; `takes`: "" for a switch, else file, folder or text; `meaning` as the help has it."""

    name: str
    takes: str = ""
    values: tuple[str, ...] = ()
    meaning: str = ""


def commands() -> dict[str, str]:
    """Gives every command, aliases too, with what it does."""
    return {name: what for name, (_, _, what) in COMMANDS.items()} | {alias: COMMANDS[name][2] for alias, name in ALIASES.items()}


def flags_of(command: str) -> list[Flag]:
    """Gives the flags of a command, sorted by name."""
    command = ALIASES.get(command, command)
    found = {flag.name: flag for flag in _tree_flags() if command in TREE}
    for name in OWN.get(command, ()):
        found[name] = Flag(name=name)
    if command not in TREE:
        found = {flag.name: flag for flag in _flags_in_help(help_of(command))}
    found["--help"] = Flag(name="--help", meaning="show the flags")
    return [found[name] for name in sorted(found)]


def help_of(command: str) -> str:
    """Gives what `smg COMMAND --help` prints."""
    with io.StringIO() as text, contextlib.redirect_stdout(text):
        code = main([command, "--help"])
        assert code == 0, f"smg {command} --help ended with {code}"
        return text.getvalue()


def _tree_flags() -> list[Flag]:
    found = [Flag(name="--config", takes="file", meaning="read this file, and conf.d beside it")]
    for field in fields():
        for name in field.flags:
            found.append(Flag(name=name, takes=_takes(field), values=tuple(field.allowed()), meaning=field.description))
            if field.kind == "bool":
                found.append(Flag(name="--no-" + name[2:], meaning="not: " + field.description))
    return found


def _takes(field: Field) -> str:
    if field.kind == "bool":
        return ""
    if field.name.endswith(FOLDERS):
        return "folder"
    return "file" if field.name.endswith(FILES) else "text"


def _flags_in_help(text: str) -> list[Flag]:
    """argparse's list: `  --flag VALUE  meaning`, `  --flag {a,b}`, and switches, of which some have a --no- twin."""
    found = []
    for line in re.findall(r"^  (-.*)$", text, re.MULTILINE):
        for name, following in re.findall(r"(--[\w-]+)(?:[ =](\{[^}]*\}|[A-Z|]+))?", line.split("  ")[0]):
            values = tuple(following[1:-1].split(",")) if following.startswith("{") else ()
            takes = "folder" if following == "DIR" else "file" if "FILE" in following else "text" if following else ""
            found.append(Flag(name=name, takes=takes, values=values))
    return found
