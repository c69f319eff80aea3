"""The lowest layer: TOML files. A file, then every `conf.d/*.toml` beside it in the order of names; a key in a later file wins."""

import tomllib
from pathlib import Path

from smg.config.fields import Field, fields, sections
from smg.config.settings import Assignment, Settings
from smg.registry import nearest

__all__ = ["DEFAULT_FILE", "config_files", "read_file"]

DEFAULT_FILE = Path("/etc/smg/smg.toml")


def config_files(named: list[str], *, default: Path = DEFAULT_FILE) -> list[Path]:
    """Gives the files to read, lowest first. Files that were named are there or a mistake; the default file may be absent."""
    found: list[Path] = []
    for path in [Path(name) for name in named] or [default]:
        if named or path.exists():
            found.append(path)
        found += sorted((path.parent / "conf.d").glob("*.toml"))
    return list(dict.fromkeys(found))


def read_file(path: Path, settings: Settings) -> None:
    """Puts a file's values into the settings; a file that is missing or no TOML, and each unknown key, is a mistake."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        settings.mistakes.append(f"{path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        settings.mistakes.append(f"{path}: {error}")
    else:
        for section, table in tree.items():
            _read_section(section, table, path, settings)


def _read_section(section: str, table: object, path: Path, settings: Settings) -> None:
    if section not in sections():
        settings.mistakes.append(f"{section} ({path}): unknown section{nearest(section, list(sections())) or _home(section)}")
        return
    if not isinstance(table, dict):
        settings.mistakes.append(f"{section} ({path}): expected a table, [{section}]")
        return
    known = {field.name: field for field in fields() if field.section == section}
    for name, raw in table.items():
        if name in known:
            settings.put(Assignment(field=known[name], raw=raw, origin=str(path), text=False))
        else:
            close = nearest(name, list(known)) or _home(name)
            settings.mistakes.append(f"{section}.{name} ({path}): unknown key{close}")


def _home(name: str) -> str:
    """Tells where a key belongs that stands in the wrong section, or is written like its flag."""
    flag = "--" + name.replace("_", "-")
    homes: list[Field] = [field for field in fields() if field.name == name or flag in field.flags]
    return f" (did you mean {homes[0].path}?)" if homes else ""
