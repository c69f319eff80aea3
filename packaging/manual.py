"""Writes the manual page smg(1): commands and settings from the program itself, the rest from man/*.roff. Running it prints it."""

import datetime
import os
import pathlib
import sys
import textwrap

from commandline import commands

from smg import __version__
from smg.config.fields import Field, fields, sections
from smg.config.reference import toml_value

__all__ = ["manual"]

HERE = pathlib.Path(__file__).parent / "man"


def manual(*, date: str) -> str:
    """Gives the page. `date`: YYYY-MM-DD."""
    parts = [f'.TH SMG 1 "{date}" "smg {__version__}" "SMG"', ".nh", ".ad l", (HERE / "head.roff").read_text(encoding="utf-8").rstrip()]
    parts.append(".SH COMMANDS")
    parts += [f".TP\n.B smg {_safe(name)}\n{_safe(_sentence(what))}" for name, what in commands().items()]
    parts.append(".PP\nEach command has its own\n.BR \\-\\-help .")
    parts.append(".SH SETTINGS")
    parts.append(
        textwrap.dedent("""\
        Read from TOML files, then from variables, then from flags; what comes later wins, and a list replaces the whole list before it.
        The files are
        .I /etc/smg/smg.toml
        and
        .I /etc/smg/conf.d/*.toml
        in the order of names, or what
        .B \\-\\-config
        names. An unknown key, variable or flag is a mistake.
        .B smg check
        tells all mistakes at once.""")
    )
    for section, cls in sections().items():
        parts.append(f".SS [{section}] {_safe((cls.__doc__ or '').strip())}")
        parts += [_entry(field) for field in fields() if field.section == section]
    parts.append((HERE / "tail.roff").read_text(encoding="utf-8").rstrip())
    return "\n".join(parts) + "\n"


def _entry(field: Field) -> str:
    flags = ", ".join(field.flags)
    allowed = field.allowed()
    choice = f" One of {', '.join(allowed)}." if allowed else ""
    return (
        f".TP\n.B {_safe(field.name)} = {_safe(toml_value(field.default))}\n"
        f"{_safe(_sentence(field.description) + choice)}\n.br\n{_safe(flags)}; {_safe(field.variable)}"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _safe(text: str) -> str:
    """Text as roff prints it literally."""
    text = text.replace("\\", "\\(rs").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha").replace("'", "\\(aq")
    text = text.replace('"', "\\(dq")
    text = text.replace("…", "...")
    return "\\&" + text if text.startswith(".") else text


if __name__ == "__main__":
    moment = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), tz=datetime.UTC)
    sys.stdout.write(manual(date=moment.date().isoformat()))
