"""The text of `smg launch --help`, made from the tree: a part a section, each flag with its values, meaning and default."""

import shutil
import textwrap

from smg.config.environment import OTHER_VARIABLES
from smg.config.fields import Field, fields, sections
from smg.config.files import DEFAULT_FILE

__all__ = ["render_help"]

MARGIN = 30
WIDEST = 120
UNITS = {"s": "SECONDS", "bytes": "BYTES", "path": "PATH", "file": "FILE", "dir": "DIR", "template": "FILE", "port": "PORT", "urls": "URL"}

LONGEST_CHOICE = 60  # characters of `a|b|c`; what is longer stands once, at the setting that is named after its kind

HEAD = """Starts the gateway. Settings come from TOML files, then SMG_* variables, then flags; what comes later wins, and a list replaces
the whole list before it."""
SOURCES = {
    "--config FILE": f"read FILE, and conf.d/*.toml beside it in the order of names; repeatable. Without it {DEFAULT_FILE} is read when "
    "there is one. `smg config --reference` prints a file with every key.",
    "SMG_SECTION_KEY": "variables are named after the file's [section] and key: SMG_SERVER_PORT is [server] port. Lists by commas. "
    f"Variables that are no settings: {', '.join(OTHER_VARIABLES)}.",
    "--flag": "as below; `--flag=value` works too. Lists take several values and may be repeated. Names are never abbreviated.",
}


def render_help(*, width: int | None = None) -> str:
    """Gives the whole help text. `width` in characters; default: the terminal's, to a limit."""
    width = width or min(shutil.get_terminal_size().columns, WIDEST)
    parts = ["usage: smg launch [FLAG ...]\n", textwrap.fill(HEAD, width, break_on_hyphens=False), ""]
    parts += [_row("  " + source, meaning, width) for source, meaning in SOURCES.items()]
    parts.append("")
    for section, cls in sections().items():
        parts.append(f"[{section}] {cls.__doc__}")
        parts += [_entry(field, width) for field in fields() if field.section == section]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _entry(field: Field, width: int) -> str:
    default = _default(field)
    text = f"{field.description} ({default})" if default else field.description
    if field.name == field.choices and not _is_short(field.allowed()):
        text += f"; one of {', '.join(field.allowed())}"
    return _row("  " + _usage(field), text, width)


def _row(left: str, text: str, width: int) -> str:
    lines = textwrap.wrap(text, max(width - MARGIN, 40), break_long_words=False, break_on_hyphens=False)
    if len(left) < MARGIN:
        lines[0] = left.ljust(MARGIN) + lines[0]
        return ("\n" + " " * MARGIN).join(lines)
    return ("\n" + " " * MARGIN).join([left, *lines])


def _usage(field: Field) -> str:
    if field.kind == "bool":
        return ", ".join([*field.flags, *("--no-" + flag[2:] for flag in field.flags)])
    allowed = field.allowed() if not isinstance(field.choices, str) or field.section != "model" else []
    if not _is_short(allowed):
        return f"{', '.join(field.flags)} {str(field.choices).upper()}"
    return f"{', '.join(field.flags)} {'|'.join(allowed) or _unit(field)}"


def _is_short(allowed: list[str]) -> bool:
    return len("|".join(allowed)) <= LONGEST_CHOICE


def _unit(field: Field) -> str:
    unit = UNITS.get(field.name.rpartition("_")[2], "N" if field.kind in ("int", "float") else "TEXT")
    return f"{unit} ..." if field.kind == "list" else unit


def _default(field: Field) -> str:
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    if isinstance(field.default, tuple):
        return " ".join(field.default)
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
