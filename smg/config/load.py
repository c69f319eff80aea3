"""Files, environment and command line become one checked Config: systemd's credentials < files < `SMG_*` variables < flags.

Called at start and on reload.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

import smg.config.files
from smg.config.check import Mistake, find_mistakes, find_warnings
from smg.config.credentials import read_credentials
from smg.config.environment import read_environment
from smg.config.files import config_files, read_file
from smg.config.flags import FlagReader
from smg.config.settings import Settings
from smg.config.tree import Config
from smg.errors import ConfigError

__all__ = ["Loaded", "load"]


class Loaded(Struct, frozen=True, kw_only=True):
    """What was read. `origins`: by path, the file, variable or flag that set a value; `help`: --help was among the arguments."""

    config: Config
    origins: dict[str, str]
    files: tuple[Path, ...]
    warnings: tuple[str, ...]
    help: bool

    @property
    def summary(self) -> str:
        """What was read, in a few words for an operator."""
        read, own = ", ".join(str(path) for path in self.files) or "no file", len(self.origins)
        some = f"{own} of the settings {'is not a default' if own == 1 else 'are not defaults'}"
        return f"{read}; {some if own else 'all settings are defaults'}"


def load(
    arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None, default_file: Path | None = None, check: bool = True
) -> Loaded:
    """Reads every layer and checks the whole (`check=False`: each value for itself only). Raises ConfigError with all mistakes at once."""
    flags = FlagReader(arguments)
    variables = {} if flags.help else environment if environment is not None else os.environ
    settings = Settings()
    read_credentials(variables, settings)
    files = [] if flags.help else config_files(flags.files, default=default_file or smg.config.files.DEFAULT_FILE)
    for path in files:
        read_file(path, settings)
    read_environment(variables, settings)
    settings.mistakes += flags.mistakes
    for assignment in flags.assignments():
        settings.put(assignment)
    config = settings.config()
    if check and not flags.help:
        settings.mistakes += [_told(mistake, settings) for mistake in find_mistakes(config) if not settings.broken(mistake.paths)]
    if settings.mistakes:
        raise ConfigError(settings.mistakes)
    warnings = tuple(find_warnings(config)) if check and not flags.help else ()
    return Loaded(config=config, origins=settings.origins, files=tuple(files), warnings=warnings, help=flags.help)


def _told(mistake: Mistake, settings: Settings) -> str:
    path = mistake.paths[0]
    origin = settings.origins.get(path)
    return f"{path} ({origin}): {mistake.text}" if origin else f"{path}: {mistake.text}"
