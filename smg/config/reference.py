"""The tree written out: as a TOML file with comments, and as a Markdown table. For `smg config`, the package's smg.toml, the man page."""

import json
from collections.abc import Mapping

from smg.config.fields import Field, Value, fields, sections
from smg.config.tree import Config

__all__ = ["render_markdown", "render_toml", "toml_value", "value_of"]

HIDDEN = "***"


def render_toml(config: Config | None = None, *, origins: Mapping[str, str] | None = None, comment_out: bool = False) -> str:
    """Gives a TOML file of the tree (default: the defaults) that reads back as the same tree.

    `origins` adds to each value where it came from, by path. `comment_out` puts a `#` before each key, so that the file shows the
    defaults without pinning them. Secrets are shown as ***.
    """
    config = config or Config()
    parts = []
    for section, cls in sections().items():
        keys = [_entry(field, config, origins or {}, comment_out) for field in fields() if field.section == section]
        parts.append(f"# {cls.__doc__}\n[{section}]\n" + "\n".join(keys))
    return "\n\n".join(parts) + "\n"


def render_markdown() -> str:
    """Gives one table a section: key, flag, variable, default, meaning with the allowed values."""
    parts = []
    for section, cls in sections().items():
        rows = [_row(field) for field in fields() if field.section == section]
        head = "| key | flag | environment | default | meaning |\n|---|---|---|---|---|"
        parts.append(f"## [{section}]\n\n{cls.__doc__}\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def value_of(config: Config, field: Field) -> Value:
    """Gives the value that a field has in a tree."""
    value: Value = getattr(getattr(config, field.section), field.name)
    return value


def toml_value(value: Value) -> str:
    """Gives a value as TOML (v1.0). A JSON string is a TOML basic string, but for DEL, which TOML wants escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def _entry(field: Field, config: Config, origins: Mapping[str, str], comment_out: bool) -> str:
    value = value_of(config, field)
    if field.secret and value:
        value = (HIDDEN,) if isinstance(value, tuple) else HIDDEN
    origin = f"  # {origins[field.path]}" if field.path in origins else ""
    meaning = f"# {_meaning(field)} ({field.flags[0]})\n"
    return f"{meaning}{'#' if comment_out else ''}{field.name} = {toml_value(value)}{origin}"


def _meaning(field: Field) -> str:
    allowed = field.allowed()
    return f"{field.description}: {', '.join(allowed)}" if allowed else field.description


def _row(field: Field) -> str:
    flags = ", ".join(f"`{flag}`" for flag in field.flags)
    cells = (f"`{field.name}`", flags, f"`{field.variable}`", f"`{toml_value(field.default)}`", _meaning(field))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
