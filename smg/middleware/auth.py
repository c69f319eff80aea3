"""Bearer keys. Only digests are kept and compared, so that neither memory nor timing tells a key. Built once a process from the config."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from smg.api.base import Headers
from smg.config import Config
from smg.errors import ConfigError, Unauthorized

__all__ = ["Keys", "load_keys"]

SCHEME = "bearer "


class Keys:
    """The keys that open the serving endpoints; without any, all are open."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = frozenset(hashlib.sha256(key.encode()).digest() for key in keys)

    def check(self, headers: Headers) -> None:
        """Raises Unauthorized unless the request carries a known key.

        A set lookup of a SHA-256 digest may end early, which tells a caller about digests only: none can be steered towards a key's.
        """
        if not self._digests:
            return
        value = headers.get("authorization") or ""
        if value[: len(SCHEME)].lower() != SCHEME:
            raise Unauthorized("an API key is required: send it as Authorization: Bearer KEY")
        key = value[len(SCHEME) :].strip()
        if hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() not in self._digests:
            raise Unauthorized("the API key is not valid")


def load_keys(config: Config) -> Keys:
    """Gives the keys of flags and file. Raises ConfigError when the file cannot be read or holds no key: never open by mistake."""
    keys = [key for key in config.server.api_key if key]
    if path := config.server.api_key_file:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"server.api_key_file: cannot be read: {error}"]) from error
        lines = [line.strip() for line in text.splitlines()]
        in_file = [line for line in lines if line and not line.startswith("#")]
        if not in_file:
            raise ConfigError(["server.api_key_file: holds no key"])
        keys += in_file
    return Keys(keys)
